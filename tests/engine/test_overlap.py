"""Ranking beside the load of its prefix: layer by layer, in time or without it, never with wrong scores."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import CONFIG, FINGERPRINT, PAGE_TOKENS, _choose, dense_logits, history, random_model
from msgspec.structs import replace

from patience import PATIENCE_S, await_true
from relaygr.config.host import HostConfig
from relaygr.config.settings import EngineConfig
from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError
from relaygr.core.units import MIB
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import RankJob, Turn
from relaygr.engine.requests import Path, RankRequest, RankResult
from relaygr.memory.host import HostPool, Piece
from relaygr.memory.lane import Lanes
from relaygr.memory.pool import PagePool
from relaygr.memory.virtual import virtual_lanes
from relaygr.models.hstu import HstuConfig

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
SHAPE = replace(CONFIG, num_heads=4, qk_dim=32, v_dim=32)  # 16 pages of 64 KiB
DEEP = replace(CONFIG, num_layers=8)
CANDIDATES = np.arange(9)


def hosted(
    shape: HstuConfig = SHAPE, lanes: Callable[[ManualClock], Lanes] | None = None, **host: Any
) -> tuple[Engine, ManualClock]:
    clock, choice = ManualClock(), _choose("cpu", "fp32", False)
    settings = HostConfig(
        **{"host_bytes": 4 * MIB, "run_chunk_tokens": PAGE_TOKENS, "checksum_share": 1.0} | host
    )
    engine = Engine(
        random_model(shape).cast(choice.dtype),
        FINGERPRINT,
        choice,
        EngineConfig(page_tokens=PAGE_TOKENS, device_bytes=MIB),
        clock,
        settings,
        None if lanes is None else lanes(clock),
    )
    return engine, clock


def away(engine: Engine, *users: UserHistory) -> None:
    """Their states are in host memory only."""
    for one in users:
        engine.prefetch(one)
    while engine.spill_step(1.0, 1 << 30, lambda ref: True):
        pass
    for one in users:
        assert engine.locate(RankRequest(one, ()))[1][:2] == (0, len(one))


def right(engine: Engine, request: RankRequest, answer: object) -> RankResult:
    assert isinstance(answer, RankResult), answer
    want = dense_logits(engine, request)
    assert float(np.abs(answer.logits - want).max()) <= 1e-5 * max(1.0, float(np.abs(want).max()))
    return answer


def at_rest(engine: Engine) -> None:
    """Nothing is pinned, held or on its way."""
    courier = engine._tiers._courier
    assert courier is not None
    engine._tiers.sweep(engine._clock.now_s())
    stats = engine.cache_stats()
    assert stats.host is not None
    assert (stats.leases, stats.pinned_pages, len(courier)) == (0, 0, 0)
    assert (stats.host.pinned_chunks, stats.host.moving) == (0, 0)
    engine._tiers.books.audit()


class Fault:
    """Something happens before one copy of a layer of one user's load; once, or as long as it stands."""

    def __init__(self, patch: pytest.MonkeyPatch, engine: Engine) -> None:
        self.act: Callable[[], None] | None = None
        self.layer, self.times, self.after = 0, 1, 0
        self._engine, self._whole = engine, HostPool.load_layer
        patch.setattr(HostPool, "load_layer", lambda *args: self._load(*args))

    def set(self, act: Callable[[], None], layer: int, after: int = 0, times: int = 1) -> None:
        """After so many copies of the layer that go well."""
        self.act, self.layer, self.times, self.after = act, layer, times, after

    def _load(self, host: HostPool, pool: PagePool, piece: Piece, layer: int) -> None:
        if self.act is not None and layer == self.layer and self.times:
            if self.after:
                self.after -= 1
            else:
                self.times -= 1
                self.act()
        self._whole(host, pool, piece, layer)


def tear() -> None:
    raise RuntimeError("torn")


def die() -> None:
    raise SystemExit


@pytest.mark.parametrize("more", [0, 1, 20])
@pytest.mark.parametrize("events", [1, 31, 32, 33, 120])
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_m1_a_ranking_whose_prefix_is_loaded_scores_as_without_a_cache(
    events: int, more: int, threads: int
) -> None:
    engine, _ = hosted(copy_threads=threads)
    one, two = history("one", events, 1), history("two", 60, 2)
    away(engine, one, two)
    longer = one if not more else one.append([3] * more, [int(one.timestamps[-1]) + 1] * more)
    requests = [RankRequest(longer, CANDIDATES), RankRequest(two, CANDIDATES)]
    answers = engine.rank_batch(requests)
    served = [right(engine, *pair).served for pair in zip(requests, answers, strict=True)]
    assert [one.tokens_loaded for one in served] == [events, 60]
    assert served[0].tokens_computed == more
    assert served[0].path is (Path.RESUMED if more else Path.HIT)
    assert engine.locate(requests[0])[1][:2] == (events + more, 0)
    again = right(engine, requests[0], engine.rank(requests[0]))
    assert (again.served.path, again.served.tokens_loaded) == (Path.HIT, 0)
    if threads:
        at_rest(engine)


def timed(engine: Engine, clock: ManualClock, patch: pytest.MonkeyPatch, compute_s: float) -> list[int]:
    """Attention of a layer takes so long; returns the layers as they are computed."""
    kernel, ran = engine._passes._kernel, []
    whole = kernel.run

    def run(plan: Any, layer: int, *args: Any) -> Any:
        out = whole(plan, layer, *args)
        clock.advance(compute_s)
        ran.append(layer)
        return out

    patch.setattr(kernel, "run", run)
    return ran


@pytest.mark.parametrize(("compute_ms", "copy_ms"), [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.1, 5.0)])
def test_m21_layer_i_of_the_model_computes_once_layer_i_is_there(
    compute_ms: float, copy_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = history("one", 96, 1)
    bytes_per_s = 96 * 2 * 2 * 8 * 4 / copy_ms * 1e3
    engine, clock = hosted(DEEP, lambda clock: virtual_lanes(clock, bytes_per_s))
    away(engine, one)
    request = RankRequest(one, CANDIDATES)
    want = dense_logits(engine, request)
    with monkeypatch.context() as patch:
        ran = timed(engine, clock, patch, compute_ms / 1e3)
        began_s = clock.now_s()
        answer = engine.rank(request)
        total_ms = (clock.now_s() - began_s) * 1e3
    assert ran == list(range(8))
    assert answer.served.tokens_loaded == 96
    assert float(np.abs(answer.logits - want).max()) <= 1e-5
    bound_ms = max(compute_ms, copy_ms) * 8 + min(compute_ms, copy_ms)
    assert total_ms <= 1.1 * bound_ms
    if (compute_ms, copy_ms) == (1.0, 2.0):
        assert total_ms == pytest.approx(17.0)  # 24 if one waited for all of it
    at_rest(engine)


def test_m16_a_prefix_is_no_hit_while_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = hosted(DEEP, lambda clock: virtual_lanes(clock, 1e6))
    one = history("one", 96, 1)
    away(engine, one)
    ref, seen = engine.ref(one), []
    assert ref is not None
    with monkeypatch.context() as patch:
        kernel = engine._passes._kernel
        whole = kernel.run

        def run(*args: Any) -> Any:
            seen.append(tuple(engine.readable(ref))[:2])
            return whole(*args)

        patch.setattr(kernel, "run", run)
        engine.rank(RankRequest(one, CANDIDATES))
    assert seen == [(0, 96)] * 8
    assert engine.readable(ref)[:2] == (96, 0)


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    ("what", "threads"), [("torn", 0), ("torn", 1), ("dead", 1), ("damaged", 0), ("damaged", 1)]
)
def test_m26_a_load_that_fails_harms_its_own_request_only(
    what: str, layer: int, threads: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = hosted(copy_threads=threads, fail_mode=mode)
    users = [history(name, 60 + number, number) for number, name in enumerate(("one", "two", "three"))]
    away(engine, users[0])
    away(engine, users[1])
    requests = [RankRequest(one, CANDIDATES) for one in users]
    carrier = engine._tiers._carrier
    assert carrier is not None
    if what == "damaged":
        first = carrier._mover.host.keys if layer else carrier._mover.host.values
        first[layer, :, 60] += 1.0  # of the second user, whose chunks lie behind those of the first
        first[layer, :, 64:96] += 1.0
    elif threads:
        fault = Fault(monkeypatch, engine)
        fault.set(tear if what == "torn" else die, layer, after=1)
    else:
        whole, calls = HostPool.load, []

        def second(host: HostPool, pool: PagePool, piece: Piece) -> None:
            calls.append(piece)
            if len(calls) == 2:
                tear()
            whole(host, pool, piece)

        monkeypatch.setattr(HostPool, "load", second)
    answers = engine.rank_batch(requests)
    bad = [place for place, answer in enumerate(answers) if getattr(answer, "served", None) is None]
    loaded = [answer.served.tokens_loaded for answer in answers if isinstance(answer, RankResult)]
    if mode == "closed":
        assert len(bad) == 1
        error = answers[bad[0]]
        assert isinstance(error, BackendError)
        assert "could not be loaded" in str(error)
    else:
        assert bad == []
        assert loaded.count(0) == 2  # the one whose load failed, and the one that nothing is known of
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(answer, RankResult):
            right(engine, request, answer)
    if what == "dead":  # its thread is replaced after the pass was told
        await_true(lambda: getattr(engine.copy_stats().h2d, "restarts", 0) > 0)
    stats = engine.copy_stats()
    assert stats.failed_loads == 1
    assert stats.late_loads == (1 if threads else 0)
    if what == "dead":
        assert stats.h2d is not None
        assert stats.h2d.restarts == 1
    host = engine.cache_stats().host
    assert host is not None
    assert host.damaged == (what == "damaged")
    monkeypatch.undo()
    for request in requests:
        right(engine, request, engine.rank(request))
    if threads:
        at_rest(engine)


def test_m25_a_load_that_hangs_is_not_waited_for_and_its_pages_stay_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, clock = hosted()
    one, two = history("one", 100, 1), history("two", 50, 2)
    away(engine, one, two)
    door = threading.Event()
    fault = Fault(monkeypatch, engine)
    fault.set(lambda: door.wait(PATIENCE_S) and None, layer=1)
    request = RankRequest(one, CANDIDATES)
    request.load_by_s = clock.now_s() + 0.02
    answer = right(engine, request, engine.rank(request))
    assert (answer.served.path, answer.served.uncached_reason) == (Path.FULL, "busy")
    assert engine.copy_stats().late_loads == 1
    assert engine.cache_stats().leases == 1  # the copy that hangs still writes there
    late = RankRequest(two, CANDIDATES)
    late.load_by_s = clock.now_s() + 0.02
    right(engine, late, engine.rank(late))
    forgotten = threading.Thread(target=engine.forget, args=("default", "one"))
    forgotten.start()
    forgotten.join(0.05)
    assert forgotten.is_alive()
    door.set()
    forgotten.join(PATIENCE_S)
    assert engine.locate(request)[1][:2] == (0, 0)
    for one_request in (request, late):
        one_request.load_by_s = float("inf")
        right(engine, one_request, engine.rank(one_request))
    at_rest(engine)


def slow_host(seconds: float) -> Callable[[ManualClock], Lanes]:
    """Loading 150 tokens takes so long."""
    return lambda clock: virtual_lanes(clock, 150 * 2 * 4 * 64 * 4 / seconds)


@pytest.mark.parametrize("budget_s", [0.1, 10.0])
def test_m25_no_request_exceeds_its_budget_because_of_a_load(budget_s: float) -> None:
    engine, clock = hosted(SHAPE, slow_host(1.0))
    one = history("one", 150, 1)
    away(engine, one)
    job = RankJob(RankRequest(one, CANDIDATES), 100.0, clock.now_s())
    job.budget_s = clock.now_s() + budget_s
    asked: list[tuple[int, float]] = []

    def fit(job: RankJob, left_ms: float) -> int:
        asked.append((job.cached, left_ms))
        return 40

    Turn(engine, [job], None).rank(clock, fit)
    answer = job.result(0)
    assert clock.now_s() <= job.budget_s
    if budget_s == 10.0:
        assert (answer.served.tokens_loaded, job.kept_events, asked) == (150, None, [])
    else:
        assert (answer.served.tokens_loaded, job.kept_events) == (0, 40)
        assert asked == [(0, pytest.approx(100.0))]
    at_rest(engine)


def test_m25_a_load_that_turns_out_late_is_made_up_for_with_what_fits() -> None:
    """The estimate said yes; then the link takes ten times as long."""
    engine, clock = hosted(SHAPE, slow_host(1.0))
    one = history("one", 150, 1)
    away(engine, one)
    job = RankJob(RankRequest(one, CANDIDATES), 100.0, clock.now_s())
    job.budget_s = clock.now_s() + 3.0
    courier = engine._tiers._courier
    assert courier is not None
    courier._lanes.h2d._latency_s = 4.5  # type: ignore[attr-defined]
    asked: list[tuple[int, float]] = []

    def fit(job: RankJob, left_ms: float) -> int:
        asked.append((job.cached, left_ms))
        return 40

    Turn(engine, [job], None).rank(clock, fit)
    answer = job.result(0)
    assert (answer.served.tokens_loaded, job.kept_events) == (0, 40)
    assert asked == [(0, pytest.approx(1500.0))]  # half of its time is left
    assert clock.now_s() <= job.budget_s
    assert engine.copy_stats().late_loads == 1
    right(engine, job.shortened(40), answer)


def test_m20_a_hot_reader_that_never_appends_survives_in_every_tier() -> None:
    engine, _ = hosted(host_bytes=12 * 64 * 1024)
    hot = history("hot", 96, 1)
    for number in range(30):
        right(engine, RankRequest(hot, CANDIDATES), engine.rank(RankRequest(hot, CANDIDATES)))
        engine.prefetch(history(f"cold-{number}", 96, number))
        while engine.spill_step(0.4, 1 << 30, lambda ref: True):
            pass
        found = engine.locate(RankRequest(hot, ()))[1]
        assert max(found) == 96, number
    stats = engine.cache_stats()
    assert stats.host is not None
    assert stats.host.evictions > 5


def damage(memory: torch.Tensor) -> None:
    memory.add_(1.0)


def random_faults(seed: int, steps: int, patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Rankings of users whose states come and go, with faults of every kind at random stages."""
    rng = random.Random(seed)
    engine, clock = hosted(host_bytes=MIB)
    users = {name: history(name, rng.randint(1, 120), number) for number, name in enumerate("abcd")}
    fault, seen = Fault(patch, engine), dict.fromkeys(("torn", "dead", "damage", "late", "slow", "none"), 0)
    carrier = engine._tiers._carrier
    assert carrier is not None
    for _ in range(steps):
        kind, layer = rng.choice(list(seen)), rng.randint(0, 1)
        fault.act = None
        if kind in ("torn", "dead"):
            fault.set(tear if kind == "torn" else die, layer, after=rng.randint(0, 1))
        elif kind == "damage":
            fault.set(partial(damage, carrier._mover.host.keys[layer]), layer)
        elif kind == "slow":
            fault.set(lambda: time.sleep(rng.choice([0.0, 0.001, 0.003])), layer, times=4)
        names = rng.sample("abcd", rng.randint(1, 3))
        requests = [RankRequest(users[name], CANDIDATES[: rng.randint(1, 9)]) for name in names]
        for request in requests:
            if kind == "late":
                request.load_by_s = clock.now_s()
        left = fault.times
        answers = engine.rank_batch(requests)
        for request, answer in zip(requests, answers, strict=True):
            right(engine, request, answer)
        seen[kind] += fault.act is None or fault.times < left
        fault.act = None
        at_rest(engine)
        name = rng.choice("abcd")
        if rng.random() < 0.3:
            one = users[name]
            users[name] = one.append([rng.randint(1, 30)], [int(one.timestamps[-1]) + 1])
        if rng.random() < 0.1:
            engine.forget("default", name)
        if rng.random() < 0.8:
            while engine.spill_step(1.0, 1 << 30, lambda ref: True):
                pass
    for name in "abcd":
        engine.forget("default", name)
    stats = engine.cache_stats()
    assert stats.host is not None
    assert (stats.free_pages, stats.host.free_chunks) == (stats.total_pages, stats.host.total_chunks)
    return seen


def test_m19_no_fault_gives_a_wrong_score(monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(random_faults(1, 60, monkeypatch).values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_m19_thousands_of_faults_give_no_wrong_score(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(random_faults(seed, 500, monkeypatch).values()) > 500 // 30
