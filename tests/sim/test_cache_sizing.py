"""The sizing tool's published figures, what tiers hold, and from which length on a copy is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from cache_traces import trace_of

from relaygr.cache.chooser import Found, Way, time_of
from relaygr.cache.speeds import Compute, Link
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB, KIB, MIB, format_bytes
from relaygr.relay.latency import Coefficients
from relaygr.sim.cache import plan
from relaygr.sim.cache.curve import Capacity
from relaygr.sim.cache.plan import CachePlan, Load, Tiers, plan_cache
from relaygr.sim.cache.sizing import BreakEven, Room, Shape, break_even, staging_bytes, tier_of

SMALL = Shape(layers=3, heads=4, qk_dim=128, v_dim=128)
LARGE = Shape(layers=8, heads=4, qk_dim=256, v_dim=256)
PEAKS = np.array([100, 1024, 1025, 8192], np.int64)


def test_m35_the_published_figures() -> None:
    assert SMALL.token_bytes("bf16") == 6 * KIB
    assert LARGE.token_bytes("bf16") == 32 * KIB
    assert Shape(layers=5, heads=4, qk_dim=128, v_dim=128).token_bytes("fp16") == 10 * KIB
    small, large = Room("device", 0, 6 * KIB, 32), Room("device", 0, 32 * KIB, 32)
    assert small.user_bytes(8192) == 48 * MIB
    assert large.user_bytes(4096) == 128 * MIB
    pool = 102_400 * 32 * 6 * KIB
    assert format_bytes(pool) == "18.75 GiB"
    assert tier_of(Room("device", pool, 6 * KIB, 32), 8192, PEAKS).full_users == 400
    assert format_bytes(10**6 * small.user_bytes(8192)) == "45.78 TiB"
    assert format_bytes(10**6 * large.user_bytes(4096)) == "122.1 TiB"


def test_m35_staging() -> None:
    """Two buffers for each direction: 8,192 tokens of 4 KiB a layer are 32 MiB each."""
    assert LARGE.row_bytes("bf16") == 4 * KIB
    assert staging_bytes(LARGE, ("bf16",), 8192) == 128 * MIB
    assert staging_bytes(LARGE, ("bf16", "int8"), 8192) == 128 * MIB
    assert staging_bytes(LARGE, ("bf16", "fp32"), 8192) == 256 * MIB


def test_eight_bits_have_a_scale_a_row() -> None:
    shape = Shape(layers=4, heads=4, qk_dim=64, v_dim=64)
    assert shape.token_bytes("int8") == shape.token_bytes("fp8") == 4 * 4 * 2 * (64 + 2)
    assert shape.token_bytes("fp32") / shape.token_bytes("int8") == pytest.approx(3.88, abs=0.005)


def test_users_take_whole_units() -> None:
    pages = tier_of(Room("device", 1000 * 32 * 6, 6, 32), 8192, PEAKS)
    chunks = tier_of(Room("host", 1000 * 32 * 6, 6, 1024), 8192, PEAKS)
    assert (pages.tokens, chunks.tokens) == (32_000, 31_744)
    # 4 + 32 + 33 + 256 pages, 1 + 1 + 2 + 8 chunks for the four.
    assert (pages.users, chunks.users) == (1000 * 4 // 325, 31 * 4 // 12)
    assert (pages.user_tokens, chunks.user_tokens) == (1000 * 10_341 // 325, 31 * 10_341 // 12)
    assert (pages.full_users, chunks.full_users) == (3, 3)
    with pytest.raises(ConfigError, match=r"tiers\.host_bytes: 6143 is less than 1024 tokens, 6144"):
        tier_of(Room("host", 6143, 6, 1024), 8192, PEAKS)


def even(
    compute: Compute, link: Link, *, queue_ms: float = 0.0, tokens: int = 4096, limit: int = 4096
) -> BreakEven:
    return break_even(
        "host",
        link,
        compute,
        queue_ms=queue_ms,
        candidates=256,
        layers=8,
        token_bytes=32 * KIB,
        page_tokens=32,
        tokens=tokens,
        limit_tokens=limit,
    )


@pytest.mark.parametrize(
    ("t1", "t2", "queue", "recompute", "load", "best", "split", "way"),
    [
        (0.002, 5e-7, 0.0, 13.42, 5.13, 4.56, 3328, Way.SPLIT),
        (0.002, 5e-7, 10.0, 13.42, 15.13, 13.42, 0, Way.RECOMPUTE),
        (0.0004, 1e-7, 0.0, 2.68, 5.03, 2.17, 1568, Way.SPLIT),
    ],
)
def test_the_published_cases_of_load_or_recompute(
    t1: float, t2: float, queue: float, recompute: float, load: float, best: float, split: int, way: Way
) -> None:
    found = even(Compute(t1, t2), Link(25 * GIB), queue_ms=queue)
    times = (found.recompute_ms, found.load_ms, found.best_ms)
    assert times == pytest.approx((recompute, load, best), abs=0.006)
    assert (found.split_tokens, found.way) == (split, way)


@pytest.mark.parametrize("queue", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("compute", [Compute(0.002, 5e-7), Compute(0.0004, 1e-7), Compute(0.0011, 2e-7)])
def test_from_its_break_even_on_every_history_is_copied_quicker(compute: Compute, queue: float) -> None:
    link, limit = Link(25 * GIB, 0.02), 12_000
    found = even(compute, link, queue_ms=queue, limit=limit)

    def gains(length: int) -> bool:
        whole = Found(length, 0, length, 256, 32 * KIB, 32)
        times = [time_of(x, whole, link, compute, queue, 8).total_ms for x in (length, 0)]
        return times[0] < times[1]

    if found.from_tokens is None:
        assert not gains(limit)
        return
    assert all(gains(length) for length in range(found.from_tokens, limit + 1, 17))
    assert found.from_tokens == 1 or not gains(found.from_tokens - 1)


def test_a_quick_processor_moves_the_break_even() -> None:
    """A slow one gains from copies at once; a quick one only where the pairs of a history count."""
    link = Link(25 * GIB)
    assert even(Compute(0.002, 5e-7), link).from_tokens == 1
    quick = even(Compute(0.0004, 1e-7), link, limit=20_000).from_tokens
    # 1.221 us to copy a token; to compute it 0.4 us, and half of 0.1 ns for each token of the history.
    assert quick == pytest.approx(16_400, rel=0.05)


def test_a_link_that_is_never_worth_it() -> None:
    found = even(Compute(0.002, 5e-7), Link(25 * GIB), queue_ms=100.0)
    assert found.from_tokens is None
    assert found.way is Way.RECOMPUTE


def planned(tiers: Tiers, load: Load | None = None) -> CachePlan:
    trace = trace_of([(user, 900 + user) for user in range(40)] * 3)
    ways = [plan.Way(name="host", bytes_per_s=4e9)]
    capacities = [Capacity("10%", share=0.1)]
    return plan_cache(SMALL, tiers, trace, policies=("lru",), capacities=capacities, ways=ways, load=load)


def test_tiers_reach_as_far_as_they_hold_together() -> None:
    sizes = {"device_bytes": 60 * MIB, "host_bytes": 120 * MIB, "disk_bytes": 240 * MIB}
    apart = planned(Tiers(**sizes))  # type: ignore[arg-type]
    assert [tier.name for tier in apart.rooms] == ["device", "host", "disk"]
    # 29 pages a user of about 920 tokens, or one chunk.
    assert [tier.users for tier in apart.rooms] == [10, 20, 40]
    reach = {point.capacity: point.capacity_bytes for point in apart.curve.points}
    tokens = [tier.user_tokens for tier in apart.rooms]
    assert reach["device"] == 6144 * tokens[0]
    assert reach["with host"] == 6144 * sum(tokens[:2])
    assert reach["with disk"] == 6144 * sum(tokens)
    nested = planned(Tiers(mode="inclusive", **sizes))  # type: ignore[arg-type]
    reach = {point.capacity: point.capacity_bytes for point in nested.curve.points}
    assert [reach[name] for name in ("device", "with host", "with disk")] == [6144 * one for one in tokens]
    # All 40 users fit in 70 places, and it says so.
    assert any(text.startswith("with disk: all 40 users fit") for text in apart.curve.warnings)
    assert apart.curve.point("lru", "with disk").replay.hits.all.request_hit == 1


def test_a_full_user_is_as_long_as_the_longest_of_the_trace() -> None:
    assert planned(Tiers()).full_user_bytes == 48 * MIB
    assert planned(Tiers(full_tokens=512)).full_user_bytes == 30 * 32 * 6 * KIB  # 939 tokens


def test_eight_bits_below_hold_more_users() -> None:
    same, int8 = planned(Tiers(host_bytes=120 * MIB)), planned(Tiers(host_bytes=120 * MIB, host_dtype="int8"))
    assert int8.lower_token_bytes == 3 * 4 * 2 * 130
    assert int8.token_bytes == same.token_bytes == same.lower_token_bytes == 6 * KIB
    assert int8.rooms[1].users == 120 * MIB // (1024 * 3120) > 1.9 * same.rooms[1].users


def test_links_need_to_know_what_passes_cost() -> None:
    assert planned(Tiers()).links == ()
    known = Coefficients(t0_ms=1.0, t1_ms=0.002, t2_ms=5e-7, t_launch_ms=0.5)
    found = planned(Tiers(full_tokens=2048), Load(coefficients=known, candidates=0))
    (link,) = found.links
    assert (link.link, link.tokens, link.limit_tokens) == ("host", 2048, 2048)
    assert link.recompute_ms == pytest.approx(1 + 0.002 * 2048 + 5e-7 * 2048 * 2049 / 2)
    assert found.curve.costs.t1 == 0.002


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_bytes", 0),
        ("host_bytes", -1),
        ("disk_bytes", 2**60 + 1),
        ("page_tokens", 0),
        ("run_chunk_tokens", 1000),
        ("full_tokens", 0),
        ("staging_tokens", 0),
    ],
)
def test_bad_tiers(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"tiers\.{field}: {value} must be "):
        Tiers(**{field: value})


def test_bad_shapes() -> None:
    with pytest.raises(ConfigError, match=r"shape\.heads: 0 must be in \[1, 1024\]"):
        Shape(layers=1, heads=0, qk_dim=1, v_dim=1)
    with pytest.raises(ConfigError, match="dtype: 'fp64' is none of fp32, bf16"):
        SMALL.row_bytes("fp64")
