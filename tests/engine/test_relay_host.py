"""The host tier of an engine: spilled under pressure, reloaded for the next request, right or not at all."""

from __future__ import annotations

import logging

import pytest
import torch
from engine_models import PAGE_TOKENS
from relay_rig import FULL, PAGE_BYTES, T_LIFE_S, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError, ConfigError
from relaygr.engine import tiers
from relaygr.engine.jobs import Admission
from relaygr.engine.requests import Path
from relaygr.memory.host import HostPool
from relaygr.relay.hold import State

ONE = user("one")
HOST = {"host_bytes": 4 << 20, "clean_target": 0.4}
TOKEN_BYTES = PAGE_BYTES // PAGE_TOKENS


def spilled(r: Rig, events: int = FULL) -> None:
    """The user was ranked, and others needed the room."""
    one = user("one", events)
    r.rank(one)
    r.crowd(3)
    r.rest()
    assert r.cached(one) == (0, events)


def computed(r: Rig) -> int:
    return r.engine.stats().tokens_computed


def test_pressure_spills_and_the_next_ranking_reloads() -> None:
    with rig(host=HOST) as r:
        spilled(r)
        before = computed(r)
        answer = r.rank(ONE)
        assert (answer.served.path, answer.served.tokens_loaded) == (Path.HIT, FULL)
        assert computed(r) == before
        assert r.cached(ONE)[0] == FULL


def test_a_signal_reloads_and_its_ranking_is_a_hit() -> None:
    with rig(host=HOST) as r:
        spilled(r)
        before = computed(r)
        answer = r.prepare(ONE)
        assert (answer.admission, answer.cached) == (Admission.ADMITTED, FULL)
        assert answer.flight is not None
        assert (answer.flight.reloaded, answer.flight.computed) == (True, 0)
        assert dict(r.relay.state().steps)["reload"] == 1
        assert (r.state(ONE), r.cached(ONE)) == (State.READY, (FULL, 0))
        read, _ = r.engine.copied_bytes
        assert read == FULL * TOKEN_BYTES
        ranked = r.rank(ONE)
        assert (ranked.served.path, ranked.served.tokens_loaded, computed(r)) == (Path.HIT, 0, before)
        # R20: what is on the device reads nothing from the host.
        assert r.engine.copied_bytes[0] == read


@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("events", [1, 31, 32, 33, 100])
def test_r19_a_user_who_returns_costs_the_new_events_alone(events: int, signalled: bool) -> None:
    with rig(host=HOST) as r:
        spilled(r, events)
        before, one = computed(r), longer(user("one", events), 7)
        if signalled:
            r.prepare(one)
        answer = r.rank(one)
        assert computed(r) - before == 7
        assert answer.served.tokens_cached == events + 7 * signalled


def test_r20_a_device_hit_reads_no_host_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(host=HOST) as r:
        r.rank(ONE)

        def read(*_: object) -> None:
            raise AssertionError("a host byte was read")

        monkeypatch.setattr(HostPool, "load", read)
        monkeypatch.setattr(HostPool, "crc", read)
        assert r.prepare(ONE).admission is Admission.HIT
        assert r.rank(ONE).served.path is Path.HIT


@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_damaged_bytes_are_computed_anew_and_counted(part: str, signalled: bool) -> None:
    with rig(host=HOST) as r:
        spilled(r)
        memory = r.engine._tiers._carrier
        assert memory is not None
        getattr(memory._mover.host, part).view(torch.int32).bitwise_xor_(1 << 20)
        if signalled:
            flight = r.prepare(ONE).flight
            assert flight is not None
            assert flight.computed == FULL
        answer = r.rank(ONE)  # with the right scores
        assert answer.served.path is (Path.HIT if signalled else Path.FULL)
        assert answer.served.tokens_loaded == 0
        host = r.engine.cache_stats().host
        assert host is not None
        assert host.damaged == 1
        assert r.cached(ONE) == (FULL, 0)


def test_without_memory_the_host_tier_is_off_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot allocate 4194304 bytes\nstack")

    monkeypatch.setattr(tiers, "HostPool", refuse)
    with caplog.at_level(logging.WARNING), rig(host=HOST) as r:
        assert "no host tier: cannot allocate 4194304 bytes" in caplog.text
        assert (r.engine._tiers.has_host, r.engine.cache_stats().host) == (False, None)
        r.prepare(ONE)
        assert r.rank(ONE).served.path is Path.HIT
        r.crowd(4)
        assert r.cached(ONE) == (0, 0)


def test_chunks_must_be_whole_pages() -> None:
    with pytest.raises(ConfigError, match=r"host\.run_chunk_tokens"):
        Rig({"host": {**HOST, "run_chunk_tokens": 33}})


def test_a_full_host_lets_the_least_recently_used_go() -> None:
    with rig(host={"host_bytes": 12 * PAGE_BYTES, "clean_target": 0.9}) as r:
        users = [user(f"u{number}", 96) for number in range(8)]
        for one in users:
            r.rank(one)
        host = r.engine.cache_stats().host
        assert host is not None
        assert host.evictions >= 1
        kept = [one for one in users if max(r.cached(one)) == 96]
        assert kept == users[-len(kept) :]
        assert len(kept) < len(users)
        for one in users:
            r.rank(one)


def test_what_is_larger_than_the_host_stays_out_of_it() -> None:
    with rig(host={"host_bytes": 2 * PAGE_BYTES, "clean_target": 0.9}) as r:
        r.rank(ONE)
        r.rest()
        assert r.cached(ONE) == (FULL, 0)
        host = r.engine.cache_stats().host
        assert host is not None
        assert (host.refused, host.stores) == (1, 0)


def test_nobody_is_spilled_who_will_not_return_and_nobody_who_is_held() -> None:
    with rig(host={**HOST, "spill_min_reuse": 0.5, "d_ttl_s": 1.0}) as r:
        r.rank(user("gone", 5))
        r.advance(2.0)
        r.rank(user("gone too", 5))
        r.advance(2.0)
        held = user("held")
        r.prepare(held)
        r.crowd(4)
        host = r.engine.cache_stats().host
        assert host is not None
        assert host.stores == 0
        assert r.cached(held) == (FULL, 0)


def spilling(r: Rig) -> None:
    """A spill of ONE has been begun."""
    for first in ("two", "one"):
        r.rank(user(first))
    r.rank(user("two"))
    assert r.engine.spill_step(1.0, 1, lambda ref: ref.user == "one")
    assert r.engine._tiers._spilling is not None


@pytest.mark.parametrize("way", ["forget", "swap", "rank", "append", "signal", "pressure"])
def test_a_spill_is_interrupted(way: str) -> None:
    with rig(host={"host_bytes": 4 << 20}) as r:
        spilling(r)
        if way == "forget":
            r.scheduler.forget("default", "one")
            assert r.cached(ONE) == (0, 0)
        elif way == "swap":
            r.swap(1)
        elif way == "rank":
            assert r.rank(ONE).served.path is Path.HIT
        elif way == "append":
            assert r.rank(longer(ONE, 5)).served.path is Path.RESUMED
        elif way == "signal":
            assert r.prepare(ONE).admission is Admission.HIT
        else:
            r.crowd(3)
        r.rest()
        r.rank(ONE)


@pytest.mark.parametrize("way", ["cancel", "deadline", "forget", "rank", "swap"])
def test_a_reload_is_interrupted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(host=HOST) as r:
        spilled(r)
        parts: list[int] = []
        whole = r.engine.reload_step

        def one_page(history: object, budget: int) -> bool:
            parts.append(budget)
            done = whole(history, 1)  # type: ignore[arg-type]
            if len(parts) == 2:
                interrupt(r, way)
            return done

        monkeypatch.setattr(r.engine, "reload_step", one_page)
        answer = r.signal(ONE)
        assert answer.flight is not None
        await_true(answer.flight.done)
        monkeypatch.undo()
        r.rest()
        stats = r.engine.cache_stats()
        if way in ("cancel", "deadline", "forget"):
            assert len(parts) == 2
            assert (stats.leases, r.relay._link.running, r.live) == (0, 0, {})
        if way != "swap":
            assert r.cached(ONE) == ((0, 0) if way == "forget" else (FULL, 0) if way == "rank" else (0, FULL))
        r.rank(ONE)


def interrupt(r: Rig, way: str) -> None:
    """On the executor's thread, between two parts of a reload."""
    if way == "cancel":
        for job in r.scheduler._unanswered():
            job.cancel()
    elif way == "deadline":
        r.advance(11.0)
    elif way == "forget":
        r.engine.forget("default", "one")
        for job in r.scheduler._unanswered():
            job.cancel()
    elif way == "rank":
        r.ask(ONE)
    else:
        r.swap(1)


def test_a_link_without_a_free_slot_computes_instead() -> None:
    with rig(host={**HOST, "reload_slots": 1}) as r:
        spilled(r)
        link = r.relay._link
        link.offer("other", 1, 0.0, 100.0)
        link.next(0.0)
        flight = r.prepare(ONE).flight
        assert flight is not None
        assert (flight.reloaded, flight.computed) == (False, FULL)
        link.done("other", 0.0)
        r.rank(ONE)


def test_r17_a_reload_that_would_be_late_is_not_started() -> None:
    with rig(host={**HOST, "reload_bytes_per_s": 1e6}) as r:  # a third of a second for ONE
        spilled(r)
        flight = r.signal(ONE, deadline_ms=100.0).flight
        assert flight is not None
        flight.result(PATIENCE_S)
        assert (flight.reloaded, dict(r.relay.state().reloads_skipped)["late"]) == (False, 1)
        r.rest()


def test_the_speed_of_the_link_is_that_of_whole_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with rig(host=HOST, clock=clock) as r:
        spilled(r)
        whole = r.engine.reload_step

        def slow(history: object, budget: int) -> bool:
            clock.advance(0.01)
            return whole(history, 2 * PAGE_BYTES)  # type: ignore[arg-type]

        monkeypatch.setattr(r.engine, "reload_step", slow)
        before = r.relay._link.measured_bytes_per_s
        r.prepare(ONE)
        wanted = before + 0.2 * (FULL * TOKEN_BYTES / 0.03 - before)
        assert r.relay._link.measured_bytes_per_s == pytest.approx(wanted)
        r.advance(T_LIFE_S)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_m26_a_signal_whose_reload_fails(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(host={**HOST, "fail_mode": mode}) as r:
        spilled(r)

        def torn(*_: object) -> None:
            raise RuntimeError("torn")

        monkeypatch.setattr(HostPool, "load", torn)
        flight = r.signal(ONE).flight
        assert flight is not None
        await_true(flight.done)
        monkeypatch.undo()
        r.rest()
        assert r.engine.copy_stats().failed_loads == 1
        if mode == "open":
            assert flight.result(0).tokens_computed > 0
            assert r.cached(ONE) == (FULL, 0)
        else:
            assert isinstance(flight.exception(0), BackendError)
            assert r.cached(ONE) == (0, FULL)
        r.rank(ONE)


def test_m26_a_spill_that_fails_loses_nothing_and_is_not_tried_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rig(host={**HOST, "clean_target": 0.9}) as r:
        calls: list[object] = []

        def torn(*_: object) -> None:
            calls.append(_)
            raise RuntimeError("torn")

        monkeypatch.setattr(HostPool, "store", torn)
        r.rank(ONE)
        await_true(lambda: r.engine.copy_stats().failed_stores == 1)
        r.rest()
        assert len(calls) == 1
        assert r.cached(ONE) == (FULL, 0)
        monkeypatch.undo()
        r.rank(ONE)
        await_true(lambda: r.cached(ONE) == (0, FULL))
        r.rest()
