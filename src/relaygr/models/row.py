"""One user's row as a ranker reads it: profile slots, events in order, candidates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from relaygr.kernels.interface import KvStore


@dataclass(frozen=True, slots=True)
class RowInput:
    """One request's part of a batch.

    Attributes:
        contextual: int64 [C], one value per configured slot.
        items, timestamps, actions: int64 [h], the whole history, oldest first.
        candidates: int64 [m], item ids to score.
        query_time: seconds; an int for all candidates, or int64 [m].
        cached: history tokens (profile slots first) whose K/V `store` holds already.
        store: where K/V are read and written; None for one pass without reuse.
        candidate_high: int64 [m] or None; see `Segment`. Only for models with one token per event.
        utc_offset_s: added to every time before the clock is read; constant for a user.
    """

    contextual: Tensor
    items: Tensor
    timestamps: Tensor
    actions: Tensor
    candidates: Tensor
    query_time: int | Tensor = 0
    cached: int = 0
    store: KvStore | None = None
    candidate_high: Tensor | None = None
    utc_offset_s: int = 0
