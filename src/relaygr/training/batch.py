"""One optimiser step's input: rows for the model, and where each cut's positives and negatives stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relaygr.data.dataset import Events, Int64s
from relaygr.models.ranker import RowInput
from relaygr.training.catalogue import Catalogue
from relaygr.training.cuts import Groups, Window, draw_window
from relaygr.training.metrics import Bools, Floats
from relaygr.training.negatives import draw_negatives, log_expected

MOST_POSITIVES = 4  # of one group in one step; the others are left to another draw


@dataclass(frozen=True, slots=True, eq=False)
class BatchSpec:
    """How a step is filled.

    Attributes:
        windows: at most so many windows.
        rows: stop adding windows once so many rows (events and candidates) are in.
        shortest, longest: events of a window.
        cuts: most cuts of a window.
        negatives: candidates beside the positives of a cut.
    """

    windows: int
    rows: int
    shortest: int
    longest: int
    cuts: int
    negatives: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows, and the candidates of all rows in one numbering.

    Attributes:
        rows: one per window.
        positive: int64 [p], candidate indices of the positives.
        cut: int64 [p], the cut of each positive.
        weight: float32 [p], one over the number of positives of its cut, so that cuts count equally.
        actions: int64 [p], action bits of the positives.
        negative: int64 [cuts, N], candidate indices.
        usable: bool [cuts, N], false where a negative is in fact a positive.
        log_expected: float32 [candidates], how often the sampler draws each candidate for its cut.
        tokens: history rows of the batch.
    """

    rows: tuple[RowInput, ...]
    positive: Tensor
    cut: Tensor
    weight: Tensor
    actions: Tensor
    negative: Tensor
    usable: Tensor
    log_expected: Tensor
    tokens: int


class BatchSource:
    """Batches as a pure function of (seed, step), so that a resumed run sees what it would have seen."""

    def __init__(
        self, events: Events, groups: Groups, catalogue: Catalogue, spec: BatchSpec, seed: int
    ) -> None:
        self.groups, self.catalogue, self.spec, self.seed = groups, catalogue, spec, seed
        self._items = np.array(events.item_ids)
        self._times = np.array(events.timestamps)
        self._actions = np.array(events.actions)

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng((self.seed, step))
        spec = self.spec
        parts: list[_Part] = []
        rows = 0
        while len(parts) < spec.windows and rows < spec.rows:
            window = draw_window(self.groups, rng, spec.shortest, spec.longest, spec.cuts)
            parts.append(self._part(window, rng))
            rows += len(parts[-1].row.items) + len(parts[-1].row.candidates)
        return _join(parts)

    def _part(self, window: Window, rng: np.random.Generator) -> _Part:
        groups, spec = self.groups, self.spec
        starts, stops = groups.start[window.cuts], groups.stop[window.cuts]
        visible = starts - window.start
        past = self._items[window.start : window.stop]
        negatives = draw_negatives(self.catalogue, rng, past, visible, spec.negatives)
        chosen = [
            np.sort(start + rng.permutation(stop - start)[:MOST_POSITIVES])
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        candidates, usable, positive, cut, logs = [], [], [], [], []
        cursor = 0
        for i, places in enumerate(chosen):
            mine = self._items[places]
            group = self._items[starts[i] : stops[i]]
            ids = np.concatenate([mine, negatives[i]])
            candidates.append(ids)
            logs.append(log_expected(self.catalogue, past, int(visible[i]), ids, spec.negatives))
            usable.append(~np.isin(negatives[i], group))
            positive.append(cursor + np.arange(len(mine)))
            cut.append(np.full(len(mine), i))
            cursor += len(mine) + spec.negatives
        sizes = np.array([len(places) + spec.negatives for places in chosen])
        negative = (np.cumsum(sizes) - spec.negatives)[:, None] + np.arange(spec.negatives)
        row = RowInput(
            contextual=torch.zeros(0, dtype=torch.int64),
            items=torch.from_numpy(past),
            timestamps=torch.from_numpy(self._times[window.start : window.stop]),
            actions=torch.from_numpy(self._actions[window.start : window.stop]),
            candidates=torch.from_numpy(np.concatenate(candidates)),
            query_time=torch.from_numpy(np.repeat(self._times[starts], sizes)),
            candidate_high=torch.from_numpy(np.repeat(visible, sizes)),
        )
        taken = np.concatenate(chosen)
        return _Part(
            row, np.concatenate(positive), np.concatenate(cut), taken, self._actions[taken], negative,
            np.stack(usable),
            np.concatenate(logs),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one window adds; candidate and cut numbers count from the window's own first."""

    row: RowInput
    positive: Int64s
    cut: Int64s
    taken: Int64s
    actions: Int64s
    negative: Int64s
    usable: Bools
    log_expected: Floats


def _join(parts: Sequence[_Part]) -> Batch:
    candidates = np.cumsum([0, *(len(part.row.candidates) for part in parts)])
    cuts = np.cumsum([0, *(len(part.negative) for part in parts)])
    cut = np.concatenate([part.cut + first for part, first in zip(parts, cuts, strict=False)])
    shared = np.bincount(cut)[cut]
    return Batch(
        rows=tuple(part.row for part in parts),
        positive=torch.from_numpy(
            np.concatenate([part.positive + first for part, first in zip(parts, candidates, strict=False)])
        ),
        cut=torch.from_numpy(cut),
        weight=torch.from_numpy((1 / shared).astype(np.float32)),
        actions=torch.from_numpy(np.concatenate([part.actions for part in parts])),
        negative=torch.from_numpy(
            np.concatenate([part.negative + first for part, first in zip(parts, candidates, strict=False)])
        ),
        usable=torch.from_numpy(np.concatenate([part.usable for part in parts])),
        log_expected=torch.from_numpy(np.concatenate([part.log_expected for part in parts])).float(),
        tokens=sum(len(part.row.items) for part in parts),
    )
