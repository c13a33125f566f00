"""From selected leaves to rows with items, and why there are fewer rows than asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np

from relaygr.generation.catalogue.errors import FilterError
from relaygr.generation.catalogue.filters import Filter
from relaygr.generation.catalogue.index import CatalogueIndex, Int64s, ItemId
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import check_mask, offsets, spread
from relaygr.generation.select import Beams


class Underflow(StrEnum):
    """Why fewer rows came back than were asked for."""

    CATALOG_EXHAUSTED = "catalog_exhausted"  # these are all semantic ids that the filters leave
    BEAM_EXHAUSTED = "beam_exhausted"  # an earlier round was too narrow to lead to more
    MODEL_EXHAUSTED = "model_exhausted"  # the model gives probability zero to all others


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One semantic id.

    Attributes:
        sid: its codes.
        score: log-probability, finite.
        items: best first; empty only where the item limit of the response was reached.
    """

    sid: tuple[int, ...]
    score: float
    items: tuple[ItemId, ...]


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in ms; tuples have one entry a round, from the first.

    Attributes:
        prefill_ms: the forward over the prompts of its group.
        head_ms: the head's columns.
        selection_ms: choosing among the candidates.
        preparation_ms: finding them, on the worker, beside a forward.
        waited_ms: how much of that the forward did not cover.
        forward_ms: the decode forward after each round but the last.
    """

    prefill_ms: float = 0.0
    head_ms: tuple[float, ...] = ()
    selection_ms: tuple[float, ...] = ()
    preparation_ms: tuple[float, ...] = ()
    waited_ms: tuple[float, ...] = ()
    forward_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What the rounds of one request found.

    Attributes:
        rows: best first.
        requested: rows asked for.
        underflow: why there are fewer, None if there are not.
        normalization: what scores are relative to.
        items_left_out: items of the rows that the limits left out.
        candidates: how many each round selected from.
        kept: beams each round kept.
    """

    rows: tuple[ResultRow, ...]
    requested: int
    underflow: Underflow | None
    normalization: Normalization
    items_left_out: int = 0
    candidates: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    timings: Timings = field(default_factory=Timings)

    @property
    def returned(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class ItemLimits:
    """How many items a response names.

    Attributes:
        per_sid: of one semantic id.
        total: of the response.
        distinct: name an item once, under the best of its semantic ids, and fill up behind it; needed
            where an item may have several.
    """

    per_sid: int = 50
    total: int = 1000
    distinct: bool = False


def underflow(requested: int, rounds: Sequence[Beams]) -> Underflow | None:
    """The reason for a shortfall. Every alive prefix leads to a result, so if no round cut, this was all."""
    if len(rounds[-1].nodes) >= requested:
        return None
    if any(one.cut for one in rounds):
        return Underflow.BEAM_EXHAUSTED
    if any(one.impossible for one in rounds):
        return Underflow.MODEL_EXHAUSTED
    return Underflow.CATALOG_EXHAUSTED


def rows_of(
    index: CatalogueIndex, beams: Beams, limits: ItemLimits, items: Filter | None
) -> tuple[tuple[ResultRow, ...], int]:
    """Rows of the last round's beams, and how many of their items the limits left out.

    Raises:
        FilterError: a leaf that came through the filters has no item that does, or the filter gave no mask.
        AssertionError: a leaf twice, or a score that is not finite.
    """
    leaves = beams.nodes
    assert len(np.unique(leaves)) == len(leaves), "a semantic id came back twice"
    assert np.isfinite(beams.scores).all(), "a score is not finite"
    entries, ends = _items(index, leaves, items)
    chosen: list[int] = []
    cuts = [0]
    seen: set[int] = set()
    left_out = 0
    for start, end in pairwise(ends):
        mine = entries[start:end]
        if limits.distinct:
            mine = [one for one in mine if one not in seen]
        taken = mine[: min(limits.per_sid, limits.total - len(chosen))]
        seen.update(taken)
        left_out += len(mine) - len(taken)
        chosen += taken
        cuts.append(len(chosen))
    ids = index.ids_of(np.array(chosen, dtype=np.int64))
    rows = zip(index.sids(leaves).tolist(), beams.scores.tolist(), pairwise(cuts), strict=True)
    return tuple(ResultRow(tuple(sid), score, tuple(ids[a:b])) for sid, score, (a, b) in rows), left_out


def _items(index: CatalogueIndex, leaves: Int64s, items: Filter | None) -> tuple[list[int], list[int]]:
    """Allowed items of the leaves one behind the other, each best first, and where each's begin. [n + 1]"""
    low = index.item_ptr[leaves].astype(np.int64)
    positions, ends = spread(low, index.item_ptr[leaves + 1] - low)
    if items is not None and not items.everything:
        passing = check_mask(items.passes(positions), positions.shape, "of the results' items")
        ends = offsets(passing.astype(np.int64))[ends]
        positions = positions[passing]
        empty = np.flatnonzero(ends[1:] == ends[:-1])
        if len(empty):
            raise FilterError(f"leaf {leaves[empty[0]]} passes the filters, but none of its items does")
    return index.items[positions].tolist(), ends.tolist()
