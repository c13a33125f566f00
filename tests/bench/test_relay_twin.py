"""The simulator's answers to a benchmark: whose draws real loads take."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from relaygr.bench import relay_twin
from relaygr.bench.relay_twin import Question, search_all, typical_seed
from relaygr.relay.latency import Coefficients
from relaygr.sim.costs import Costs
from relaygr.sim.experiments import Experiment
from relaygr.sim.lab import Lab
from relaygr.sim.protocol import Lengths, Outcome, Search, Share
from relaygr.sim.traffic import Traffic
from relaygr.sim.world import World, budgets_of

COSTS = Costs(coefficients=Coefficients(t0_ms=2.0, t1_ms=0.01, t2_ms=5e-6, t_launch_ms=0.5))
WORLD = World(costs=COSTS, budgets=budgets_of(COSTS))
QUESTION = Question(
    world=WORLD,
    traffic=Traffic(requests=200, warmup=10, tau_s=WORLD.tau_s),
    seeds=(3,),
    regime="first_touch",
    rank_taus=2.0,
    candidates=128,
    short=60,
)


def probe(name: str, length: int, *good: float) -> Outcome:
    shares = tuple(
        Share(seed=place, requests=1000, good=one, valid=1.0, p99_ms=1.0, served=1.0)
        for place, one in enumerate(good)
    )
    return Outcome(variant=name, rate=1.0, length=length, planned=len(good), shares=shares)


def found(inline: Search | None, relay: Search | None, q0: float | None = 1.0) -> Experiment:
    """Long loads fared like this."""
    base = Search(best=2.0, probes=())
    lengths = Lengths(q0=q0, base=base, inline=inline, relay=relay)
    tau_ms = 1000 * WORLD.tau_s
    return Experiment(
        regime="first_touch", rank_taus=2.0, candidates=128, tau_ms=tau_ms, lengths=lengths, rates=None
    )


INLINE, RELAY = Search(best=2048, probes=()), Search(best=3072, probes=())
STEP = 128

# Longest histories of each seed's short loads, in steps; those of long loads are 16 and 24.
EDGES = {
    3: (20, 24),  # another ratio
    4: (18, 27),  # the ratio, but longer
    5: (16, 22),
    6: (16, 25),  # the ratio but for a step
    7: (17, 24),
}


class ShortLab:
    """Short loads with those edges."""

    tried: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, world: World, traffic: Traffic, seeds: tuple[int, ...]) -> None:
        assert traffic.requests == QUESTION.short
        assert traffic.even
        self.edges = dict(zip(("inline_full", "relay_full"), EDGES[seeds[0]], strict=True))

    def probe(self, name: str, rate: float, length: int) -> Outcome:
        assert rate == 1.0
        self.tried.append((name, length))
        return probe(name, length, 1.0 if length <= self.edges[name] * STEP else 0.9)


def test_the_draws_are_those_with_the_edges_of_long_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_twin, "_SEEDS", len(EDGES))
    monkeypatch.setattr(relay_twin, "Lab", ShortLab)
    assert typical_seed(QUESTION, found(INLINE, RELAY)) == 6
    lengths = {
        name: [length // STEP for who, length in ShortLab.tried if who == name] for name, _ in ShortLab.tried
    }
    assert set(lengths["inline_full"]) == {16, 17, 18, 19, 20, 21}
    assert set(lengths["relay_full"]) == {22, 23, 24, 25, 26, 27, 28}


def test_edges_are_looked_for_no_farther_than_they_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_twin, "_SEEDS", 2)
    monkeypatch.setattr(relay_twin, "Lab", ShortLab)
    monkeypatch.setattr(ShortLab, "tried", [])
    monkeypatch.setitem(EDGES, 3, (400, 0))
    monkeypatch.setitem(EDGES, 4, (2, 300))
    typical_seed(QUESTION, found(INLINE, RELAY))
    steps = [length // STEP for _, length in ShortLab.tried]
    assert (min(steps), max(steps)) == (16 - 5, 24 + 5)


@pytest.mark.parametrize("expected", [20, 24])
def test_edges_of_the_real_simulator(expected: int) -> None:
    lab = Lab(WORLD, msgspec.structs.replace(QUESTION.traffic, requests=60, even=True), (3,))
    edge = relay_twin._edge(lab, "inline_full", 1.0, expected)
    assert lab.probe("inline_full", 1.0, edge * STEP).passes or edge == expected - 5
    assert edge == expected + 5 or not lab.probe("inline_full", 1.0, (edge + 1) * STEP).passes


@pytest.mark.parametrize(
    "lost", [found(None, RELAY), found(INLINE, Search(best=None, probes=())), found(INLINE, RELAY, None)]
)
def test_without_edges_to_compare_it_is_the_first_seed(lost: Experiment) -> None:
    assert typical_seed(QUESTION, lost) == 3


def test_only_short_loads_choose() -> None:
    plain = msgspec.structs.replace(QUESTION, short=0)
    (answer,) = search_all([plain], 1)
    assert answer.seed == 3
    assert answer.found.lengths.q0 is not None
