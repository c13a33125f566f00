"""Both clients against a real server, call by call."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from client_server import Ask

from relaygr.bench.cell import random_ranker
from relaygr.bench.serve_process import ServerProcess
from relaygr.client import Door, RequestRejectedError, history
from relaygr.config.settings import EngineConfig
from relaygr.core.units import MIB
from relaygr.engine import Engine, RankRequest, UserHistory
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker

KEY = "0123456789abcdef-client"
ITEMS, TIMES, CANDIDATES = [3, 1, 4], [10, 20, 30], [9, 2, 6, 9]
DAY_S = 1_700_000_000


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("model") for _ in range(2)]
    for seed, folder in enumerate(folders):
        save_ranker(random_ranker(preset("hstu-tiny"), torch.float32, seed), folder)
    return folders


@pytest.fixture(scope="module")
def url(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = ["store.url=sqlite://memory", "engine.device_bytes=16MiB", "engine.dtype=fp32"]
    settings += ["serving.calibrate_s=0", f"serving.model={models[0]}", "serving.max_candidates=100"]
    with ServerProcess(tmp_path_factory.mktemp("server"), settings) as server:
        yield server.url


@pytest.fixture
def door(url: str, ask: Ask) -> Door:
    """A tenant of its own for each client, so that the tests of both meet an empty server."""
    return Door(url, tenant=f"tenant-{ask.asynchronous}", timeout_ms=60_000)


def test_a_user_from_the_first_event_to_the_last(ask: Ask, door: Door, models: list[Path]) -> None:
    appended, again, signal, ranking, state, deleted, gone = ask.each(
        door,
        [
            ("append", ("ann", ITEMS, TIMES), {"key": "k"}),
            ("append", ("ann", ITEMS, TIMES), {"key": "k"}),
            ("prefix", ("ann",), {}),
            ("rank", ("ann", CANDIDATES), {"top_k": 2}),
            ("state", ("ann",), {}),
            ("delete", ("ann",), {}),
            ("state", ("ann",), {}),
        ],
    )
    assert (appended.sequence, appended.accepted, appended.replayed) == (3, 3, False)
    assert (again.sequence, again.accepted, again.replayed) == (3, 3, True)
    assert (signal.admission, signal.tokens) == ("admitted", 3)
    engine = Engine.load(models[0], EngineConfig(dtype="fp32", device_bytes=16 * MIB))
    wanted = engine.rank(RankRequest(UserHistory("ann", ITEMS, TIMES), CANDIDATES))
    assert np.allclose(ranking.scores, wanted.logits, rtol=0, atol=1e-5)
    assert ranking.order == wanted.order()[:2].tolist()
    assert (ranking.served_tokens, ranking.model) == (3, engine.model_fp.hex())
    assert (state.events, state.tokens, state.newest_s) == (3, 3, 30)
    assert deleted.events == 3
    assert (gone.events, gone.newest_s) == (0, None)


def test_a_history_in_the_request(ask: Ask, door: Door, models: list[Path]) -> None:
    sent = history(np.array(ITEMS), np.array(TIMES))
    ranking = ask(door, "rank", "bob", CANDIDATES, history=sent, query_time=40, output="probabilities")
    engine = Engine.load(models[0], EngineConfig(dtype="fp32", device_bytes=16 * MIB))
    wanted = engine.rank(RankRequest(UserHistory("bob", ITEMS, TIMES), CANDIDATES, 40))
    assert np.allclose(ranking.scores, wanted.probabilities, rtol=0, atol=1e-5)
    assert ask(door, "state", "bob").events == 0


@pytest.mark.parametrize("name", ["a/b", "..", ".", "ü %2F?#", "state"])
def test_strange_names(ask: Ask, door: Door, name: str) -> None:
    ask(door, "append", name, [1], [2])
    assert ask(door, "state", name).events == 1
    deleted = ask(door, "delete", name)
    assert (deleted.user, deleted.events) == (name, 1)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "field"),
    [
        ("rank", ("u", list(range(101))), {}, "candidates"),
        ("rank", ("u", [1]), {"output": "odds"}, "output"),
        ("append", ("u", [1, 2], [1]), {}, "timestamps"),
        ("append", ("u", [1], [DAY_S * 1000]), {}, "timestamps"),
        ("set_profile", ("u", [1]), {}, "contextual"),
    ],
)
def test_the_server_names_the_field(
    ask: Ask, door: Door, method: str, arguments: tuple[object, ...], options: dict[str, object], field: str
) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        ask(door, method, *arguments, request_id="mine", **options)
    assert field in caught.value.field
    assert (caught.value.status, caught.value.request_id) == (422, "mine")


def test_a_key_for_other_events(ask: Ask, door: Door) -> None:
    ask(door, "append", "kim", [1], [2], key="once")
    with pytest.raises(RequestRejectedError) as caught:
        ask(door, "append", "kim", [9], [2], key="once")
    assert (caught.value.status, caught.value.field) == (409, "key")


def test_the_server_itself(ask: Ask, door: Door, models: list[Path]) -> None:
    (model,) = ask(door, "models")
    assert (model.cacheable, model.dtype, model.limits.candidates) == ("append", "fp32", 100)
    assert ask(door, "health").ready
    status = ask(door, "status")
    assert (status.state, status.model.fingerprint) == ("ready", model.model)
    assert status.pool.total_bytes <= 16 * MIB
    there = ask(door, "reload", str(models[1]))
    assert there.before == model.model != there.model
    assert ask(door, "rank", "u", [1]).model == there.model
    back = ask(door, "reload", str(models[0]))
    assert (back.before, back.model) == (there.model, model.model)
    with pytest.raises(RequestRejectedError, match="nowhere"):
        ask(door, "reload", "nowhere")
    assert ask(door, "rank", "u", [1]).model == model.model


def test_tenants_do_not_meet(ask: Ask, url: str) -> None:
    one, other = Door(url, tenant="one"), Door(url, tenant="other")
    ask(one, "append", "tom", [1], [2], key=None)
    assert ask(other, "state", "tom").events == 0
    assert ask(one, "delete", "tom").events == 1


def test_a_client_that_leaves_in_the_middle_harms_nobody(ask: Ask, door: Door, url: str) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(b"POST /v1/rank HTTP/1.1\r\nhost: s\r\ncontent-length: 500\r\n\r\n{")
    assert len(ask(door, "rank", "u", [1, 2]).scores) == 2


def test_keys(ask: Ask, tmp_path: Path, models: list[Path]) -> None:
    config = tmp_path / "relaygr.toml"
    config.write_text(f'[serving]\nkeys = [{{key = "{KEY}", tenant = "shop", admin = false}}]\n')
    settings = ["store.url=sqlite://memory", "engine.device_bytes=16MiB", "serving.calibrate_s=0"]
    with ServerProcess(tmp_path, [*settings, f"serving.model={models[0]}"], config=config) as server:
        assert ask(Door(server.url, api_key=KEY), "append", "u", [1], [2]).accepted == 1
        for door, status in (
            (Door(server.url), 401),
            (Door(server.url, api_key="another-key-0123456789"), 401),
            (Door(server.url, api_key=KEY, tenant="bank"), 403),
        ):
            with pytest.raises(RequestRejectedError) as caught:
                ask(door, "state", "u")
            assert caught.value.status == status
        with pytest.raises(RequestRejectedError) as caught:
            ask(Door(server.url, api_key=KEY), "reload")
        assert (caught.value.status, caught.value.code) == (403, "admin")
