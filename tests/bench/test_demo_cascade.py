"""The cascade: three modes with equal scores, token counts that follow the mode, and honest tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from relaygr.bench.cascade import Cascade, Lap, Mode, Visit, replay
from relaygr.bench.demo_engine import pick_threads
from relaygr.bench.demo_stats import INJECTED, RETRIEVED, buckets, mode_stats, quality, recall, unbeaten
from relaygr.bench.demo_visits import by_length, held_out_visits, previous_visit
from relaygr.bench.retrieval import RetrievalSpec, Retriever, item_vectors
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError, RequestError
from relaygr.core.ids import Fingerprint
from relaygr.core.units import MIB
from relaygr.data.dataset import Events
from relaygr.data.split import temporal_split
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import write_events
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.kernels.select import choose
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.training.catalogue import catalogue_before

CONFIG = HstuConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=1,
    qk_dim=16,
    v_dim=16,
    embedding_dim=16,
    item_rows=512,
    action_bits=("engage", "like", "long_view"),
    tasks=("engage",),
)


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Events:
    spec = SynthSpec(users=30, mean_length=100, max_length=600, items=300, clusters=10)
    return write_events(tmp_path_factory.mktemp("d") / "e", synthesize(spec), name="t", source="", licence="")


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.manual_seed(0)
    choice = choose("auto", "fp32")
    model = Ranker(CONFIG).requires_grad_(False)
    return Engine(model, Fingerprint(b"x" * 16), choice, EngineConfig(device_bytes=8 * MIB))


@pytest.fixture(scope="module")
def retriever(events: Events, engine: Engine) -> Retriever:
    catalogue = catalogue_before(events, temporal_split(events).valid_end_s)
    vectors = item_vectors(engine.model, engine.choice.kernel, catalogue.items)
    return Retriever(catalogue, vectors, RetrievalSpec(wanted=20, overfetch=2))


@pytest.fixture(scope="module")
def visits(events: Events) -> list[Visit]:
    return held_out_visits(events, temporal_split(events), CONFIG, requests=12, seed=0)


@pytest.fixture(scope="module")
def laps(engine: Engine, retriever: Retriever, visits: list[Visit]) -> dict[Mode, list[Lap]]:
    done: list[int] = []
    served = replay(Cascade(engine, retriever, lead_ms=20.0), visits, done.append)
    assert done == list(range(1, len(visits) + 1))
    return served


def test_visits_are_held_out_and_in_time_order(events: Events, visits: list[Visit]) -> None:
    times = [visit.time_s for visit in visits]
    assert times == sorted(times)
    assert min(times) >= temporal_split(events).valid_end_s
    for visit in visits:
        assert visit.history.timestamps[-1] < visit.time_s
        assert 1 <= visit.previous <= len(visit.history)
        assert len(visit.injected)
    cut = held_out_visits(events, temporal_split(events), CONFIG, requests=12, seed=0, max_history=10)
    assert max(len(visit.history) for visit in cut) == 10


def test_a_previous_visit_ends_at_the_last_silence() -> None:
    times = np.array([0, 10, 5000, 5010, 5020])
    assert previous_visit(times, 5030) == 2
    assert previous_visit(times, 9000) == 5
    assert previous_visit(times[:2], 20) == 1


def test_modes_differ_in_tokens_but_not_in_scores(laps: dict[Mode, list[Lap]], visits: list[Visit]) -> None:
    for i, visit in enumerate(visits):
        inline, relay, returning = (laps[mode][i] for mode in Mode)
        tokens = len(visit.history)
        assert (inline.rank_computed, inline.rank_cached, inline.ready) == (tokens, 0, False)
        assert inline.prefetch_ms == 0
        assert (relay.prefetch_computed, relay.rank_computed) == (tokens, 0)
        assert (returning.prefetch_computed, returning.rank_cached) == (tokens - visit.previous, tokens)
        for lap in (relay, returning):
            assert np.array_equal(lap.candidates, inline.candidates)
            assert np.allclose(lap.logits, inline.logits, atol=1e-5)
        assert set(visit.injected) <= set(inline.candidates)
        assert inline.total_ms >= 20.0 + inline.rank_ms


def test_a_failing_prefetch_is_raised(engine: Engine, retriever: Retriever) -> None:
    history = UserHistory("u", [1, 2], [1, 2], [8, 8])  # a bit that the model does not have
    with pytest.raises(RequestError, match="has bits above"):
        Cascade(engine, retriever, 0.0).run(Visit(history, 1, 3, np.array([5])), Mode.RELAY)


def test_tables(laps: dict[Mode, list[Lap]], visits: list[Visit], retriever: Retriever) -> None:
    inline, relay, returning = mode_stats(laps, range(len(visits)))
    assert (inline.requests, inline.ready, inline.largest_difference) == (12, 0, 0)
    assert relay.rank_computed == 0 < relay.prefetch_computed == inline.rank_computed
    assert returning.prefetch_computed < relay.prefetch_computed
    assert inline.rank_p50_ms <= inline.rank_p99_ms == inline.rank_max_ms
    assert inline.rank_max_ms == max(lap.rank_ms for lap in laps[Mode.INLINE])
    rows = buckets(laps, visits)
    assert sum(row.modes[0].requests for row in rows) == 12
    assert all(a.high <= b.low for a, b in pairwise(rows))
    orders = quality(visits, laps[Mode.INLINE], retriever)
    assert {row.order for row in orders} == {"ranker", "retrieval", "popularity", "recency"}
    by_set = {name: [row for row in orders if row.candidates == name] for name in (INJECTED, RETRIEVED)}
    assert all(0 <= row.ndcg <= 1 and 0 <= row.hr <= 1 for row in orders)
    # A retrieved set can only contain less than the injected one.
    assert all(row.hr <= recall(visits, retriever) * 12 for row in by_set[RETRIEVED])
    better = {row.order for row in by_set[INJECTED] if row.ndcg >= by_set[INJECTED][0].ndcg} - {"ranker"}
    named = {name for name in unbeaten(orders) if INJECTED in name}
    assert named == {f"{each} ({INJECTED})" for each in better}
    assert len(by_lengths := by_length(visits, 4)) == 4
    assert [len(v.history) for v in by_lengths] == sorted(len(v.history) for v in by_lengths)


def test_threads_are_probed() -> None:
    threads, medians = pick_threads(msgspec.structs.replace(CONFIG, max_seq_len=64), seed=0)
    assert str(threads) in medians
    assert all(ms > 0 for ms in medians.values())
    torch.set_num_threads(1)


def test_nobody_returns(tmp_path: Path, events: Events) -> None:
    late = msgspec.structs.replace(SynthSpec(users=3, mean_length=5, max_length=9, items=9, clusters=3))
    tiny = write_events(tmp_path / "e", synthesize(late), name="t", source="", licence="")
    split = temporal_split(tiny, train=1.0, valid=0.0)
    with pytest.raises(ConfigError, match="nobody returns"):
        held_out_visits(tiny, split, CONFIG, 5, 0)
    with pytest.raises(ConfigError, match="requests: 0"):
        held_out_visits(events, temporal_split(events), CONFIG, 0, 0)
