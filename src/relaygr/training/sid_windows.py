"""Windows of users' histories as tokens, and which of the codes in them the loss counts.

A request knows a user's events strictly before a second and asks for that second's items. So the first item
of each second is what a model is trained for; items of one second come in random order, because all of them
are right and their order says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relaygr.data.dataset import Events, Int64s
from relaygr.generation.catalogue.tokens import SidTokenMap
from relaygr.generation.recipe import Recipe
from relaygr.generation.sids.build import SemanticIds
from relaygr.training.cuts import Groups
from relaygr.training.metrics import Bools, Floats


@dataclass(frozen=True, slots=True, eq=False)
class WindowSpec:
    """How a step is filled: `windows` of `shortest` to `longest` items; `within` as in the settings."""

    windows: int
    shortest: int
    longest: int
    within: float


@dataclass(frozen=True, slots=True, eq=False)
class SidBatch:
    """One step's input.

    Attributes:
        tokens: int64 [B, n], rows filled up behind their end.
        places: for each level int64 [m], flat places in [B * n] from which a counted code is predicted.
        codes: for each level int64 [m], these codes, counted from 0 within the level.
        weights: float32 [m], of the item of each place, the same on all levels.
        items: of the histories and the targets.
    """

    tokens: Tensor
    places: tuple[Tensor, ...]
    codes: tuple[Tensor, ...]
    weights: Tensor
    items: int


class WindowSource:
    """Batches as a pure function of (seed, step), so that a resumed run sees what it would have seen.

    Args:
        groups: seconds to end windows with, as `training_groups` gives them.
        sids: codes of the items; events of items without codes are left out.
    """

    def __init__(
        self, events: Events, groups: Groups, sids: SemanticIds, recipe: Recipe, spec: WindowSpec, seed: int
    ) -> None:
        self.groups, self.recipe, self.spec, self.seed = groups, recipe, spec, seed
        self._map: SidTokenMap = recipe.token_map()
        self._codes = sids.codes_of(np.array(events.item_ids))  # [events, L]
        self._known: Bools = self._codes[:, 0] >= 0
        self._times = np.array(events.timestamps)

    def batch(self, step: int) -> SidBatch:
        """The windows of a step."""
        rng = np.random.default_rng((self.seed, step))
        rows: list[Int64s] = []
        weights: list[Floats] = []
        for _ in range(self.spec.windows):
            window = self._window(rng)
            rows.append(window)
            weights.append(self._weights(window))
        return self._joined(rows, weights)

    def _window(self, rng: np.random.Generator) -> Int64s:
        """Event places of a window that ends with one item of a drawn second; seconds are shuffled inside."""
        groups = self.groups
        last = groups.draw(rng)
        begin = int(groups.start[last])
        length = int(rng.integers(self.spec.shortest, self.spec.longest + 1))
        start = max(int(groups.user_start[last]), begin + 1 - length)
        past = np.arange(start, begin)
        past = past[np.lexsort((rng.random(len(past)), self._times[past]))]
        target = rng.integers(begin, groups.stop[last], size=1)
        window = np.concatenate([past, target])
        known: Int64s = window[self._known[window]]
        return known

    def _weights(self, window: Int64s) -> Floats:
        """Of each item; nothing is known before the first one, and no request asks for it."""
        weights = np.full(len(window), self.spec.within)
        times = self._times[window]
        weights[1:][times[1:] != times[:-1]] = 1.0
        weights[:1] = 0.0
        return weights

    def _joined(self, rows: list[Int64s], weights: list[Floats]) -> SidBatch:
        levels, template = self.recipe.levels, self.recipe.template
        ahead, each = len(template.before), levels + len(template.item_before) + len(template.item_after)
        tokens = [self.recipe.template.tokens(self._codes[row], self._map) for row in rows]
        longest = max(len(row) for row in tokens)
        filled = np.zeros((len(rows), longest), dtype=np.int64)
        for at, row in enumerate(tokens):
            filled[at, : len(row)] = row
        counted = [np.flatnonzero(weight) for weight in weights]
        # The code of a level is predicted from the token in front of it.
        first = np.concatenate(
            [
                at * longest + ahead + len(template.item_before) + items * each - 1
                for at, items in enumerate(counted)
            ]
        )
        codes = np.concatenate([self._codes[row[items]] for row, items in zip(rows, counted, strict=True)])
        chosen = np.concatenate([weight[items] for weight, items in zip(weights, counted, strict=True)])
        return SidBatch(
            tokens=torch.from_numpy(filled),
            places=tuple(torch.from_numpy(first + level) for level in range(levels)),
            codes=tuple(torch.from_numpy(codes[:, level].astype(np.int64)) for level in range(levels)),
            weights=torch.from_numpy(chosen.astype(np.float32)),
            items=sum(len(row) for row in rows),
        )
