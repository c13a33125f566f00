"""What the parts of one instance share."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from relaygr.core.state import Ref
from relaygr.relay.expander import Expander
from relaygr.relay.latency import LatencyModel
from relaygr.relay.link import ReloadLink
from relaygr.relay.loads import LoadMeter
from relaygr.relay.returns import Returns
from relaygr.sim.chunks import ChunkPlans
from relaygr.sim.costs import Noise
from relaygr.sim.keeper import Keeper
from relaygr.sim.shelf import Shelf
from relaygr.sim.timeline import Timeline
from relaygr.sim.world import World

_PART_BYTES = 2 << 20
_NOISE_DRAWS = 8  # of a run of many steps, whose scatter evens out


@dataclass(slots=True)
class Counts:
    """Since the start.

    Attributes:
        ranked: rankings; `computed`: history tokens of chunks; `admitted`: signals; `wasted`: holds that no
            ranking used.
        copied_in_bytes, copied_out_bytes: from and to host memory.
    """

    ranked: int = 0
    computed: int = 0
    chunks: int = 0
    admitted: int = 0
    wasted: int = 0
    reloads: int = 0
    spills: int = 0
    copied_in_bytes: int = 0
    copied_out_bytes: int = 0


class Stored(msgspec.Struct, frozen=True):
    """So much of a prefix, already compared with it."""

    tokens: int
    nbytes: int

    def valid_for(self, ref: Ref) -> int:
        return self.tokens


@dataclass(slots=True)
class Site:
    """One instance's clock, costs, memory and meters."""

    world: World
    timeline: Timeline
    keeper: Keeper
    latency: LatencyModel
    plans: ChunkPlans
    noise: Noise
    returns: Returns[int]
    link: ReloadLink
    expander: Expander[int]
    meter: LoadMeter = field(default_factory=LoadMeter)
    counts: Counts = field(default_factory=Counts)
    shelf: Shelf = field(init=False)

    def __post_init__(self) -> None:
        self.shelf = self.keeper.shelf

    @classmethod
    def of(
        cls,
        world: World,
        timeline: Timeline,
        keeper: Keeper,
        latency: LatencyModel,
        plans: ChunkPlans,
        noise: Noise,
    ) -> Site:
        """A process that has just started."""
        host = world.host
        returns: Returns[int] = Returns(host.d_ttl_s)
        link = ReloadLink(host.reload_slots, world.costs.link_bytes_per_s, host.reload_bytes_per_s)
        expander = Expander(link, returns, host.spill_min_reuse, host.spill_queue_max)
        return cls(world, timeline, keeper, latency, plans, noise, returns, link, expander)

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    def scattered(self, ends_s: tuple[float, ...]) -> tuple[float, ...]:
        """The ends of chunks as they will be, not as the model has them."""
        draws, mean_ms = min(len(ends_s), _NOISE_DRAWS), 1000 * ends_s[-1] / len(ends_s)
        ratio = sum(self.noise.ratio(mean_ms, chunk=True) for _ in range(draws)) / draws
        return ends_s if ratio == 1.0 else tuple(end_s * ratio for end_s in ends_s)

    def stored(self, tokens: int) -> Stored | None:
        """What a tier has of a prefix."""
        return Stored(tokens, self.world.prefix_bytes(tokens)) if tokens else None

    def parts_s(self, whole_s: float) -> tuple[float, ...]:
        """When the parts of a copy end: each is of so many bytes, and none takes longer than a chunk."""
        part_s = min(_PART_BYTES / self.world.costs.link_bytes_per_s, self.world.budgets.chunk_ms / 1000)
        parts = max(-int(-whole_s // part_s), 1)
        return tuple(whole_s * (part + 1) / parts for part in range(parts))
