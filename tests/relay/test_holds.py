"""The book of live prefixes: each way to leave it, its bound, and who still waits for what."""

from __future__ import annotations

import pytest

from relaygr.relay.holds import Cause, HoldBook, Left, State

KIB, LIFE = 1024, 0.3


def book(bound: int = 10 * KIB) -> HoldBook[str]:
    return HoldBook(bound, LIFE)


def ready_book(*signals_s: float) -> HoldBook[str]:
    """One READY prefix, claimed at each of the times."""
    holds = book()
    for now in signals_s or (0.0,):
        assert holds.reserve("u", KIB, now)
    assert holds.produce("u")
    assert holds.ready("u", 0.0)
    return holds


def cause(left: Left[str] | None) -> Cause:
    assert left is not None
    return left.cause


def test_a_prefix_that_is_consumed() -> None:
    holds = book()
    assert holds.state("u") is None
    assert holds.reserve("u", KIB, 0.0)
    assert (holds.state("u"), holds.live_bytes, holds.claims("u")) == (State.RESERVED, KIB, 1)
    generation = holds.generation("u")
    assert holds.produce("u")
    assert holds.state("u") is State.PRODUCING
    assert not holds.pin("u")
    assert holds.ready("u", 0.1)
    assert holds.pin("u")
    assert (holds.state("u"), holds.pins("u"), holds.claims("u")) == (State.PINNED, 1, 0)
    assert holds.by_state() == dict.fromkeys(State, 0) | {State.PINNED: KIB}
    assert holds.counts() == dict.fromkeys(State, 0) | {State.PINNED: 1}
    # Its time is over, but it is being read.
    assert holds.expire(5.0) == []
    assert holds.unpin("u", 5.0) == Left("u", generation, KIB, State.PINNED, Cause.CONSUMED)
    assert (holds.live_bytes, len(holds), holds.pins("u")) == (0, 0, 0)
    assert holds.expire(9.0) == []


def test_the_bound_is_on_what_is_live() -> None:
    holds = book(3 * KIB)
    assert all(holds.reserve(key, KIB, 0.0) for key in "abc")
    assert not holds.reserve("d", 1, 0.0)
    assert not holds.reserve("a", KIB + 1, 0.0)
    assert (holds.live_bytes, holds.claims("a"), holds.state("d")) == (3 * KIB, 1, None)
    assert holds.reserve("a", KIB, 0.0)
    assert (holds.live_bytes, holds.claims("a")) == (3 * KIB, 2)
    assert holds.cancel("b")
    assert holds.reserve("a", 2 * KIB, 0.0)
    assert holds.live_bytes == 3 * KIB


def test_the_513th_prefix_of_the_example() -> None:
    holds: HoldBook[int] = HoldBook(16 << 30, LIFE)
    assert all(holds.reserve(key, 32 << 20, 0.0) for key in range(512))
    assert not holds.reserve(512, 32 << 20, 0.0)


def test_two_signals_are_two_claims_and_the_second_ranking_ends_it() -> None:
    holds = ready_book(0.0, 0.1)
    assert holds.pin("u")
    assert holds.unpin("u", 0.2) is None
    assert holds.state("u") is State.READY
    assert holds.pin("u")
    assert cause(holds.unpin("u", 0.2)) is Cause.CONSUMED


def test_pins_are_shared() -> None:
    holds = ready_book(0.0, 0.0)
    assert holds.pin("u")
    assert holds.pin("u")
    assert holds.pins("u") == 2
    assert holds.unpin("u", 9.0) is None
    assert holds.state("u") is State.PINNED
    assert holds.unpin("u", 9.0) is not None
    assert holds.unpin("u", 9.0) is None


def test_a_pin_keeps_its_neighbours_claim() -> None:
    """The first to rank takes the claim that ends first, whosever it was."""
    holds = ready_book(0.0, 0.2)
    assert holds.pin("u")
    assert holds.expire(0.3) == []
    assert holds.unpin("u", 0.4) is None
    assert holds.expire(0.49) == []
    # It was read once, so that it was not made for nothing.
    assert [left.cause for left in holds.expire(0.5)] == [Cause.CONSUMED]


def test_a_claim_that_has_ended_keeps_nothing_even_before_the_sweep() -> None:
    holds = ready_book(0.0, 0.0)
    assert holds.pin("u")
    assert cause(holds.unpin("u", 0.3)) is Cause.CONSUMED


def test_a_ranking_without_a_signal_claims_first() -> None:
    holds = ready_book(0.0)
    assert holds.claim("u", 0.1)
    assert holds.pin("u")
    assert holds.unpin("u", 0.1) is None
    assert holds.claims("u") == 1
    assert not holds.claim("nobody", 0.1)


def test_a_signal_extends_the_hold_and_what_it_holds() -> None:
    holds = ready_book(0.0)
    assert holds.reserve("u", 2 * KIB, 0.2)
    assert (holds.state("u"), holds.live_bytes) == (State.READY, 2 * KIB)
    assert not holds.produce("u")
    assert holds.expire(0.49) == []
    assert [left.nbytes for left in holds.expire(0.5)] == [2 * KIB]


def test_a_part_may_be_ready_and_gives_the_rest_back() -> None:
    holds = book()
    assert holds.reserve("u", 4 * KIB, 0.0)
    assert holds.ready("u", 0.0, nbytes=3 * KIB)
    assert (holds.state("u"), holds.live_bytes) == (State.READY, 3 * KIB)
    assert not holds.ready("u", 0.0)


def test_nobody_ranked() -> None:
    holds = ready_book(0.0)
    assert holds.expire(0.299) == []
    assert [(left.key, left.cause, left.state) for left in holds.expire(0.3)] == [
        ("u", Cause.ORPHAN, State.READY)
    ]
    assert holds.live_bytes == 0


def test_when_to_sweep_next() -> None:
    holds = book()
    assert holds.next_end_s() is None
    holds.reserve("u", KIB, 1.0)
    holds.reserve("v", KIB, 2.0)
    assert holds.next_end_s() == 1.0 + LIFE
    holds.expire(1.0 + LIFE)
    assert holds.next_end_s() == 2.0 + LIFE
    # Never later than something can leave: a prefix that nobody waits for any more can at once.
    holds.produce("v")
    holds.expire(3.0)
    holds.ready("v", 3.0)
    assert holds.next_end_s() == 3.0
    assert [left.key for left in holds.expire(3.0)] == ["v"]
    assert holds.next_end_s() is None


def test_a_ranking_after_all() -> None:
    holds = ready_book(0.0)
    assert not holds.came_late("u", 0.2)
    holds.expire(0.3)
    assert holds.came_late("u", 0.4)
    assert not holds.came_late("u", 0.4)
    assert holds.reserve("v", KIB, 0.4)
    holds.expire(0.7)
    assert not holds.came_late("v", 1.1)


def test_a_new_signal_forgets_that_the_one_before_ended() -> None:
    holds = ready_book(0.0)
    holds.expire(0.3)
    assert holds.reserve("u", KIB, 0.4)
    assert not holds.came_late("u", 0.5)


def test_only_some_orphans_are_remembered() -> None:
    holds: HoldBook[int] = HoldBook(1 << 40, LIFE)
    for key in range(5000):
        holds.reserve(key, 1, 0.0)
    assert len(holds.expire(1.0)) == 5000
    assert sum(holds.came_late(key, 1.0) for key in range(5000)) == 4096


def test_a_reservation_that_nobody_produces_ends() -> None:
    holds = book()
    holds.reserve("u", KIB, 0.0)
    assert [left.state for left in holds.expire(LIFE)] == [State.RESERVED]


def test_a_production_in_progress_keeps_its_bytes_when_nobody_waits() -> None:
    for finish, expected in (("ready", Cause.ORPHAN), ("cancel", Cause.ORPHAN)):
        holds = book()
        holds.reserve("u", KIB, 0.0)
        holds.produce("u")
        assert holds.expire(1.0) == []
        assert (holds.claims("u"), holds.live_bytes) == (0, KIB)
        if finish == "ready":
            assert holds.ready("u", 1.0)
            assert [left.cause for left in holds.expire(1.0)] == [expected]
        else:
            assert cause(holds.cancel("u")) is expected
        assert holds.live_bytes == 0


@pytest.mark.parametrize("start", [HoldBook.produce, HoldBook.reload])
def test_its_ranking_was_over_before_it_was_ready(start: object) -> None:
    holds = book()
    holds.reserve("u", KIB, 0.0)
    assert start(holds, "u")  # type: ignore[operator]
    assert holds.release("u", 0.1) is None
    assert holds.release("u", 0.1) is None
    assert holds.ready("u", 0.2)
    assert [left.cause for left in holds.expire(0.2)] == [Cause.LATE]


def test_a_late_prefix_may_still_be_read() -> None:
    holds = book()
    holds.reserve("u", KIB, 0.0)
    holds.produce("u")
    holds.release("u", 0.1)
    holds.ready("u", 0.2)
    assert holds.pin("u")
    assert holds.expire(9.0) == []
    assert cause(holds.unpin("u", 9.0)) is Cause.CONSUMED


def test_a_request_that_is_withdrawn() -> None:
    holds = book()
    holds.reserve("u", KIB, 0.0)
    assert cause(holds.release("u", 0.1)) is Cause.LATE
    holds = ready_book(0.0, 0.0)
    assert holds.release("u", 0.1) is None
    assert cause(holds.release("u", 0.1)) is Cause.CANCELLED
    assert holds.release("u", 0.1) is None


def test_a_failure_is_a_miss_for_all_who_wait() -> None:
    for start in (None, HoldBook.produce, HoldBook.reload):
        holds = book()
        holds.reserve("u", KIB, 0.0)
        holds.reserve("u", KIB, 0.0)
        if start:
            start(holds, "u")
        assert cause(holds.cancel("u")) is Cause.CANCELLED
        assert (holds.live_bytes, holds.cancel("u")) == (0, None)


def test_r3_what_is_ready_is_not_cancelled() -> None:
    holds = ready_book(0.0)
    assert holds.cancel("u") is None
    assert holds.pin("u")
    assert holds.cancel("u") is None
    assert holds.state("u") is State.PINNED


def test_a_deleted_user() -> None:
    assert book().forget("u") is None
    holds = ready_book(0.0)
    assert cause(holds.forget("u")) is Cause.CANCELLED
    holds = ready_book(0.0)
    holds.expire(1.0)
    holds.forget("u")
    assert not holds.came_late("u", 1.0)


def test_a_user_who_is_deleted_while_the_prefix_is_read() -> None:
    holds = ready_book(0.0, 0.0, 0.0)
    assert holds.pin("u")
    assert holds.forget("u") is None
    assert not holds.pin("u")
    assert not holds.reserve("u", 1, 0.0)
    assert not holds.claim("u", 0.0)
    assert holds.live_bytes == KIB
    assert cause(holds.unpin("u", 0.1)) is Cause.CONSUMED
    assert holds.reserve("u", 1, 0.0)


def test_a_user_who_is_deleted_while_the_prefix_is_written() -> None:
    holds = book()
    holds.reserve("u", KIB, 0.0)
    holds.produce("u")
    assert holds.forget("u") is None
    assert not holds.ready("u", 0.1)
    assert holds.live_bytes == KIB
    assert cause(holds.cancel("u")) is Cause.CANCELLED


def test_a_stale_generation_is_refused_everywhere() -> None:
    holds = book()
    holds.reserve("u", KIB, 0.0)
    old = holds.generation("u")
    holds.cancel("u")
    holds.reserve("u", KIB, 0.0)
    new = holds.generation("u")
    assert old != new
    assert not holds.produce("u", old)
    assert not holds.reload("u", old)
    assert not holds.ready("u", 0.0, old)
    assert holds.cancel("u", old) is None
    assert holds.release("u", 0.0, old) is None
    assert holds.ready("u", 0.0, new)
    assert not holds.pin("u", old)
    assert holds.pin("u", new)
    assert holds.unpin("u", 0.0, old) is None
    assert holds.unpin("u", 0.0, new) is not None


def test_r40_a_lower_bound_waits_until_so_much_has_drained() -> None:
    holds = book(4 * KIB)
    for key in "abc":
        holds.reserve(key, KIB, 0.0)
    assert not holds.propose(2 * KIB)
    assert (holds.bound_bytes, holds.limit_bytes, holds.live_bytes) == (4 * KIB, 2 * KIB, 3 * KIB)
    assert not holds.reserve("d", 1, 0.0)
    # Another signal of a live prefix takes no bytes.
    assert holds.reserve("a", KIB, 0.0)
    holds.cancel("b")
    assert (holds.bound_bytes, holds.limit_bytes) == (2 * KIB, 2 * KIB)
    assert not holds.reserve("d", 1, 0.0)


def test_r40_a_higher_bound_holds_at_once_and_ends_a_drain() -> None:
    holds = book(2 * KIB)
    holds.reserve("a", 2 * KIB, 0.0)
    assert not holds.propose(KIB)
    assert holds.propose(3 * KIB)
    assert (holds.bound_bytes, holds.limit_bytes) == (3 * KIB, 3 * KIB)
    assert holds.reserve("b", KIB, 0.0)


def test_a_shorter_life_counts_for_new_claims() -> None:
    holds = ready_book(0.0)
    holds.t_life_s = 0.05
    holds.reserve("u", KIB, 0.1)
    assert holds.expire(0.2) == []
    assert len(holds.expire(0.3)) == 1


def test_ends_of_claims_do_not_pile_up() -> None:
    holds: HoldBook[int] = HoldBook(1 << 40, 1e6)
    holds.reserve(-1, 1, 0.0)
    holds.ready(-1, 0.0)
    for key in range(5000):
        holds.reserve(key, 1, 0.0)
        holds.ready(key, 0.0)
        holds.pin(key)
        holds.unpin(key, 0.0)
    assert len(holds._ends) < 100
    assert [left.key for left in holds.expire(1e6)] == [-1]
