"""The router: two laps on one owner, bounded load for new users, a next choice only for want of the first."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from router_fleet import T_LIFE_S, Fleet, refused, taken

from relaygr.relay.awaited import Awaited
from relaygr.relay.membership import Feedback, State
from relaygr.relay.pool import cap
from relaygr.relay.route import Lap, Refusal, Route, Spill


def test_cap_example() -> None:
    """In flight 10, 4, 3, 3 with equal weights: the cap is 7."""
    assert cap(1.25, 1 / 4, 20) == 7
    # A whole number stays what it is.
    assert cap(1.25, 0.2, 19) == 5


def test_a_busy_first_choice_is_skipped_for_new_users_only() -> None:
    fleet = Fleet("a", "b", "c", "d")
    placed = fleet.key_of("a")
    for name, count in (("a", 10), ("b", 4), ("c", 3), ("d", 3)):
        for number in range(count):
            assert fleet.rank(f"{name}{number}", hint=name) == name
    assert fleet.rank(placed, hint="a") == "a"
    fleet.router.done("a")
    key = fleet.key_of("a", start=50_000)
    found = fleet.router.route_prefix(key, fleet.now_s)
    assert isinstance(found, Route)
    assert (found.member != "a", found.spill, found.moved) == (True, Spill.LOAD, True)
    assert fleet.router.counts.spills == {Spill.LOAD: 1}
    # It stays where it was put, and those who are on the busy one stay too.
    assert fleet.rank(key) == found.member
    assert fleet.rank(placed) == "a"
    assert fleet.prefix(placed) == "a"
    assert fleet.router.counts.spills == {Spill.LOAD: 1}


@pytest.mark.parametrize(("kind", "hints"), [("blake2b", True), ("mix64", False)])
def test_r2_both_laps_of_100000_requests_hit_one_member(kind: str, hints: bool) -> None:
    fleet = Fleet("a", "b", "c", "d", hash=kind)
    router, rng = fleet.router, random.Random(7)
    waiting: list[tuple[str, str]] = []
    admitted = 0
    while admitted < 100_000 or waiting:
        if admitted < 100_000:
            key = f"u{int(20_000 * rng.random() ** 3)}"
            found = router.route_prefix(key, fleet.now_s)
            if isinstance(found, Route):
                waiting.append((key, found.member))
                admitted += 1
        if len(waiting) > 40 or admitted == 100_000:
            key, name = waiting.pop(rng.randrange(len(waiting)))
            assert fleet.rank(key, hint=name if hints else None) == name
            router.done(name)
            router.done(name)
        if not admitted % 100:
            fleet.wait(0.1)
    assert router.counts.misses == 0
    assert set(router.counts.spills) <= {Spill.LOAD}
    laps: Counter[Lap] = Counter()
    for (lap, _), count in router.counts.requests.items():
        laps[lap] += count
    assert laps == {Lap.PREFIX: 100_000, Lap.RANK: 100_000}
    assert [router.inflight(name) for name in "abcd"] == [0, 0, 0, 0]


def test_a_lost_record_is_no_matter_with_a_hint() -> None:
    fleet = Fleet("a", "b", placement_max=1)
    key, other = fleet.key_of("a"), fleet.key_of("b")
    assert fleet.rank(other, hint="a") == "a"
    fleet.prefix(key)
    assert fleet.rank(other, hint="a") == "a"
    assert fleet.router.counts.misses == 0


@pytest.mark.parametrize("state", [State.JOINING, State.ACTIVE, State.DRAINING])
def test_a_hint_is_followed_at_any_epoch(state: State) -> None:
    fleet = Fleet("a", "b", "c")
    key = fleet.key_of("a")
    assert fleet.prefix(key) == "a"
    fleet.router.members.down("c", fleet.now_s)
    if state is State.JOINING:
        fleet.router.members.down("a", fleet.now_s)
        fleet.poll()
    elif state is State.DRAINING:
        fleet.router.members.drain("a", fleet.now_s)
    assert fleet.router.members["a"].state is state
    for _ in range(50):
        assert fleet.rank(key, hint="a") == "a"
    assert fleet.router.counts.spills == {}


def test_a_hint_that_names_nobody_is_ignored() -> None:
    fleet = Fleet("a", "b")
    key = fleet.key_of("b")
    assert fleet.prefix(key) == "b"
    assert fleet.rank(key, hint="zzz") == "b"
    assert fleet.router.counts.misses == 1


def test_rank_goes_to_the_next_choice_when_its_member_is_down() -> None:
    fleet = Fleet("a", "b", "c")
    key = fleet.key_of("a")
    fleet.prefix(key)
    fleet.router.members.down("a", fleet.now_s)
    second = fleet.owner(key)
    found = fleet.router.route_rank(key, "a", fleet.now_s)
    assert isinstance(found, Route)
    assert (found.member, found.spill, found.moved) == (second, Spill.DOWN, True)
    assert fleet.router.counts.misses == 1
    # From now on the user is there, also when the first is back.
    fleet.wait(2)
    assert fleet.router.members["a"].takes
    assert fleet.rank(key) == fleet.prefix(key) == second
    assert fleet.router.counts.spills == {Spill.DOWN: 1}


def test_rank_goes_to_the_next_choice_when_its_member_refuses() -> None:
    fleet = Fleet("a", "b", "c")
    key = fleet.key_of("a")
    fleet.prefix(key)
    second = fleet.rank(key, avoid=("a",))
    third = fleet.rank(key, avoid=("a", second))
    assert {second, third} == {"b", "c"}
    assert refused(fleet.router.route_rank(key, None, fleet.now_s, ("a", "b", "c"))) == "no_instance"
    assert fleet.router.counts.spills == {Spill.REFUSED: 2}


def test_a_draining_member_gets_no_prefix() -> None:
    fleet = Fleet("a", "b")
    key = fleet.key_of("a")
    assert fleet.prefix(key) == "a"
    fleet.router.members.drain("a", fleet.now_s)
    assert fleet.rank(key) == "a"
    assert fleet.prefix(key) == "b"
    assert fleet.rank(key, hint="a") == "a"
    assert fleet.router.counts.spills == {Spill.DRAINING: 1}
    fleet.wait(T_LIFE_S)
    assert fleet.rank(key, hint="a") == "b"
    assert fleet.router.counts.spills == {Spill.DRAINING: 1, Spill.LEFT: 1}


def test_a_mismatched_member_serves_nobody() -> None:
    fleet = Fleet("a", "b", "c")
    key = fleet.key_of("a")
    fleet.prefix(key)
    fleet.said["a"] = Feedback("other", 32)
    fleet.poll()
    assert fleet.rank(key, hint="a") != "a"
    assert fleet.router.counts.spills == {Spill.MISMATCH: 1}


def test_old_feedback_ends_pre_inference_not_ranking() -> None:
    fleet = Fleet("a", "b", feedback_max_age_s=2.0)
    key = fleet.key_of("a")
    fleet.now_s += 2.001
    assert refused(fleet.router.route_prefix(key, fleet.now_s)) == "no_instance"
    assert fleet.rank(key) == "a"
    fleet.poll()
    assert fleet.prefix(key) == "a"


@pytest.mark.parametrize("load", [127, 128, 3000])
def test_a_hard_load_limit_refuses_pre_inference_never_ranking(load: int) -> None:
    fleet = Fleet("a")
    fleet.said["a"] = Feedback("build", 32, load=load)
    fleet.poll()
    found = fleet.router.route_prefix("u", fleet.now_s)
    if load < 128:
        assert taken(found) == "a"
    else:
        assert refused(found) == "load"
        assert fleet.router.counts.refusals == {Refusal.LOAD: 1}
    for number in range(1000):
        assert fleet.rank(f"u{number}") == "a"
    # As many in flight as there may be connections.
    assert refused(fleet.router.route_prefix("u", fleet.now_s)) == "load"


def test_without_members_nothing_is_routed() -> None:
    fleet = Fleet("a")
    fleet.router.members.down("a", fleet.now_s)
    for found in (
        fleet.router.route_prefix("u", fleet.now_s),
        fleet.router.route_rank("u", None, fleet.now_s),
        fleet.router.route_other("u", fleet.now_s),
        fleet.router.route_any(fleet.now_s),
    ):
        assert refused(found) == "no_instance"
    assert fleet.router.load_max_over_mean == fleet.router.keys_moved_ratio == 0.0


def test_everything_of_a_user_goes_to_one_member() -> None:
    fleet = Fleet("a", "b", "c")
    for number in range(100):
        key = f"u{number}"
        first = taken(fleet.router.route_other(key, fleet.now_s))
        assert fleet.prefix(key) == fleet.rank(key) == first
        assert taken(fleet.router.route_other(key, fleet.now_s)) == first


def test_moved_says_that_the_member_may_know_less() -> None:
    fleet = Fleet("a", "b", placement_ttl_s=5.0)
    router = fleet.router

    def moved(found: object) -> bool:
        assert isinstance(found, Route)
        return found.moved

    assert moved(router.route_other("u", fleet.now_s))
    assert not moved(router.route_prefix("u", fleet.now_s))
    assert not moved(router.route_rank("u", None, fleet.now_s))
    name = fleet.rank("u")
    fleet.now_s += 4.0
    fleet.poll()
    assert not moved(router.route_rank("u", name, fleet.now_s))
    fleet.now_s += 5.0
    assert moved(router.route_rank("u", name, fleet.now_s))


def test_requests_of_no_user_go_where_least_is_in_flight() -> None:
    fleet = Fleet("a", "b", "c")
    assert [taken(fleet.router.route_any(fleet.now_s)) for _ in range(6)] == ["a", "b", "c"] * 2
    fleet.router.done("b")
    assert taken(fleet.router.route_any(fleet.now_s)) == "b"


def test_a_random_owner_loses_affinity() -> None:
    """The ablation: a ranking meets its prefix once in N times, and every other time is counted."""
    fleet = Fleet("a", "b", "c", "d", random_owner=True)
    met = 0
    for number in range(4000):
        name = fleet.prefix(f"u{number % 500}")
        second = fleet.rank(f"u{number % 500}", hint=name)
        met += second == name
        fleet.router.done(name)
        fleet.router.done(second)
    assert met / 4000 == pytest.approx(0.25, abs=0.03)
    assert fleet.router.counts.misses == 4000 - met


def test_two_pools() -> None:
    """Prefixes go to the members that relay; rankings without one to those that only rank."""
    fleet = Fleet("a", "b", "c", "d", special_share=0.5)
    keys = [f"u{number}" for number in range(200)]
    assert {fleet.rank(key) for key in keys} == {"c", "d"}
    homes = [fleet.prefix(key) for key in keys]
    assert set(homes) == {"a", "b"}
    assert [fleet.rank(key) for key in keys] == homes
    for key in keys:
        fleet.router.release(key)
    assert {fleet.rank(key) for key in keys} == {"c", "d"}
    # Neither pool is left without anybody by the other.
    for name in "cd":
        fleet.router.members.down(name, fleet.now_s)
    assert {fleet.rank(key) for key in keys} == {"a", "b"}
    fleet.wait(100)
    for name in "ab":
        fleet.router.members.down(name, fleet.now_s)
    assert refused(fleet.router.route_prefix("u1", fleet.now_s)) == "no_instance"
    assert {fleet.rank(key) for key in keys} == {"c", "d"}


@pytest.mark.parametrize("kind", ["blake2b", "mix64"])
@pytest.mark.parametrize("count", [2, 9])
def test_r27_a_member_that_joins_or_leaves_moves_its_share(kind: str, count: int) -> None:
    names = [f"m{number}" for number in range(count)]
    fleet = Fleet(*names[:-1], hash=kind, ramp_s=10.0)
    keys = [f"u{number}" for number in range(20_000)]
    before = [fleet.owner(key) for key in keys]
    newcomer = names[-1]
    fleet.join(newcomer)
    ramping = [fleet.owner(key) for key in keys]
    fleet.wait(11.0)
    after = [fleet.owner(key) for key in keys]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(moved) <= 1.1 / count * len(keys)
    assert {new for _, new in moved} == {newcomer}
    assert fleet.router.keys_moved_ratio == pytest.approx(len(moved) / len(keys), abs=0.02)
    # It began with a tenth of its weight, and took nobody that it did not keep.
    early = [new for old, new in zip(before, ramping, strict=True) if old != new]
    assert len(early) / len(keys) == pytest.approx(0.1 / (count - 1 + 0.1), rel=0.2)
    assert all(new == newcomer for new, was in zip(after, ramping, strict=True) if was == newcomer)
    fleet.router.members.down(newcomer, fleet.now_s)
    assert [fleet.owner(key) for key in keys] == before
    assert fleet.router.keys_moved_ratio == pytest.approx(len(moved) / len(keys), abs=0.02)


def test_a_member_that_is_lost_and_comes_back_moves_no_placed_user() -> None:
    fleet = Fleet("a", "b", "c", ramp_s=0.0)
    keys = [f"u{number}" for number in range(300)]
    first = {key: fleet.prefix(key) for key in keys}
    for name in first.values():
        fleet.router.done(name)
    fleet.router.members.down("b", fleet.now_s)
    second = {key: fleet.rank(key) for key in keys}
    for name in second.values():
        fleet.router.done(name)
    assert {key for key in keys if first[key] != second[key]} == {key for key in keys if first[key] == "b"}
    fleet.poll()
    assert {key: fleet.rank(key) for key in keys} == second


def test_an_admitted_prefix_is_load_until_its_ranking_is_routed() -> None:
    fleet = Fleet("a", "b")
    router = fleet.router
    key = fleet.key_of("a")
    assert fleet.prefix(key) == "a"
    router.admitted(key, "a", fleet.now_s)
    assert router.inflight("a") == 1
    assert fleet.rank(key, hint="a") == "a"
    assert router.inflight("a") == 1  # the ranking itself
    router.done("a")
    assert router.inflight("a") == 0


def test_an_admitted_prefix_whose_ranking_never_comes_is_load_for_as_long_as_one_could() -> None:
    fleet = Fleet("a", "b")
    router = fleet.router
    key = fleet.key_of("a")
    for _ in range(2):  # the second signal of a user takes the place of the first
        assert fleet.prefix(key) == "a"
        router.admitted(key, "a", fleet.now_s)
    assert router.inflight("a") == 1
    fleet.wait(T_LIFE_S)
    assert fleet.prefix(fleet.key_of("b")) == "b"
    assert (router.inflight("a"), router.inflight("b")) == (0, 1)


def test_awaited_rankings_are_bounded() -> None:
    awaited = Awaited(10.0, limit=2)
    assert [awaited.put(key, key.upper(), 0.0) for key in "abc"] == [None, None, "A"]
    assert (len(awaited), awaited.take("a"), awaited.take("b"), awaited.take("b")) == (2, None, "B", None)
    assert list(awaited.expire(9.9)) == []
    assert list(awaited.expire(10.0)) == ["C"]


def test_users_of_a_member_that_was_down_come_home_while_they_are_active() -> None:
    fleet = Fleet("a", "b", placement_ttl_s=100.0, ramp_s=0.0)
    keys = [fleet.key_of("a", start=1000 * number) for number in range(20)]
    for key in keys:
        assert fleet.rank(key) == "a"
        fleet.router.done("a")
    said = fleet.said.pop("a")
    fleet.router.members.down("a", fleet.now_s)
    for key in keys:
        assert fleet.rank(key) == "b"
        fleet.router.done("b")
    fleet.said["a"] = said
    at_home: list[int] = []
    for _ in range(14):
        fleet.wait(10.0)
        owners = []
        for key in keys:
            owners.append(fleet.rank(key))
            fleet.router.done(owners[-1])
        at_home.append(owners.count("a"))
    assert at_home == sorted(at_home)
    assert at_home[0] < 10
    assert at_home[-1] == len(keys)
