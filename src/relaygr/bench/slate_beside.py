"""A list beside the ranking it is made from: how much longer a request takes."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from relaygr.bench.demo_engine import random_engine
from relaygr.bench.slate_world import WIDTH, random_step
from relaygr.bench.timing import Variant, round_robin
from relaygr.config.slate import SlateConfig
from relaygr.core.ids import DEFAULT_TENANT
from relaygr.engine import Engine, RankRequest, UserHistory
from relaygr.engine.slate.maker import SlateMaker
from relaygr.engine.slate.opening import heads_of, make_slates
from relaygr.engine.slate.request import ItemsAsked, SlateRequest
from relaygr.listwise.items import ItemTable
from relaygr.listwise.lists import ListModel
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction
from relaygr.models.presets import preset

PRESET, HISTORY = "hstu-small", 512
_ITEMS = 5000
_AUTHORS = 400


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one request each, on one core.

    Attributes:
        full_ms: ranking with the whole history to encode; hit_ms: over its cached prefix.
        slate_ms: the list layer, from the scores on.
        extra_share: slate_ms of full_ms, extra_share_hit: of hit_ms.
    """

    preset: str
    history: int
    candidates: int
    full_ms: float
    hit_ms: float
    slate_ms: float

    @property
    def extra_share(self) -> float:
        return self.slate_ms / self.full_ms

    @property
    def extra_share_hit(self) -> float:
        return self.slate_ms / self.hit_ms


def measure_beside(runs: int, candidates: int, length: int, seed: int) -> Beside:
    """Rank, and make lists of the scores, in turns, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(runs, candidates, length, seed)
    finally:
        torch.set_num_threads(threads)


def _measure(runs: int, candidates: int, length: int, seed: int) -> Beside:
    engine, random = random_engine(preset(PRESET), "fp32"), np.random.default_rng(seed)
    maker = _maker(engine, random)
    history = UserHistory("user", random.integers(1, _ITEMS, HISTORY), np.arange(HISTORY))
    items = random.permutation(_ITEMS)[:candidates]
    request = RankRequest(history, items)

    def anew() -> None:
        engine.forget(DEFAULT_TENANT, "user")
        engine.rank(request)

    ranked = engine.rank(request)

    def slate() -> None:
        asked = SlateRequest(request_id="r", candidates=ItemsAsked(ids=items.tolist()), length=length)
        maker.make(maker.order(asked), ranked, 1000.0)

    variants = (
        Variant("full", anew),
        Variant("hit", lambda: engine.rank(request), warm=True),
        Variant("slate", slate, warm=True),
    )
    full, hit, made = round_robin(variants, runs, 120.0, 5)
    return Beside(
        preset=PRESET,
        history=HISTORY,
        candidates=candidates,
        full_ms=full.median_ms,
        hit_ms=hit.median_ms,
        slate_ms=made.median_ms,
    )


def _maker(engine: Engine, random: np.random.Generator) -> SlateMaker:
    heads = heads_of(engine.model_config)
    terms = tuple(Term(weight=1.0, factors=(Factor(head=head.name),)) for head in heads)
    value = ValueFunction(ValueDocument(id="bench", terms=terms), heads)
    config = SlateConfig(value="in memory", step="in memory", budget_ms=0.0)
    model = ListModel(random_step(heads, ("author",), 0), value)
    table = ItemTable(
        np.arange(_ITEMS),
        {"author": random.integers(0, _AUTHORS, _ITEMS)},
        random.standard_normal((_ITEMS, WIDTH)),
    )
    return SlateMaker(make_slates(config, model), None, table, config)
