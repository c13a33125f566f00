"""A ranking whose prefix is in host memory reads the rows that lie there, and a device hit does not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from engine_models import dense_logits, history
from test_overlap import CANDIDATES, SHAPE, away, hosted

from relaygr.engine.engine import Engine
from relaygr.engine.requests import Path, RankRequest
from relaygr.memory.host import HostPool, Piece
from relaygr.memory.pool import PagePool

EVENTS = 96
TOKEN_BYTES = SHAPE.num_layers * SHAPE.num_heads * (SHAPE.qk_dim + SHAPE.v_dim) * 4
both_ways = pytest.mark.parametrize("threads", [0, 1], ids=["copied first", "beside the pass"])


def unchecked(threads: int) -> Engine:
    """Nothing is checked, so that whatever lies in host memory comes through."""
    engine, _ = hosted(copy_threads=threads, checksum_share=0.0, load="always")
    return engine


def host_of(engine: Engine) -> HostPool:
    found = engine._tiers.memory
    assert found is not None
    return found


def logits(engine: Engine, request: RankRequest) -> npt.NDArray[np.float32]:
    answer = engine.rank(request)
    assert answer.served.path is Path.HIT
    return answer.logits


@both_ways
def test_m20_other_bytes_in_host_memory_are_other_scores(threads: int) -> None:
    """Of every layer: those of one alone are enough to move the scores."""
    request = RankRequest(history("one", EVENTS, 1), CANDIDATES)
    seen = []
    for layer in range(SHAPE.num_layers):
        engine = unchecked(threads)
        away(engine, request.history)
        host_of(engine).keys[layer].add_(1.0)
        seen.append(logits(engine, request))
        off = float(np.abs(seen[-1] - dense_logits(engine, request)).max())
        assert off > 1e-3, f"layer {layer} was not read"
    assert float(np.abs(seen[0] - seen[1]).max()) > 1e-3


@both_ways
def test_m20_what_is_on_the_device_is_not_read_from_the_host(threads: int) -> None:
    engine = unchecked(threads)
    request = RankRequest(history("one", EVENTS, 1), CANDIDATES)
    away(engine, request.history)
    first = logits(engine, request)
    copied = engine.copied_bytes
    host_of(engine).keys[0].add_(1.0)
    np.testing.assert_array_equal(logits(engine, request), first)
    assert engine.copied_bytes == copied
    np.testing.assert_allclose(first, dense_logits(engine, request), atol=1e-5)


@both_ways
def test_m20_every_row_is_copied_once_a_layer_and_counted(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = unchecked(threads)
    request = RankRequest(history("one", EVENTS, 1), CANDIDATES)
    away(engine, request.history)
    copies: list[tuple[int, int]] = []
    layers, whole = range(SHAPE.num_layers), (HostPool.load_layer, HostPool.load)

    def spy(host: HostPool, pool: PagePool, piece: Piece, layer: int) -> None:
        copies.append((layer, piece.rows))
        whole[0](host, pool, piece, layer)

    def spy_on_all(host: HostPool, pool: PagePool, piece: Piece) -> None:
        copies.extend((layer, piece.rows) for layer in layers)
        whole[1](host, pool, piece)

    monkeypatch.setattr(HostPool, "load_layer", spy)
    monkeypatch.setattr(HostPool, "load", spy_on_all)
    before = engine.copied_bytes[0]
    answer = engine.rank(request)
    assert answer.served.tokens_loaded == EVENTS
    assert engine.copied_bytes[0] - before == EVENTS * TOKEN_BYTES
    for layer in layers:
        assert sum(tokens for at, tokens in copies if at == layer) == EVENTS
