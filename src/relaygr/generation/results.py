"""From selected leaves to rows with items, and why there are fewer rows than asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from relaygr.generation.catalogue.errors import FilterError
from relaygr.generation.catalogue.index import CatalogueIndex, ItemId
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import ItemFilter
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
    index: CatalogueIndex, beams: Beams, limits: ItemLimits, items: ItemFilter | None
) -> tuple[tuple[ResultRow, ...], int]:
    """Rows of the last round's beams, and how many of their items the limits left out.

    Raises:
        FilterError: a leaf that came through the filters has no item that does, or the filter names an item
            of another leaf.
        AssertionError: a leaf twice, or a score that is not finite.
    """
    assert len(np.unique(beams.nodes)) == len(beams.nodes), "a semantic id came back twice"
    assert np.isfinite(beams.scores).all(), "a score is not finite"
    rows: list[ResultRow] = []
    seen: set[ItemId] = set()
    left_out = named = 0
    sids = index.sids(beams.nodes).tolist()
    for leaf, sid, score in zip(beams.nodes.tolist(), sids, beams.scores.tolist(), strict=True):
        ids = _items(index, leaf, items)
        if limits.distinct:
            ids = [one for one in ids if one not in seen]
        taken = ids[: min(limits.per_sid, limits.total - named)]
        seen.update(taken)
        named += len(taken)
        left_out += len(ids) - len(taken)
        rows.append(ResultRow(tuple(sid), score, tuple(taken)))
    return tuple(rows), left_out


def _items(index: CatalogueIndex, leaf: int, items: ItemFilter | None) -> list[ItemId]:
    if items is None:
        return index.item_ids(leaf)
    positions = items.allowed_items(leaf)
    low, high = int(index.item_ptr[leaf]), int(index.item_ptr[leaf + 1])
    if len(positions) == 0 or int(positions.min()) < low or int(positions.max()) >= high:
        raise FilterError(f"leaf {leaf}: passes the filters, but {len(positions)} of its items do")
    return index.ids_at(positions)
