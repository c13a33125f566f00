"""Random requests under random rules, each list read by the independent checker."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.bench.slate_cases import case
from relaygr.bench.slate_world import random_step
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.demotion import Demotion
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.result import Stage
from relaygr.listwise.slates import Slates
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction

_EVERY = 100  # requests between two words about the progress


def count_violations(requests: int, tell: Callable[[int], None]) -> tuple[int, int]:
    """Hard rules broken in lists that were returned or competed, and the number of those lists.

    Requests without any list, because rules that are never relaxed allow none, count for nothing.
    """
    heads = (Head("like"),)
    document = ValueDocument(id="like", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),))
    model = ListModel(random_step(heads, ("author",), 0), ValueFunction(document, heads))
    slates = Slates(
        model.value,
        model,
        generators={
            Stage.GREEDY: (Beam(model, 1),),
            Stage.BEAM: (Beam(model),),
            Stage.GENERATORS: (Mmr(), Dpp(), Ssd(), Demotion(), PlackettLuce()),
        },
        joint_ms=0.0,
    )
    broken = lists = 0
    for seed in range(requests):
        if seed % _EVERY == 0:
            tell(seed)
        drawn = case(
            seed, candidates=21 + seed % 3 * 6, length=5 + seed % 4, rules=3, shown=6, vectors=8, authors=8
        )
        ask = SlateAsk(request_id=str(seed), length=drawn.length, rules=drawn.rules, shown=drawn.shown)
        try:
            result = slates.serve(ask, drawn.pool)
        except InfeasibleError:
            continue
        for picks in [result.picks, *(one.picks for one in result.pool)]:
            lists += 1
            found = drawn.rules.violations(
                drawn.pool, picks, len(result.picks), drawn.shown, result.relaxations
            )
            broken += len(found)
    return broken, lists
