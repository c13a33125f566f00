"""The simulator's answers to a benchmark: whose draws real loads take."""

from __future__ import annotations

import math

import msgspec
import pytest

from relaygr.bench import relay_twin
from relaygr.bench.relay_twin import Question, search_all, typical_seed
from relaygr.relay.latency import Coefficients
from relaygr.sim.costs import Costs
from relaygr.sim.experiments import Experiment
from relaygr.sim.lab import Lab
from relaygr.sim.protocol import Lengths, Search, find_length
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


def found(inline: float | None, relay: float | None, q0: float | None = 1.0) -> Experiment:
    """Long loads have these edges."""
    inline_search, relay_search = (Search(best=best, probes=()) for best in (inline, relay))
    lengths = Lengths(q0=q0, base=inline_search, inline=inline_search, relay=relay_search)
    tau_ms = 1000 * WORLD.tau_s
    return Experiment(
        regime="first_touch", rank_taus=2.0, candidates=128, tau_ms=tau_ms, lengths=lengths, rates=None
    )


def edges(seed: int) -> tuple[float, float]:
    traffic = msgspec.structs.replace(QUESTION.traffic, requests=60, even=True)
    lab = Lab(WORLD, traffic, (seed,))
    inline, relay = (find_length(lab.probe, name, 1.0, 6144).best for name in ("inline_full", "relay_full"))
    assert inline is not None
    assert relay is not None
    return inline, relay


def test_the_draws_are_those_whose_edges_are_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_twin, "_SEEDS", 4)
    known = {seed: edges(seed) for seed in range(3, 7)}
    for inline, relay in ((2048.0, 3072.0), known[5], known[6]):
        seed = typical_seed(QUESTION, found(inline, relay))

        def strays(one: int, inline: float = inline, relay: float = relay) -> float:
            return abs(math.log(known[one][0] / inline)) + abs(math.log(known[one][1] / relay))

        assert seed in known
        assert strays(seed) == min(strays(one) for one in known)


@pytest.mark.parametrize("lost", [found(None, 3072.0), found(2048.0, None), found(2048.0, 3072.0, None)])
def test_without_edges_to_compare_it_is_the_first_seed(lost: Experiment) -> None:
    assert typical_seed(QUESTION, lost) == 3


def test_only_short_loads_choose() -> None:
    plain = msgspec.structs.replace(QUESTION, short=0)
    (answer,) = search_all([plain], 1)
    assert answer.seed == 3
    assert answer.found.lengths.q0 is not None
