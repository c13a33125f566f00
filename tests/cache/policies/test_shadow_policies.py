"""Shadow policies: what a sample of the users says of a whole tier."""

from __future__ import annotations

import math
from hashlib import blake2b

import pytest
from policy_play import reachable
from session_traffic import DAY_S, cost_hit, day, weigh

from relaygr.cache.distinct import Distinct
from relaygr.cache.policies import POLICIES, PolicySettings
from relaygr.cache.shadow import ENOUGH_USERS, ShadowPolicies, ShadowReport, Trial, users_needed

POINT = 0.01


def shadowed(
    names: tuple[str, ...], users: int, capacity: float, share: float, salt: int = 0
) -> tuple[ShadowReport, ...]:
    requests, footprint = day(0, users)
    shadows: ShadowPolicies[str] = ShadowPolicies(
        names, int(capacity * footprint), weigh, share=share, salt=b"%d" % salt
    )
    for request in requests:
        if request.at_s < DAY_S / 3:
            shadows.restart()
        shadows.visit(request.user, request.user, request.tokens)
    return shadows.reports()


def test_m32_a_sample_says_what_the_whole_saves() -> None:
    names = ("lru", "gd_cost", "arc", "slru", "s3fifo", "gdsf_cost", "wtinylfu")
    for report in shadowed(names, 3000, 0.25, 0.25):
        assert report.is_enough
        assert report.cost_hit == pytest.approx(cost_hit(report.policy, 0, 3000, False, 0.25), abs=2 * POINT)


def test_m32_a_sample_that_is_too_small_says_so() -> None:
    (lru, slru, tlru) = shadowed(("lru", "slru", "tlru"), 3000, 0.05, 0.2)
    assert 20 < lru.users_held < ENOUGH_USERS
    assert not lru.is_enough
    (lru, slru, tlru) = shadowed(("lru", "slru", "tlru"), 3000, 0.1, 0.2)
    assert ENOUGH_USERS < lru.users_held < 100
    assert (lru.is_enough, slru.is_enough, tlru.is_enough) == (True, False, False)


@pytest.mark.slow
@pytest.mark.parametrize("salt", range(4))
@pytest.mark.parametrize("share", [0.02, 0.08])
@pytest.mark.parametrize("capacity", [0.1, 0.25])
def test_m32_whoever_says_enough_is_within_two_points(capacity: float, share: float, salt: int) -> None:
    names = tuple(name for name in POLICIES if not math.isinf(users_needed(name)))
    for report in shadowed(names, 20_000, capacity, share, salt):
        print(report.policy, round(report.users_held), round(report.cost_hit, 3), report.is_enough)
        if report.is_enough:
            whole = cost_hit(report.policy, 0, 20_000, False, capacity)
            assert report.cost_hit == pytest.approx(whole, abs=2 * POINT)


def test_all_users_are_the_whole_tier() -> None:
    requests, footprint = day(0, 300)
    shadows: ShadowPolicies[str] = ShadowPolicies(POLICIES, footprint // 5, weigh, share=1.0)
    trials: list[Trial[str]] = [Trial(name, footprint // 5, weigh, PolicySettings()) for name in POLICIES]
    for request in requests:
        shadows.visit(request.user, request.user, request.tokens)
        for trial in trials:
            trial.visit(request.user, weigh(request.tokens))
            assert trial.used_bytes <= trial.capacity_bytes
    assert [report.saved_ms for report in shadows.reports()] == [trial.saved_ms for trial in trials]
    assert {report.visits for report in shadows.reports()} == {len(requests)}


def test_what_is_reused() -> None:
    trial: Trial[str] = Trial("lru", 1000, weigh, PolicySettings())
    assert [trial.visit("a", weigh(tokens)) for tokens in (100, 110, 125)] == [0, 100, 110]
    assert trial.saved_ms == weigh(100).rec_ms + weigh(110).rec_ms
    assert trial.visit("a", weigh(60)) == 60, "a shorter request uses a part of what is here"
    assert trial.used_bytes == 125, "which stays"
    assert trial.visit("b", weigh(2000)) == trial.visit("b", weigh(2000)) == 0, "too long for the tier"
    assert trial.visit("a", weigh(125)) == 125
    assert trial.visit("c", weigh(900)) == 0
    assert (trial.visit("a", weigh(125)), trial.used_bytes) == (0, 125)


def test_the_tail_leaves_first_under_tlru() -> None:
    trial: Trial[str] = Trial("tlru", 2000, weigh, PolicySettings())
    trial.visit("a", weigh(1200))
    trial.visit("b", weigh(1200))
    assert trial.used_bytes == 707 + 1200
    assert trial.visit("a", weigh(1210)) == 707


def test_the_sample_is_a_share_of_the_users_and_always_the_same() -> None:
    first: ShadowPolicies[str] = ShadowPolicies(["lru"], 1000, weigh, share=0.1)
    again: ShadowPolicies[str] = ShadowPolicies(["lru"], 5, weigh, share=0.1)
    other: ShadowPolicies[str] = ShadowPolicies(["lru"], 1000, weigh, share=0.1, salt=b"other")
    users = [f"u{i}" for i in range(5000)]
    sample = [user for user in users if first.samples(user)]
    assert sample == [user for user in users if again.samples(user)]
    assert sample != [user for user in users if other.samples(user)]
    assert 400 < len(sample) < 600
    for user in users:
        first.visit(user, user, 10)
    assert first.reports()[0].visits == len(sample)


def test_nothing_shadowed_costs_and_says_nothing() -> None:
    shadows: ShadowPolicies[str] = ShadowPolicies([], 1000, weigh)
    shadows.visit("a", "a", 10)
    assert shadows.reports() == ()
    (report,) = ShadowPolicies(["lru", "lru"], 1000, weigh).reports()
    assert (report.cost_hit, report.is_enough) == (0.0, False)


def test_forget_leaves_nothing() -> None:
    shadows: ShadowPolicies[str] = ShadowPolicies(POLICIES, 1000, weigh, share=1.0)
    for user in ("forgotten", *(f"u{i}" for i in range(99))):
        shadows.visit(user, user, 10)
    assert "forgotten" in {thing for thing in reachable(shadows) if isinstance(thing, str)}
    shadows.forget("forgotten")
    assert "forgotten" not in {thing for thing in reachable(shadows) if isinstance(thing, str)}
    shadows.forget("forgotten")


def test_what_is_remembered_of_sizes_is_bounded() -> None:
    settings = PolicySettings(ghost_entries=10)
    shadows: ShadowPolicies[str] = ShadowPolicies(["lru"], 100, weigh, share=1.0, settings=settings)
    for user in range(3000):
        shadows.visit(f"u{user}", f"u{user}", 10)
    assert sum(isinstance(thing, str) and thing.startswith("u") for thing in reachable(shadows)) < 1100


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01])
def test_shares_out_of_range_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"share: {share} must be above 0"):
        ShadowPolicies(["lru"], 1, weigh, share=share)


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="mru"):
        ShadowPolicies(["mru"], 1, weigh)


@pytest.mark.parametrize("n", [0, 1, 50, 3000, 30_000])
def test_distinct_hashes(n: int) -> None:
    seen = Distinct()
    for i in [*range(n), *range(n)]:
        seen.add(int.from_bytes(blake2b(b"%d" % i, digest_size=8).digest(), "little"))
    assert seen.count() == pytest.approx(n, rel=0.03)
