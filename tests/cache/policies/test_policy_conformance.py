"""What every replacement policy does."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
from policy_play import Play, reachable, state, users, weight

from relaygr.cache.policies import DEFAULT, POLICIES, PolicySettings, make
from relaygr.cache.policy import Policy, Victim, Weight

Make = Callable[..., Policy[Any]]


@pytest.fixture(params=POLICIES)
def new(request: pytest.FixtureRequest) -> Make:
    def build(capacity: int = 1000, **settings: Any) -> Policy[Any]:
        return make(request.param, capacity, PolicySettings(**settings))

    return build


def fill(policy: Policy[Any], keys: list[str], nbytes: int = 10) -> None:
    for key in keys:
        policy.touch(key)
        policy.insert(key, weight(nbytes))


def drain(policy: Policy[Any]) -> list[Victim[Any]]:
    victims = []
    while (victim := policy.evict()) is not None:
        victims.append(victim)
    return victims


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"policy: 'mru' is none of lru, .*gd_cost"):
        make("mru", 1)
    assert DEFAULT in POLICIES


def test_of_nothing_nothing_leaves(new: Make) -> None:
    policy = new()
    assert (len(policy), policy.evict(), "a" in policy) == (0, None, False)
    policy.touch("a")
    assert (len(policy), policy.evict(), "a" in policy) == (0, None, False)


def test_everything_leaves_once(new: Make) -> None:
    policy = new()
    keys = [f"u{i}" for i in range(100)]
    fill(policy, keys)
    for i in range(0, 100, 3):
        policy.touch(f"u{i}")
    assert len(policy) == 100
    assert all(key in policy for key in keys)
    assert sorted(victim.key for victim in drain(policy)) == sorted(keys)
    assert (len(policy), policy.evict()) == (0, None)


def test_keys_that_are_not_here_are_named(new: Make) -> None:
    policy = new()
    policy.touch("a")
    for call in (policy.remove, policy.park, policy.unpark):
        with pytest.raises(KeyError, match="a"):
            call("a")
    fill(policy, ["a"])
    policy.remove("a")
    with pytest.raises(KeyError, match="a"):
        policy.remove("a")
    policy.forget("a")
    policy.forget("never seen")
    assert len(policy) == 0


def test_parked_entries_never_leave(new: Make) -> None:
    """Whatever happens meanwhile: visits, other weights, others that come and go."""
    rng, policy = random.Random(3), new()
    play = Play(policy, 1000)
    for key, size in users(5, 300, 40, 60):
        play.visit(key, size)
    parked = rng.sample(sorted(play.sizes, key=str), 8)
    for key in parked:
        policy.park(key)
        policy.park(key)  # once is enough
    for step in range(2000):
        key = rng.randrange(60)
        policy.touch(key)
        if key in policy:
            policy.insert(key, weight(rng.randint(1, 60)))
        else:
            while len(policy) > 20 and (victim := policy.evict()) is not None:
                assert victim.key not in parked
            policy.insert(key, weight(rng.randint(1, 60)))
        if step % 3 == 0:
            policy.touch(rng.choice(parked))
    assert {victim.key for victim in drain(policy)}.isdisjoint(parked)
    assert len(policy) == len(parked)
    before = state(policy)
    assert policy.evict() is None
    assert state(policy) == before, "nothing may leave, and nothing changed"
    for key in parked:
        policy.unpark(key)
        policy.unpark(key)
    assert sorted(victim.key for victim in drain(policy)) == sorted(parked)


def test_parking_keeps_the_place(new: Make) -> None:
    """Who is unparked before anybody left leaves as if never parked."""
    plain, parking = new(), new()
    rng = random.Random(9)
    for policy in (plain, parking):
        fill(policy, [f"u{i}" for i in range(60)])
    for _ in range(300):
        key = f"u{rng.randrange(60)}"
        parking.park(key)
        for policy in (plain, parking):
            policy.touch(key)
        parking.unpark(key)
    assert drain(plain) == drain(parking)


def test_another_weight_keeps_the_number_of_entries(new: Make) -> None:
    policy = new()
    fill(policy, ["a", "b"])
    for nbytes in (20, 5, 90):
        policy.insert("a", weight(nbytes))
    assert len(policy) == 2
    assert sorted(victim.key for victim in drain(policy)) == ["a", "b"]


def test_decisions_are_the_same_again_and_do_not_depend_on_queries(new: Make) -> None:
    """M30: questions change nothing, not even who leaves next."""
    quiet, asked = Play(new(40_000), 40_000), Play(new(40_000), 40_000)
    for step, (key, size) in enumerate(users(1, 2000, 300)):
        before = state(asked.policy) if step % 500 == 0 else None
        assert (key in asked.policy) == (key in asked.sizes)
        assert len(asked.policy) == len(asked.sizes)
        if before is not None:
            assert state(asked.policy) == before
        quiet.visit(key, size)
        asked.visit(key, size)
    assert quiet.hits == asked.hits
    assert quiet.victims == asked.victims
    assert state(quiet.policy) == state(asked.policy)


def test_m30_a_one_shot_stream_always_evicts(new: Make) -> None:
    """After a working set that is visited often: each capacity of misses lets at least one old entry go."""
    policy = new(1000)
    play = Play(policy, 1000)
    for _ in range(50):
        for key in range(100):
            play.visit(key, 10)
    for number in range(10):
        before = len(play.victims)
        for key in range(100):
            play.visit(f"{number}/{key}", 10)
            assert f"{number}/{key}" in policy, "a newcomer comes"
        assert len(play.victims) - before >= 1
    assert {victim.key for victim in play.victims} & set(range(100)), "the old ones are not safe for ever"


def test_ties_do_not_freeze(new: Make) -> None:
    """Equal entries, each visited once: the newcomer stays and one that was here leaves."""
    policy = new(100)
    play = Play(policy, 100)
    for key in range(50):
        play.visit(key, 10)
        assert key in policy
    assert len(play.victims) == 40


def test_m31_one_call_takes_out_one_victim(new: Make) -> None:
    policy = new(1000)
    fill(policy, [f"u{i}" for i in range(100)])
    victim = policy.evict()
    assert victim is not None
    assert len(policy) == (100 if victim.keep_tokens else 99)


def test_visits_count(new: Make) -> None:
    """The counters move: who is visited again and again outlives a stream of others as long as the tier."""
    policy = new(1000)
    play = Play(policy, 1000)
    hits = 0
    for i in range(3000):
        play.visit(i, 10)
        if i % 3 == 0:
            hits += play.visit("hot", 10)
    assert hits > 960


def test_what_is_remembered_is_bounded(new: Make) -> None:
    policy = new(1000, ghost_entries=64)
    play = Play(policy, 1000)
    for key in range(4000):
        play.visit(f"user {key}", 10)
        policy.touch(f"absent {key}")
    names = {thing for thing in reachable(policy) if isinstance(thing, str) and "user" in thing}
    absent = {thing for thing in reachable(policy) if isinstance(thing, str) and "absent" in thing}
    assert len(names) + len(absent) <= len(policy) + 4 * 64
    gc.collect()
    assert sum(len(thing) for thing in reachable(policy) if isinstance(thing, (dict, list, set))) < 3000


@pytest.mark.parametrize("where", ["here", "parked", "gone", "returning"])
def test_forget_leaves_nothing(new: Make, where: str) -> None:
    policy, key = new(1000), "forgotten"
    fresh = new(1000)
    others = [f"u{i}" for i in range(99)]
    fill(policy, [key])
    fill(policy, others)
    policy.touch(key)
    if where == "parked":
        policy.park(key)
    elif where in ("gone", "returning"):
        policy.remove(key)
        fill(policy, ["more"])
        if where == "returning":
            policy.touch(key)
    assert any(thing == key for thing in reachable(policy)) or where in ("gone", "returning")
    policy.forget(key)
    assert key not in policy
    assert not any(thing == key for thing in reachable(policy))
    assert all(other in policy for other in others)
    fill(policy, [key])
    assert key in policy, "and it may come back"
    fill(fresh, others)
    drain(policy)
    drain(fresh)
    assert len(policy) == len(fresh) == 0


def test_a_zero_weight_is_no_error(new: Make) -> None:
    policy = new(1000)
    policy.insert("a", Weight(0, 0, 0.0, 5.0))
    policy.insert("b", Weight(1, 1, float("inf"), 0.0))
    assert sorted(victim.key for victim in drain(policy)) == ["a", "b"]


def test_what_is_remembered_can_be_named_and_forgotten(new: Make) -> None:
    rng, policy = random.Random(4), new(400)
    names = [f"user {number}" for number in range(200)]
    play = Play(policy, 400)
    for _ in range(3000):
        play.visit(rng.choice(names), rng.randint(1, 40))
    remembered = set(policy.remembered())
    assert remembered <= set(names)
    assert not any(key in policy for key in remembered)
    known = {thing for thing in reachable(policy) if isinstance(thing, str) and thing in names}
    assert known == remembered | {name for name in names if name in policy}
    for key in remembered:
        policy.forget(key)
    assert not set(policy.remembered())
    assert not {thing for thing in reachable(policy) if isinstance(thing, str)} & remembered
