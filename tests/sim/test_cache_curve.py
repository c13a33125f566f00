"""Curves over capacities, and the verdict on the default policy."""

from __future__ import annotations

import pytest
from cache_traces import trace_of
from msgspec.structs import replace

from relaygr.cache.policies import POLICIES, make
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.compare import compare, judge
from relaygr.sim.cache.curve import Capacity, Curve, draw, stock_of
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import PLAIN_COSTS, Hits
from relaygr.sim.cache.replay import prepare, replay

SMALL = TraceSpec(users=150)


def test_a_curve_has_every_point_and_the_ceiling() -> None:
    trace = generate(replace(SMALL, scan=0.3))
    capacities = [Capacity("10%", share=0.1), Capacity("1MiB", nbytes=2**20)]
    curve = draw(trace, ("lru", "gd_cost"), capacities, token_bytes=64)
    assert [(point.capacity, point.policy) for point in curve.points] == [
        ("10%", "lru"), ("10%", "gd_cost"), ("1MiB", "lru"), ("1MiB", "gd_cost"),
    ]  # fmt: skip
    assert curve.stock.base_bytes == 64 * trace.base_tokens
    assert curve.stock.footprint_bytes == 64 * trace.footprint_tokens
    # Shares are of the users who return, bytes are bytes.
    assert curve.point("lru", "10%").capacity_bytes == int(6.4 * trace.base_tokens)
    assert curve.point("lru", "1MiB").capacity_bytes == 2**20
    for point in curve.points:
        assert point.replay.hits.all.cost_hit < curve.stock.ceiling.cost_hit
    with pytest.raises(KeyError):
        curve.point("arc", "10%")


def test_stock_counts_pages_and_the_whole_day_beside_what_is_counted() -> None:
    stock = stock_of(trace_of([(0, 10), (1, 33), (0, 20), (0, 20)]), PLAIN_COSTS, 4, 32)
    assert (stock.footprint_bytes, stock.base_bytes, stock.user_bytes) == (384, 384, 192.0)
    assert (stock.requests, stock.users, stock.warmup) == (4, 2, 1)
    assert stock.hours == pytest.approx(3 / 3600)
    assert (stock.ceiling_day.request_hit, stock.ceiling.request_hit) == (0.5, 2 / 3)


def test_it_says_when_a_figure_says_little() -> None:
    twice = trace_of([(0, 10), (1, 10)] * 2)
    few = draw(twice, ("lru",), [Capacity("100%", share=1.0), Capacity("50%", share=0.5)])
    assert [point.fits for point in few.points] == [True, False]
    (fits,) = few.warnings
    assert fits.startswith("100%: all 2 users fit (20 B)")
    once = draw(trace_of([(user, 10) for user in range(9)]), ("lru",), [Capacity("9", nbytes=9)])
    assert once.warnings[0] == "9, lru: 6 histories were too long for it"
    assert once.warnings[1].startswith("1.0 requests a user")


def test_what_cannot_be_drawn() -> None:
    trace = trace_of([(0, 10), (0, 10)])
    with pytest.raises(ConfigError, match=r"policies: 'best' is none of lru, "):
        draw(trace, ("lru", "best"), [Capacity("9", nbytes=9)])
    with pytest.raises(ConfigError, match=r"policies: none is given"):
        draw(trace, (), [Capacity("9", nbytes=9)])
    with pytest.raises(ConfigError, match=r"capacities: '1%' is 6 bytes, a page takes 64"):
        draw(trace, ("lru",), [Capacity("1%", share=0.01)], token_bytes=64)


def cost_hits(curve: Curve, figures: dict[str, float]) -> Curve:
    """The curve with these cost-hits at its only capacity."""
    points = []
    for point in curve.points:
        hit = Hits(
            requests=1, tokens=1, cost=1.0, request_hit=0.5, token_hit=0.5, cost_hit=figures[point.policy]
        )
        hits = replace(point.replay.hits, all=hit)
        points.append(replace(point, replay=replace(point.replay, hits=hits)))
    return replace(curve, points=tuple(points))


@pytest.mark.parametrize(
    ("lru", "arc", "default", "gain", "passes"),
    [
        (0.50, 0.60, 0.595, None, True),
        (0.50, 0.60, 0.585, None, False),  # behind the best
        (0.60, 0.50, 0.595, None, True),
        (0.60, 0.50, 0.585, None, False),  # behind LRU
        (0.50, 0.50, 0.551, 0.05, True),
        (0.50, 0.50, 0.549, 0.05, False),  # before LRU, but not enough
        (0.50, 0.57, 0.555, 0.05, False),
    ],
)
def test_the_verdict(lru: float, arc: float, default: float, gain: float | None, passes: bool) -> None:
    curve = draw(trace_of([(0, 10), (0, 10)]), ("lru", "arc", "gd_cost"), [Capacity("9", nbytes=9)])
    verdict = judge(cost_hits(curve, {"lru": lru, "arc": arc, "gd_cost": default}), "9", gain)
    assert verdict.passes is passes
    assert (verdict.cost_hit, verdict.lru) == (default, lru)
    assert verdict.best == max(lru, arc, default)


def test_a_comparison_has_both_traces_at_the_same_capacities() -> None:
    found = compare(SMALL, ("lru", "gd_cost"))
    plain, scan = found.tables
    assert (plain.scan, scan.scan) == (0.0, 0.3)
    for one, other in zip(plain.curve.points, scan.curve.points, strict=True):
        assert (one.policy, one.capacity_bytes) == (other.policy, other.capacity_bytes)
        assert one.replay.hits.all.cost_hit > other.replay.hits.all.cost_hit
    assert [verdict.wanted_gain for verdict in plain.verdicts] == [None] * 4
    assert [verdict.wanted_gain for verdict in scan.verdicts] == [0.05, None, None, None]
    assert found.passes is all(one.passes for table in found.tables for one in table.verdicts)
    for missing in ("lru", "gd_cost"):
        with pytest.raises(ConfigError, match=f"policies: {missing!r} is missing"):
            compare(SMALL, ("arc", *{"lru", "gd_cost"} - {missing}))


@pytest.mark.slow
def test_m28_the_default_on_the_published_day() -> None:
    """Within a point of the best, never more than one behind LRU, five before it beside one-time users."""
    found = compare(TraceSpec(), POLICIES)
    assert [verdict for table in found.tables for verdict in table.verdicts if not verdict.passes] == []


def test_the_default_holds_on_to_users_who_return() -> None:
    """A tenth of the published day: the same order at the smallest capacity, beside one-time users."""
    trace = generate(TraceSpec(users=2000, scan=0.3))
    curve = draw(trace, ("lru", "gd_cost"), [Capacity("2%", share=0.02)])
    verdict = judge(curve, "2%", 0.05)
    assert verdict.passes
    assert verdict.best_policy == "gd_cost"


def test_replays_of_one_course_do_not_know_of_each_other() -> None:
    trace = generate(SMALL)
    curve = draw(trace, ("lru", "gd_cost"), [Capacity("5%", share=0.05)])
    capacity = curve.points[0].capacity_bytes
    assert replay(prepare(trace, PLAIN_COSTS), make("gd_cost", capacity), capacity) == curve.points[1].replay
