"""Shares and counts of a cluster's visits."""

from __future__ import annotations

from relaygr.bench.cluster_tally import (
    Visit,
    affinity_share,
    failed,
    hit_share,
    hung,
    moved_share,
    owners,
    percentile_ms,
    unsettled_s,
)

VISITS = [
    Visit(user="a", at_s=1, took_ms=5, first="r0", second="r0", path="hit"),
    Visit(user="b", at_s=2, took_ms=50, first="r0", second="r1", path="full"),
    Visit(user="c", at_s=3, took_ms=101, first="r1", error="UnavailableError"),
    Visit(user="a", at_s=4, took_ms=6, second="r1", path="hit"),
]


def test_shares_leave_out_what_was_not_answered() -> None:
    assert affinity_share(VISITS) == 0.5
    assert hit_share(VISITS) == 2 / 3
    assert affinity_share(VISITS[2:]) is None
    assert hit_share(VISITS[2:3]) is None


def test_failures_and_those_that_hang() -> None:
    assert failed(VISITS) == 1
    assert (hung(VISITS, 100), hung(VISITS, 101), hung(VISITS, 10)) == (1, 0, 2)


def test_moved_users_are_those_with_another_owner() -> None:
    after = owners(VISITS)
    assert after == {"a": "r1", "b": "r1"}
    assert moved_share({"a": "r0", "b": "r1", "z": "r0"}, after) == 0.5
    assert moved_share({}, after) is None


def test_unsettled_until_the_last_visit_that_is_not_as_before() -> None:
    good, split, lost, answered_once = VISITS
    missed = Visit(user="d", at_s=9, took_ms=5, first="r0", second="r0", path="full")
    assert unsettled_s([good, split], 0.5) == 1.5
    assert unsettled_s([good, lost], 0.5) == 2.5
    assert unsettled_s([answered_once, good], 0.5) == 3.5
    assert unsettled_s([good, missed], 4.0) == 5.0
    assert unsettled_s([good, split], 2.5) == 0.0
    assert unsettled_s([good], 0.5) == 0.0


def test_percentiles_are_nearest_ranks() -> None:
    hundred = [Visit(user="a", at_s=0, took_ms=number) for number in range(100, 0, -1)]
    assert [percentile_ms(hundred, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile_ms(hundred[:1], 0.5) == 100
    assert percentile_ms([], 0.99) == 0.0
