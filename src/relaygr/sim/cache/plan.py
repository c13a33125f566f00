"""`plan cache`: what tiers of given sizes hold, hit and gain with a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from relaygr.cache.policies import PolicySettings
from relaygr.cache.speeds import Compute, Link
from relaygr.core.errors import ConfigError
from relaygr.relay.latency import Coefficients
from relaygr.sim.cache.curve import Capacity, Curve, Progress, draw
from relaygr.sim.cache.hits import PLAIN_COSTS, Costs
from relaygr.sim.cache.sizing import BreakEven, Room, Shape, Tier, break_even, staging_bytes, tier_of
from relaygr.sim.cache.trace import Trace

TierMode = Literal["exclusive", "inclusive"]
_MANY_USERS = 1_000_000
_REACH = {"device": "device", "host": "with host", "disk": "with disk"}


class Tiers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and formats of the tiers.

    Attributes:
        dtype: of rows on the device; `host_dtype` of those below it, `same` as on the device or narrower.
        disk_bytes, host_bytes: 0 for no such tier.
        mode: `exclusive` tiers hold each user once; in `inclusive` ones the lower holds all of the upper.
        page_tokens, run_chunk_tokens: units of the device, and of host and disk.
        full_tokens: the longest history, if none of the trace's is longer.
        staging_tokens: that a staging buffer takes.
    """

    dtype: str = "bf16"
    host_dtype: str = "same"
    device_bytes: int = 2 << 30
    host_bytes: int = 4 << 30
    disk_bytes: int = 0
    mode: TierMode = "exclusive"
    page_tokens: int = 32
    run_chunk_tokens: int = 1024
    full_tokens: int = 8192
    staging_tokens: int = 8192

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("device_bytes", self.device_bytes, 1, 2**54),
            ("host_bytes", self.host_bytes, 0, 2**54),
            ("disk_bytes", self.disk_bytes, 0, 2**60),
            ("page_tokens", self.page_tokens, 1, 2**20),
            ("run_chunk_tokens", self.run_chunk_tokens, 1, 2**20),
            ("full_tokens", self.full_tokens, 1, 2**20),
            ("staging_tokens", self.staging_tokens, 1, 2**30),
        ):
            if not low <= value <= high:
                raise ConfigError(f"tiers.{name}", f"{value} must be in [{low}, {high}]")
        if self.run_chunk_tokens % self.page_tokens:
            raise ConfigError(
                "tiers.run_chunk_tokens",
                f"{self.run_chunk_tokens} must be a multiple of page_tokens, {self.page_tokens}",
            )

    @property
    def lower_dtype(self) -> str:
        return self.dtype if self.host_dtype == "same" else self.host_dtype

    def rooms(self, shape: Shape) -> list[Room]:
        """The tiers that there are, the device first."""
        above, below = shape.token_bytes(self.dtype), shape.token_bytes(self.lower_dtype)
        rooms = [Room("device", self.device_bytes, above, self.page_tokens)]
        for name, nbytes in (("host", self.host_bytes), ("disk", self.disk_bytes)):
            if nbytes:
                rooms.append(Room(name, nbytes, below, self.run_chunk_tokens))
        return rooms


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A link to the device from a tier, and what waits for it."""

    name: str
    bytes_per_s: float
    fix_ms: float = 0.0
    queue_ms: float = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass takes, and how many candidates it scores."""

    coefficients: Coefficients
    candidates: int

    @property
    def costs(self) -> Costs:
        return Costs(t1=self.coefficients.t1_ms, t2=self.coefficients.t2_ms)

    @property
    def compute(self) -> Compute:
        known = self.coefficients
        return Compute(known.t1_ms, known.t2_ms, known.t0_ms, known.t1c_ms, known.t2c_ms)


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be said before anything runs.

    Attributes:
        token_bytes, lower_token_bytes: on the device, and on host and disk.
        full_user_bytes, many_bytes: of one user and of a million with the longest history, on the device.
        curve: of the shares that were asked for, and of the tiers, each together with those above it; in
            bytes of the device's format, as many as hold the same users.
        links: empty if nothing is known of what passes cost.
    """

    shape: Shape
    tiers: Tiers
    token_bytes: int
    lower_token_bytes: int
    full_user_bytes: int
    many_bytes: int
    rooms: tuple[Tier, ...]
    staging_bytes: int
    curve: Curve
    links: tuple[BreakEven, ...]


def plan_cache(
    shape: Shape,
    tiers: Tiers,
    trace: Trace,
    *,
    policies: Sequence[str],
    capacities: Sequence[Capacity],
    ways: Sequence[Way] = (),
    load: Load | None = None,
    settings: PolicySettings | None = None,
    progress: Progress = lambda text: None,
) -> CachePlan:
    """Plan tiers for users of this shape who come as in the trace.

    Args:
        capacities: further points of the curve.
        load: None leaves out when copies are worth it, and counts costs as `Costs` does by default.

    Raises:
        ConfigError: naming what is wrong.
    """
    tiers = replace(tiers, full_tokens=max(tiers.full_tokens, int(trace.length.max())))
    token_bytes, below = shape.token_bytes(tiers.dtype), shape.token_bytes(tiers.lower_dtype)
    rooms = tiers.rooms(shape)
    held = tuple(tier_of(room, tiers.full_tokens, trace.peaks) for room in rooms)
    costs = PLAIN_COSTS if load is None else load.costs
    curve = draw(
        trace,
        policies,
        [*capacities, *_reaches(held, token_bytes, tiers.mode)],
        costs=costs,
        settings=settings,
        token_bytes=token_bytes,
        progress=progress,
    )
    full = rooms[0].user_bytes(tiers.full_tokens)
    return CachePlan(
        shape=shape,
        tiers=tiers,
        token_bytes=token_bytes,
        lower_token_bytes=below,
        full_user_bytes=full,
        many_bytes=_MANY_USERS * full,
        rooms=held,
        staging_bytes=staging_bytes(shape, (tiers.dtype, tiers.lower_dtype), tiers.staging_tokens),
        curve=curve,
        links=tuple(_link(shape, tiers, way, load) for way in ways) if load is not None else (),
    )


def _reaches(held: Sequence[Tier], token_bytes: int, mode: TierMode) -> list[Capacity]:
    """Each tier together with those above it, as a capacity of the device's format."""
    found, tokens = [], 0
    for tier in held:
        tokens = tokens + tier.user_tokens if mode == "exclusive" else max(tokens, tier.user_tokens)
        found.append(Capacity(_REACH[tier.name], nbytes=tokens * token_bytes))
    return found


def _link(shape: Shape, tiers: Tiers, way: Way, load: Load) -> BreakEven:
    return break_even(
        way.name,
        Link(way.bytes_per_s, way.fix_ms),
        load.compute,
        queue_ms=way.queue_ms,
        candidates=load.candidates,
        layers=shape.layers,
        token_bytes=shape.token_bytes(tiers.lower_dtype),
        page_tokens=tiers.page_tokens,
        tokens=tiers.full_tokens,
        limit_tokens=tiers.full_tokens,
    )
