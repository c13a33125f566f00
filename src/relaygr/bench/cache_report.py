"""What `bench cache --json` writes."""

from __future__ import annotations

import msgspec

from relaygr.bench.cache_control import ControlReport
from relaygr.bench.machine import Machine
from relaygr.sim.cache.curve import Curve
from relaygr.sim.cache.hits import Hits


class TierShare(msgspec.Struct, frozen=True, kw_only=True):
    """Of the visits, and of their history tokens, what came from where; the two of each kind add up to hits.

    Attributes:
        device_requests, host_requests: visits that reused something and copied nothing, or copied something.
        device_tokens, host_tokens: tokens that were there, and that were copied.
    """

    device_requests: float
    host_requests: float
    device_tokens: float
    host_tokens: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a ranking, of visits that are not their user's first."""

    mean_ms: float
    p50_ms: float
    p99_ms: float


class CacheArm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to keep states, on the same visits as the others.

    Attributes:
        device_bytes, host_bytes: of its tiers; host_dtype: how states lie in the host.
        per_s: returning visits a second, copies to the host included; median of all rounds.
        speedup: over no reuse, median of the ratios of each round; speedup_least and _most: of the rounds.
        latency: of returning visits; spill_share: of the time of all visits, what copies to the host took
            after them, and those from and to disk.
        hits: of all visits, as the engine served them; returning: of visits that are not their user's first.
        tiers: of all visits.
        decisions: visits that found something, by what was done about the tokens of the host.
        late_loads: that a pass had begun to use, and that were not there in time; declined_loads: not begun,
            because they would have been.
        loaded_bytes, stored_bytes: from and to the host; fetched_bytes, saved_bytes: from and to disk.
        lost_tokens: evicted from the device before the host had them; None without a host.
        max_score_diff: largest difference of a logit from no reuse; score_spread: standard deviation of the
            logits there.
    """

    name: str
    device_bytes: int
    host_bytes: int
    host_dtype: str
    per_s: float
    speedup: float
    speedup_least: float
    speedup_most: float
    latency: Latency
    spill_share: float
    hits: Hits
    returning: Hits
    tiers: TierShare
    decisions: dict[str, int]
    late_loads: int
    declined_loads: int
    fetched_bytes: int
    saved_bytes: int
    loaded_bytes: int
    stored_bytes: int
    lost_tokens: int | None
    max_score_diff: float
    score_spread: float


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One trace, replayed on real engines.

    Attributes:
        planned: visits that there are; visits: that were made in the time; returning: not their user's first.
        users: of the visits that were made; mean_tokens: history of a visit.
        footprint_bytes: of all users at their longest, on the device; the host has room for all of them.
        clean_target: share of the device that is kept free where there is a host: the longest user fits.
        ceiling: of a cache without limits; returning_ceiling: of visits that are not their user's first.
        rounds: equal parts of the visits, over which medians are taken.
    """

    name: str
    planned: int
    visits: int
    returning: int
    users: int
    mean_tokens: float
    footprint_bytes: int
    clean_target: float
    ceiling: Hits
    returning_ceiling: Hits
    rounds: int
    arms: list[CacheArm]

    def arm(self, name: str) -> CacheArm:
        """KeyError if there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; the first figures are those of device and host on the first workload.

    Attributes:
        speedup_device_host: returning visits a second, over no reuse.
        hit_ratio: of all visits; ceiling: what is left of it by first touches.
        p99_ratio: P99 of a returning visit over that of no reuse.
        kernel: why its dtype and route were chosen.
        policies: of one tier, replayed, whole users.
    """

    machine: Machine
    preset: str
    dtype: str
    kernel: str
    candidates: int
    seed: int
    speedup_device_host: float
    hit_ratio: Hits
    ceiling: Hits
    p99_ratio: float
    workloads: list[Workload]
    control: ControlReport
    policies: Curve | None
