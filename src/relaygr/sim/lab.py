"""One world and one kind of traffic, served by any variant, at any rate and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from relaygr.sim.protocol import Outcome, Share
from relaygr.sim.run import simulate
from relaygr.sim.tally import Result
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import Variant, variant
from relaygr.sim.world import World

Progress = Callable[[str], None]


def silent(text: str) -> None:
    """Nobody watches."""


class Lab:
    """Simulations of the same requests.

    Attributes:
        world, traffic: what every simulation has in common; rate, length, seed and variant are filled in.
        seeds: of a probe.
    """

    def __init__(
        self, world: World, traffic: Traffic, seeds: Sequence[int] = (0,), progress: Progress = silent
    ) -> None:
        self.world = world
        self.traffic = msgspec.structs.replace(traffic, tau_s=world.tau_s)
        self.seeds = tuple(seeds)
        self._progress = progress

    def other(self, *, world: World | None = None, traffic: Traffic | None = None) -> Lab:
        """The same with another world or traffic."""
        return Lab(world or self.world, traffic or self.traffic, self.seeds, self._progress)

    def serve(self, how: Variant | str, rate: float, length: int, seed: int | None = None) -> Result:
        """One load; `rate` in requests a second of the whole fleet."""
        chosen = variant(how) if isinstance(how, str) else how
        number = self.seeds[0] if seed is None else seed
        world = msgspec.structs.replace(self.world, variant=chosen, seed=number)
        # Whoever is asked for more than the longest history gets that much.
        most = max(self.traffic.most_length, length)
        traffic = msgspec.structs.replace(
            self.traffic, rate=rate, length=length, most_length=most, seed=number
        )
        return simulate(world, traffic)

    def probe(self, name: str, rate: float, length: int) -> Outcome:
        """A `Probe`: seeds one after another, until those that failed are too many."""
        outcome = Outcome(variant=name, rate=rate, length=length, planned=len(self.seeds), shares=())
        for seed in self.seeds:
            share = share_of(name, self.serve(name, rate, length, seed), seed)
            outcome = msgspec.structs.replace(outcome, shares=(*outcome.shares, share))
            if outcome.hopeless:
                break
        words = "passes" if outcome.passes else f"fails, {outcome.shares[-1].good:.1%} good"
        self._progress(f"{self.traffic.regime}: {name}, {rate:.3g}/s, {length:,} tokens {words}")
        return outcome


def share_of(name: str, result: Result, seed: int) -> Share:
    """What a simulation says of whether the load passes."""
    count = max(result.requests, 1)
    # Shortening is what this variant is for; how much is left is printed beside it.
    good = result.in_time if name == "inline_truncated" else result.good
    return Share(
        seed=seed,
        requests=result.requests,
        good=good / count,
        valid=result.valid / count,
        p99_ms=result.latency.p99,
        served=result.served_mean,
    )
