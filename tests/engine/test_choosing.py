"""Copied or computed: any part of a prefix gives the same scores, and choices follow what both have taken."""

from __future__ import annotations

from typing import Any

import pytest
from engine_checks import asked, ranked_right, user
from engine_models import FINGERPRINT, KEPT, PAGE_TOKENS, _choose, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_rig import longer, rig
from relay_rig import user as rig_user

import relaygr.engine.passes as passes_module
from relaygr.cache.chooser import Choice, Found, Way, pick
from relaygr.cache.speeds import Compute, Link
from relaygr.config.host import HostConfig
from relaygr.config.settings import EngineConfig
from relaygr.core.clock import ManualClock
from relaygr.core.units import KIB, MIB
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.laps import Served
from relaygr.memory.host import HostPool
from relaygr.models.presets import AnyConfig
from relaygr.relay.latency import Coefficients
from relaygr.relay.link import ReloadLink, Turn
from relaygr.relay.trigger import Build


def hosted(
    config: AnyConfig = KEPT["transformer"], clock: ManualClock | None = None, copy_threads: int = 0
) -> Engine:
    host = HostConfig(
        host_bytes=4 * MIB, run_chunk_tokens=PAGE_TOKENS, checksum_share=1.0, copy_threads=copy_threads
    )
    choice = _choose("cpu", "fp32", False)
    model = random_model(config, 0).cast(choice.dtype)
    settings = EngineConfig(page_tokens=PAGE_TOKENS, device_bytes=MIB)
    return Engine(model, FINGERPRINT, choice, settings, clock or ManualClock(), host)


def spill(engine: Engine) -> None:
    """Everything leaves the device."""
    while engine.spill_step(1.0, 1 << 30, lambda ref: True):
        pass
    stats = engine.cache_stats()
    assert stats.free_pages == stats.total_pages


class Fixed:
    """Says always the same."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.asked: list[Found] = []

    def choose(self, found: Found, queue_ms: float = 0.0, deadline_ms: float = 0.0) -> Choice:
        self.asked.append(found)
        return Choice(Way.SPLIT, self.tokens, 0.0, 0.0, 0.0)


def say(engine: Engine, chooser: Any) -> None:
    engine.loader._chooser.choose = chooser.choose  # type: ignore[method-assign]


@pytest.mark.parametrize("copy_threads", [0, 1])
@pytest.mark.parametrize("family", KEPT)
def test_m1_scores_are_the_same_for_every_split(family: str, copy_threads: int) -> None:
    engine = hosted(KEPT[family], copy_threads=copy_threads)
    before = user(KEPT[family], 70, seed=1)
    items, times, actions = before.items[-3:], before.timestamps[-3:] + 1_000_000, before.actions[-3:]
    after = before.append(items, times, actions)
    length = KEPT[family].prefix_tokens(len(before))
    for x in [*range(0, length, PAGE_TOKENS), length - 1, length]:
        engine.forget(before.tenant, before.user)
        engine.rank(asked(before))
        spill(engine)
        fixed = Fixed(x)
        say(engine, fixed)
        served = ranked_right(engine, asked(after)).served
        assert [(one.device, one.host, one.candidates) for one in fixed.asked] == [(0, length, 11)]
        assert (served.tokens_loaded, served.tokens_cached, served.resident) == (x, x, True)
        # What was computed anew is not kept twice.
        assert engine.readable(engine.ref(after))[:2] == (KEPT[family].prefix_tokens(len(after)), 0)
        # And goes on from there, as anything that is cached.
        assert ranked_right(engine, asked(after)).served.tokens_computed == 0
        engine._tiers.books.audit()


def test_a_longer_copy_stays_when_a_shorter_request_takes_a_part() -> None:
    engine, long = hosted(), user(KEPT["transformer"], 100, seed=1)
    engine.rank(asked(long))
    spill(engine)
    short = UserHistory("u", long.items[:80], long.timestamps[:80], long.actions[:80])
    say(engine, Fixed(32))
    assert ranked_right(engine, asked(short)).served.tokens_loaded == 32
    assert engine.readable(engine.ref(long))[:2] == (80, 100)
    say(engine, Fixed(96))
    served = ranked_right(engine, asked(long)).served
    assert (served.tokens_loaded, served.tokens_cached) == (16, 96)


def test_a_load_that_has_begun_goes_on_whatever_would_be_chosen() -> None:
    engine, one = hosted(), user(KEPT["transformer"], 100, seed=1)
    engine.rank(asked(one))
    spill(engine)
    assert not engine.reload_step(one, 1)
    fixed = Fixed(0)
    say(engine, fixed)
    served = ranked_right(engine, asked(one)).served
    assert (served.tokens_loaded, served.tokens_computed, fixed.asked) == (100, 0, [])


class Timed:
    """An engine whose copies and passes take as long as is said, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.copy_s = self.pass_s = 0.0
        load, score = HostPool.load, passes_module.score

        def slow_load(pool: HostPool, *args: Any) -> None:
            load(pool, *args)
            self.clock.advance(self.copy_s)

        def slow_score(model: Any, kernel: Any, wave: Any, held: Any, microbatch: int) -> Any:
            done = score(model, kernel, wave, held, microbatch)
            new = sum(work.tokens - one.cached for work, one in zip(wave, held, strict=True))
            self.clock.advance(new * self.pass_s)
            return done

        monkeypatch.setattr(HostPool, "load", slow_load)
        monkeypatch.setattr(passes_module, "score", slow_score)
        self.engine = hosted(clock=self.clock)

    def visit(self) -> int:
        """A user whose prefix the host has is ranked; returns the tokens computed."""
        one = user(KEPT["transformer"], 100, seed=1)
        spill(self.engine)
        return ranked_right(self.engine, asked(one)).served.tokens_computed

    def count(self, way: Way) -> int:
        return dict(self.engine.stats().decisions)[way]


def test_m25_a_slow_link_is_passed_by_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch)
    timed.pass_s, timed.copy_s = 1e-4, 1e-3
    assert [timed.visit() for _ in range(5)] == [100, 0, 0, 0, 0]
    assert (timed.count(Way.LOAD), timed.count(Way.RECOMPUTE)) == (4, 0)
    timed.copy_s = 10.0  # a cold file
    computed = [timed.visit() for _ in range(20)]
    assert computed[-1] == 100
    assert timed.count(Way.RECOMPUTE) == computed.count(100)
    assert computed.count(0) <= 4
    timed.copy_s = 1e-3
    for _ in range(400):
        if not timed.visit():
            break
    assert timed.visit() == 0  # it was measured again


def test_what_the_device_has_is_counted_and_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch)
    one = user(KEPT["transformer"], 100, seed=1)
    timed.engine.rank(asked(one))
    timed.engine.rank(asked(one))
    timed.engine.rank(asked(user(KEPT["transformer"], 50, seed=2, name="new")))
    assert dict(timed.engine.stats().decisions) == {"device": 1, "load": 0, "split": 0, "recompute": 0}


def test_copies_on_lanes_are_learnt_from_and_overlap() -> None:
    engine, one = hosted(copy_threads=1), user(KEPT["transformer"], 100, seed=1)
    chooser = engine.loader._chooser
    assert (hosted().loader._chooser.layers, chooser.layers) == (1, 2)
    engine.rank(asked(one))
    spill(engine)
    seen: list[tuple[int, int, float]] = []
    chooser.link.observe = lambda *copy: seen.append(copy)  # type: ignore[method-assign]
    assert ranked_right(engine, asked(one)).served.tokens_loaded == 100
    assert [(nbytes, runs) for nbytes, runs, _ in seen] == [(100 * engine.layout.token_bytes, 1)]


@pytest.mark.parametrize(("queue_s", "loaded"), [(0.0, 100), (0.001, 100), (60.0, 0)])
def test_m25_behind_a_long_queue_everything_is_computed(
    queue_s: float, loaded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(monkeypatch)
    timed.pass_s, timed.copy_s = 1e-2, 1e-3
    assert timed.visit() == 100
    monkeypatch.setattr(timed.engine._tiers, "queue_s", lambda: queue_s)
    assert timed.visit() == 100 - loaded
    assert timed.count(Way.RECOMPUTE) == (not loaded)


def test_flights_teach_the_same_link() -> None:
    engine = hosted()
    before = engine.loader._chooser.link.copy_ms(MIB, 1)
    engine.reloaded(MIB, 20 * before / 1000)
    assert engine.loader._chooser.link.copy_ms(MIB, 1) == pytest.approx(20 * before)
    engine.reloaded(0, 1.0)  # others copied it
    assert engine.loader._chooser.link.copy_ms(MIB, 1) == pytest.approx(20 * before)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 8000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(1e6, 1e11),
    st.floats(1e-5, 1.0),
    st.floats(0, 50),
)
def test_the_relay_and_the_chooser_say_the_same_of_the_same_speeds(
    tokens: int, host: float, device: float, speed: float, t1_ms: float, queue_ms: float
) -> None:
    found = Found(tokens, int(device * host * tokens), int(host * tokens), 128, 4 * KIB, 32)
    if found.host <= found.device:
        return
    price = Coefficients(t0_ms=1.0, t1_ms=t1_ms, t2_ms=t1_ms / 1000, t_launch_ms=1.0)
    computing = price.pre_ms(found.host) - price.pre_ms(found.device)
    nbytes, _ = found.copied(found.host)
    copying = queue_ms + 1000 * nbytes / speed
    if abs(computing - copying) < 1e-6 * copying:
        return
    link = ReloadLink(1, speed)
    offer = link.offer("u", nbytes, 0.0, 1e9, (computing - queue_ms) / 1000)
    choice = pick(found, Link(speed), Compute(t1_ms, t1_ms / 1000), queue_ms=queue_ms)
    assert (offer.turn is Turn.QUEUED) == (choice.way is Way.LOAD)
    assert choice.way is not Way.SPLIT  # nothing overlaps


def test_the_relay_weighs_a_copy_against_computing_what_it_would_bring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[tuple[int, int]] = []
    recompute_s = Served.recompute_s

    def recorded(served: Served, tokens: int, cached: int) -> float:
        weighed.append((tokens, cached))
        return recompute_s(served, tokens, cached)

    monkeypatch.setattr(Served, "recompute_s", recorded)
    with rig(host={"host_bytes": 4 << 20, "clean_target": 0.4}) as r:
        one = rig_user("one", 100)
        r.rank(one)
        r.crowd(3)
        r.rest()
        assert r.cached(one) == (0, 100)
        r.prepare(longer(one, 30))
        assert weighed == [(100, 0)]  # the other 30 are computed either way


def test_a_copy_behind_what_the_device_has_moves_the_rest() -> None:
    served = Served(Build("b"), token_bytes=100, page_tokens=32, host_token_bytes=50)
    whole, rest = served.in_host(100, 0), served.in_host(100, 64)
    assert whole is not None
    assert rest is not None
    assert (whole.nbytes, rest.nbytes) == (128 * 50, 64 * 50)
    assert served.in_host(0, 0) is None
