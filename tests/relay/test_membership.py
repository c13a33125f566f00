"""Members come, ramp, drain, leave and fall: each change is an epoch."""

from __future__ import annotations

import pytest
from router_fleet import T_LIFE_S, Fleet, member

from relaygr.relay.membership import Feedback, State


def test_configured_members_are_active_at_once() -> None:
    fleet = Fleet("a", "b")
    assert [one.state for one in fleet.router.members] == [State.ACTIVE] * 2
    assert fleet.router.epoch == 1


def test_a_newcomer_ramps_from_a_tenth() -> None:
    fleet = Fleet("a", "b", ramp_s=60.0)
    router = fleet.router
    fleet.join("c", weight=2.0)
    assert router.members["c"].state is State.JOINING
    assert router.epoch == 2
    weights = []
    for _ in range(60):
        weights.append(router.members.weight("c", fleet.now_s))
        fleet.wait(1.0)
        router.members.advance(fleet.now_s)
    assert weights[0] == pytest.approx(0.2)
    assert weights == sorted(weights)
    assert weights[30] == pytest.approx(2 * 0.55, abs=0.07)
    assert router.members["c"].state is State.ACTIVE
    assert router.members.weight("c", fleet.now_s) == 2.0
    assert router.epoch == 3


def test_draining_lasts_t_life_then_the_member_has_left() -> None:
    fleet = Fleet("a", "b")
    router = fleet.router
    router.members.drain("a", fleet.now_s)
    assert (router.members["a"].state, router.epoch) == (State.DRAINING, 2)
    fleet.wait(T_LIFE_S - 0.01)
    router.members.advance(fleet.now_s)
    assert router.members["a"].state is State.DRAINING
    fleet.wait(0.01)
    router.members.advance(fleet.now_s)
    assert (router.members["a"].state, router.epoch) == (State.LEFT, 3)
    fleet.wait(5)
    # Ready or not, it was drained by hand.
    assert router.members["a"].state is State.LEFT
    router.members.activate("a", fleet.now_s)
    fleet.poll()
    assert router.members["a"].state is State.JOINING


def test_a_drain_taken_back() -> None:
    fleet = Fleet("a", "b")
    fleet.router.members.drain("a", fleet.now_s)
    fleet.router.members.activate("a", fleet.now_s)
    assert (fleet.router.members["a"].state, fleet.router.epoch) == (State.ACTIVE, 3)


def test_a_member_that_says_it_drains_returns_when_it_says_ready() -> None:
    fleet = Fleet("a", "b")
    fleet.said["a"] = Feedback("build", 32, draining=True, ready=False)
    fleet.poll()
    assert fleet.router.members["a"].state is State.DRAINING
    fleet.wait(1.0)
    fleet.router.members.advance(fleet.now_s)
    assert fleet.router.members["a"].state is State.LEFT
    fleet.said["a"] = Feedback("build", 32)
    fleet.poll()
    assert fleet.router.members["a"].state is State.JOINING


def test_missed_polls_put_a_member_down_and_one_answer_forgives_them() -> None:
    fleet = Fleet("a", "b", down_after=3)
    members = fleet.router.members
    members.miss("a", fleet.now_s)
    members.miss("a", fleet.now_s)
    fleet.poll()
    members.miss("a", fleet.now_s)
    members.miss("a", fleet.now_s)
    assert members["a"].state is State.ACTIVE
    members.miss("a", fleet.now_s)
    assert (members["a"].state, members.epoch) == (State.DOWN, 2)
    fleet.poll()
    assert (members["a"].state, members.epoch) == (State.JOINING, 3)


def test_a_member_that_starts_counts_as_missed() -> None:
    fleet = Fleet("a", "b", down_after=2)
    fleet.said["a"] = Feedback(ready=False)
    fleet.poll()
    fleet.poll()
    assert fleet.router.members["a"].state is State.DOWN


def test_a_fleet_that_starts_together_does_not_ramp() -> None:
    fleet = Fleet("a", "b", ramp_s=60.0)
    members = fleet.router.members
    members.down("b", fleet.now_s)
    members["b"].was_up = False
    fleet.wait(10)
    assert members["b"].state is State.ACTIVE


def test_the_only_member_does_not_ramp() -> None:
    fleet = Fleet("a")
    fleet.router.members.down("a", fleet.now_s)
    fleet.wait(100)
    assert fleet.router.members["a"].state is State.ACTIVE


def test_without_a_ramp_a_member_is_active_at_once() -> None:
    fleet = Fleet("a", "b", ramp_s=0.0)
    fleet.router.members.down("b", fleet.now_s)
    fleet.poll()
    assert fleet.router.members["b"].state is State.ACTIVE


@pytest.mark.parametrize("other", [Feedback("other", 32), Feedback("build", 64)])
def test_members_unlike_most_serve_nobody(other: Feedback) -> None:
    """A rollout: one member first, half of them, most of them."""
    fleet = Fleet("a", "b", "c", "d")
    mismatched = []
    for name in "abcd":
        fleet.said[name] = other
        fleet.poll()
        mismatched.append("".join(one.member.id for one in fleet.router.members if one.mismatched))
    assert mismatched == ["a", "ab", "d", ""]
    assert fleet.router.members.mismatches == 3


def test_members_that_say_nothing_of_themselves_match() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.said["c"] = Feedback()
    fleet.poll()
    assert not any(one.mismatched for one in fleet.router.members)


def test_a_member_is_not_added_twice() -> None:
    fleet = Fleet("a")
    with pytest.raises(ValueError, match="member already"):
        fleet.router.members.add(member("a"), fleet.now_s)
    fleet.router.members.remove("a", fleet.now_s)
    fleet.router.members.add(member("a"), fleet.now_s)
    assert not fleet.router.members["a"].takes
    fleet.poll()
    assert fleet.router.members["a"].takes
