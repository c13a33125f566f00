"""One thing changed at a time: variants, loads, host hits, popularity, bursts, instances and their fate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from relaygr.core.units import MIB
from relaygr.sim.lab import Lab, Progress, silent
from relaygr.sim.protocol import find_rate
from relaygr.sim.tally import Result
from relaygr.sim.traffic import Bursts, Regime
from relaygr.sim.variants import VARIANTS
from relaygr.sim.world import Change, Kind

_FAST_LINK_BYTES_PER_S = 1e15
_FACTORS = (0.25, 0.5, 1.0, 1.5)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation of a sweep; `rate` is requests a second that were offered to the fleet."""

    label: str
    variant: str
    rate: float
    result: Result


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that differ in one thing, `axis`; `regime` is that of their traffic."""

    name: str
    axis: str
    regime: str
    rows: tuple[Row, ...]

    def row(self, label: str, name: str = "relay_full") -> Row:
        """The row of a label and variant; KeyError without one."""
        for one in self.rows:
            if (one.label, one.variant) == (label, name):
                return one
        raise KeyError(label, name)


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rates that pass, by number of instances; None where none did."""

    instances: int
    variant: str
    best: float | None


class Bench:
    """Sweeps around one operating point; every method is one sweep.

    Args:
        lab: the world, and the traffic without what is set here.
        rates: requests a second of the whole fleet, by regime, that the relay serves well.
        length: of histories.
    """

    def __init__(
        self, lab: Lab, rates: Mapping[Regime, float], length: int, progress: Progress = silent
    ) -> None:
        self._lab, self._rates, self._length, self._progress = lab, rates, length, progress

    def variants(self, regime: Regime, factors: Sequence[float] = _FACTORS) -> Sweep:
        """Every variant, at parts and multiples of the load."""
        return self._loads("variants", [one.name for one in VARIANTS], factors, self._of(regime))

    def normal(self, factors: Sequence[float] = _FACTORS) -> Sweep:
        """Short histories that are never at risk, half of the users, beside the others."""
        names = ("inline_full", "relay_full", "relay_no_trigger")
        return self._loads("normal traffic", names, factors, self._of("first_touch", short_share=0.5))

    def host_hits(self, shares: Sequence[float] = (0.0, 0.1, 0.5, 1.0)) -> Sweep:
        """So many users find their whole history in the host memory of their instance."""
        labs = [(f"{share:.0%}", self._of("first_touch", host_share=share)) for share in shares]
        return self._sweep("host hits", "in host", labs)

    def popular(self, exponents: Sequence[float] = (0.0, 0.8, 1.0)) -> Sweep:
        """Requests draw their users by Zipf's law."""
        users = 100 * self._lab.world.instances
        warm = max(self._lab.traffic.warmup, 4 * users)  # most have been here before it counts
        labs = [(f"{one:g}", self._of("popular", users=users, zipf=one, warmup=warm)) for one in exponents]
        return self._sweep("popularity", "Zipf", labs)

    def bursts(self, factors: Sequence[float] = (1.0, 2.0, 4.0)) -> Sweep:
        """The same requests, some of them in bursts."""
        labs = [(f"{one:g}", self._of("first_touch", bursts=Bursts(factor=one))) for one in factors]
        return self._sweep("bursts", "burst", labs, ("inline_full", "relay_full"))

    def interference(self) -> Sweep:
        """So little device memory that states are spilled and reloaded all the time.

        Once with copies that take no time, and once with copies that do; at half of the load, since close to
        what the instances can do every percent of work more is many of waiting.
        """
        lab = self._of("sessions")
        world, traffic = lab.world, replace(lab.traffic, rate=lab.traffic.rate / 2)
        live = traffic.rate / world.instances * world.budgets.t_life_ms / 1000
        tokens = max(3 * live, 24) * self._length
        few = replace(world, device_bytes=max(int(tokens * world.costs.token_bytes), 4 * MIB))
        free = replace(world.costs, link_bytes_per_s=_FAST_LINK_BYTES_PER_S, link_ms=0.0)
        # Users who come back when they have been spilled.
        away = replace(traffic, gap_taus=4 * traffic.gap_taus)
        worlds = (("free", replace(few, costs=free)), ("timed", few))
        return self._sweep(
            "interference", "copies", [(label, lab.other(world=one, traffic=away)) for label, one in worlds]
        )

    def kill(self) -> Sweep:
        """One instance is killed after a quarter of the load, and is back, cold, at the half."""
        return self._befalls("kill", [(0.25, "kill", 0), (0.5, "join", 0)])

    def scaling(self) -> Sweep:
        """One more instance at a quarter of the load, and one leaves at the half."""
        more = self._lab.world.instances
        return self._befalls("scaling", [(0.25, "join", more), (0.5, "drain", 0)])

    def rollout(self) -> Sweep:
        """One instance after another moves to the next build, from a quarter of the load on."""
        count = self._lab.world.instances
        return self._befalls("rollout", [(0.25 + 0.25 * n / count, "rollout", n) for n in range(count)])

    def scale(self, counts: Iterable[int] = (1, 2, 4, 8)) -> list[Scale]:
        """The highest rates of first-touch users that pass with so many instances."""
        found = []
        for name in ("inline_full", "relay_full"):
            for count in counts:
                lab = self._of("first_touch", instances=count)
                many = replace(lab.traffic, requests=lab.traffic.requests * max(count // 2, 1))
                start = lab.traffic.rate * count / self._lab.world.instances
                best = find_rate(lab.other(traffic=many).probe, name, self._length, start, start / 256).best
                found.append(Scale(instances=count, variant=name, best=best))
        return found

    def _befalls(self, name: str, plan: Sequence[tuple[float, Kind, int]]) -> Sweep:
        """`plan` has shares of the load's time, and what happens then to which instance."""
        lab = self._of("sessions")
        end_s = lab.traffic.requests / lab.traffic.rate
        changes = tuple(
            Change(time_s=share * end_s, kind=kind, instance=number) for share, kind, number in plan
        )
        router = replace(lab.world.router, ramp_s=min(lab.world.router.ramp_s, end_s / 20))
        world = replace(lab.world, changes=changes, router=router)
        return self._sweep(name, "fate", [("nothing", lab), (name, lab.other(world=world))])

    def _loads(self, title: str, names: Sequence[str], factors: Sequence[float], lab: Lab) -> Sweep:
        rate = lab.traffic.rate
        labs = [(f"{one:g}", lab.other(traffic=replace(lab.traffic, rate=one * rate))) for one in factors]
        return self._sweep(title, "load", labs, names)

    def _sweep(
        self, title: str, axis: str, labs: Sequence[tuple[str, Lab]], names: Sequence[str] = ("relay_full",)
    ) -> Sweep:
        rows = []
        for name in names:
            for label, lab in labs:
                self._progress(f"{title}: {name}, {label}")
                rate = lab.traffic.rate
                result = lab.serve(name, rate, self._length)
                rows.append(Row(label=label, variant=name, rate=rate, result=result))
        return Sweep(name=title, axis=axis, regime=labs[0][1].traffic.regime, rows=tuple(rows))

    def _of(self, regime: Regime, *, host_share: float = 0.0, instances: int = 0, **values: object) -> Lab:
        """The lab with this traffic, at the load of its regime."""
        world = self._lab.world
        world = replace(world, host_share=host_share, instances=instances or world.instances)
        rate = self._rates["sessions" if regime == "popular" else regime]
        traffic = replace(self._lab.traffic, regime=regime, rate=rate, **values)
        return self._lab.other(world=world, traffic=traffic)
