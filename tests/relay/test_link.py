"""The reload link: estimates, order, slots, the cap, and what is not started."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.link import ReloadLink, Turn

MIB = 1 << 20
FAR = 1e9


def link(slots: int = 2, cap: float = 0.0) -> ReloadLink:
    return ReloadLink(slots, bytes_per_s=25e9, cap_bytes_per_s=cap)


def test_idle_and_tenth_in_line() -> None:
    one = link(slots=1)
    turn, wait, copy = one.offer("u0", 32 * MIB, 0.0, 1.0)
    assert (turn, wait) == (Turn.QUEUED, 0.0)
    assert copy * 1000 == pytest.approx(1.34, abs=0.005)
    for number in range(1, 9):
        one.offer(f"u{number}", 32 * MIB, 0.0, 1.0)
    wait, copy = one.estimate(32 * MIB, 0.0, 1.0)
    assert (wait + copy) * 1000 == pytest.approx(13.4, abs=0.05)
    started, late = one.next(0.0)
    assert started is not None
    assert started.key == "u0"
    assert late == ()
    wait, copy = one.estimate(32 * MIB, 0.0, 1.0)  # the same line, the first of it under way
    assert (wait + copy) * 1000 == pytest.approx(13.4, abs=0.05)
    wait, _ = one.estimate(32 * MIB, 0.001, 1.0)
    assert wait * 1000 == pytest.approx(9 * 1.342 - 1.0, abs=0.02)


def test_r17_not_started_if_it_would_be_late() -> None:
    one = link()
    copy = 32 * MIB / 25e9
    assert one.offer("a", 32 * MIB, 5.0, 5.0 + copy * 0.99).turn == Turn.LATE
    assert one.offer("a", 32 * MIB, 5.0, 5.0 + copy * 1.01).turn == Turn.QUEUED
    assert one.offer("b", 32 * MIB, 5.0, 5.0 + copy * 1.9).turn == Turn.LATE
    assert one.offer("c", 32 * MIB, 5.0, 5.0 + copy * 2.1).turn == Turn.QUEUED
    assert one.skipped[Turn.LATE] == 2
    started, late = one.next(5.0 + copy * 0.5)  # the scheduler came late
    assert [reload.key for reload in late] == ["a"]
    assert started is not None
    assert started.key == "c"
    assert one.skipped[Turn.LATE] == 3


def test_recompute_where_that_is_faster() -> None:
    one = link()
    copy = 32 * MIB / 25e9
    assert one.offer("a", 32 * MIB, 0.0, FAR, recompute_s=copy * 0.99).turn == Turn.SLOWER
    assert one.offer("a", 32 * MIB, 0.0, FAR, recompute_s=copy).turn == Turn.QUEUED
    assert (
        one.offer("b", 32 * MIB, 0.0, FAR, recompute_s=copy * 1.5).turn == Turn.SLOWER
    )  # because of the wait
    assert one.skipped == {Turn.LATE: 0, Turn.SLOWER: 2}


def test_soonest_deadline_first_then_first_come() -> None:
    one = link(slots=9)
    for key, deadline in (("a", 9.0), ("b", 3.0), ("c", 3.0), ("d", 5.0)):
        assert one.offer(key, MIB, 0.0, deadline).turn == Turn.QUEUED
    assert one.estimate(MIB, 0.0, 4.0)[0] == pytest.approx(2 * MIB / 25e9)  # behind b and c only
    order = []
    while (started := one.next(0.0)[0]) is not None:
        order.append(started.key)
    assert order == ["b", "c", "d", "a"]


def test_a_key_is_there_once() -> None:
    one = link(slots=1)
    assert one.offer("a", MIB, 0.0, FAR).turn == Turn.QUEUED
    assert one.offer("a", MIB, 0.0, FAR).turn == Turn.KNOWN
    assert one.next(0.0)[0] is not None
    assert one.offer("a", MIB, 0.0, FAR).turn == Turn.KNOWN
    assert not one.cancel("a")
    assert one.done("a", 1.0)
    assert not one.done("a", 1.0)
    assert one.offer("a", MIB, 0.0, FAR).turn == Turn.QUEUED
    assert one.cancel("a")
    assert not one.cancel("a")
    assert (one.running, one.waiting) == (0, 0)


def test_the_cap_spreads_the_starts() -> None:
    one = link(slots=8, cap=100 * MIB)
    assert one.speed == 100 * MIB
    for number in range(4):
        assert one.offer(number, 50 * MIB, 0.0, FAR).turn == Turn.QUEUED
    starts, now = [], 0.0
    while one.waiting:
        if one.next(now)[0] is not None:
            starts.append(now)
        now += 0.05
    assert starts == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=0.06)


def test_the_measured_speed_follows_the_copies() -> None:
    one = link()
    for _ in range(40):
        one.measure(32 * MIB, 32 * MIB / 5e9)
    assert one.speed == pytest.approx(5e9, rel=0.01)
    one.measure(1000, 1.0)  # too small to say anything
    assert one.speed == pytest.approx(5e9, rel=0.01)
    one.offer("a", 32 * MIB, 0.0, FAR)
    one.next(0.0)
    one.done("a", 1.0, seconds=1.0)
    assert one.speed < 5e9
    capped = link(cap=1e9)
    assert capped.speed == 1e9


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_r17_slots_and_deadlines_under_any_schedule(seed: int, slots: int) -> None:
    """Of a link that keeps its speed: never more than its slots, and what starts alone is in time."""
    rng = random.Random(seed)
    one = ReloadLink(slots, bytes_per_s=1000.0)
    now, running, queued = 0.0, {}, set()
    for number in range(60):
        now += rng.random() * 0.5
        deadline = now + rng.choice([0.1, 1.0, 4.0])
        nbytes = rng.choice([1, 100, 1500])
        offer = one.offer(number % 9, nbytes, now, deadline, rng.choice([0.2, 5.0]))
        busy = number % 9 in queued or number % 9 in running
        assert (offer.turn == Turn.KNOWN) == busy
        if offer.turn == Turn.QUEUED:
            assert now + offer.wait_s + offer.copy_s <= deadline
            queued.add(number % 9)
        while True:
            started, late = one.next(now)
            queued -= {reload.key for reload in late}
            if started is None:
                break
            assert now + started.nbytes / 1000.0 <= started.deadline_s
            queued.discard(started.key)
            running[started.key] = started
        assert len(running) == one.running <= slots
        assert len(queued) == one.waiting
        assert one.running == slots or not queued, "a free slot and somebody waiting"
        for key in [key for key in running if rng.random() < 0.4]:
            assert one.done(key, now)
            del running[key]
        if queued and rng.random() < 0.1:
            assert one.cancel(queued.pop())


def test_bad_arguments() -> None:
    for bad in ({"slots": 0}, {"bytes_per_s": 0.0}, {"cap_bytes_per_s": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            ReloadLink(**{"slots": 1, "bytes_per_s": 1.0, "cap_bytes_per_s": 0.0} | bad)
