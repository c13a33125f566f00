"""The simulator's answers to a benchmark: whose draws real loads take."""

from __future__ import annotations

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


INLINE = Search(best=2048, probes=(probe("inline_full", 2176, 0.97, 0.99), probe("inline_full", 4096, 0.0)))
RELAY = Search(best=3072, probes=(probe("relay_full", 3072, 0.99, 0.99), probe("relay_full", 3200, 0.98)))


def good(seed: int, name: str, length: int) -> float:
    lab = Lab(WORLD, msgspec.structs.replace(QUESTION.traffic, requests=60, even=True), (seed,))
    return lab.probe(name, 1.0, length).shares[0].good


def test_the_draws_are_those_that_fare_like_long_loads_near_the_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_twin, "_SEEDS", 5)
    # 4,096 tokens are far from the edge, and do not count.
    wanted = {("inline_full", 2176): 0.98, ("relay_full", 3072): 0.99, ("relay_full", 3200): 0.98}
    strays = {
        seed: sum(abs(good(seed, *where) - share) for where, share in wanted.items()) for seed in range(3, 8)
    }
    assert typical_seed(QUESTION, found(INLINE, RELAY)) == min(strays, key=lambda seed: strays[seed])
    assert len(set(strays.values())) > 1


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
