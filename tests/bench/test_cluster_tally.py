"""Shares and counts of a cluster's visits."""

from __future__ import annotations

from relaygr.bench.cluster_tally import Visit, affinity_share, failed, hit_share, hung, moved_share, owners

VISITS = [
    Visit(user="a", took_ms=5, first="r0", second="r0", path="hit"),
    Visit(user="b", took_ms=50, first="r0", second="r1", path="full"),
    Visit(user="c", took_ms=101, first="r1", error="UnavailableError"),
    Visit(user="a", took_ms=6, second="r1", path="hit"),
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
