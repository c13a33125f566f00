"""The kernel contract: `plan()` once a batch, `run()` once a layer; rows, visibility and K/V stores.

Every token sees one interval of its own row: history row p sees [low(p), high(p)), a candidate sees an
interval of the history and itself. Causal masks, windows and two-way contextual slots are all intervals,
so a kernel needs no mask kinds, and a key outside the interval contributes exactly nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor


class KvStore(Protocol):
    """Keys and values of one user, all layers; paged or private.

    `write` replaces rows [start, start + n) of one layer. `read` returns head-major keys [H, P, A] and
    values [H, P, E], P >= tokens a multiple of the page, rows from `tokens` on are zero; the tensors are
    views or copies and stay valid until the next call on the store.
    """

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None: ...

    def read(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]: ...


class ScoreBias(Protocol):
    """What one layer adds to the scaled scores, asked for block by block; nothing n x n need exist.

    Rows and keys are counted within a segment: new history rows, candidates, history tokens. They may reach
    past their ends by the padding of a tile; what is answered there must be finite and is never used.
    """

    def history(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        """Bias of new history rows on keys, [H, rows, keys]; None for zero."""

    def candidates(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        """Bias of candidates on keys, [H, rows, keys], or [H, keys] if it is the same for all of a segment.

        Which of the two must not depend on `rows`: kernels may take another route for each.
        """

    def own(self, segment: int) -> Tensor | None:
        """Bias of each candidate on itself, [candidates, H]."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape and mask of attention over visible keys, with s = alpha q.k + bias.

    Attributes:
        heads, qk_dim, v_dim: H, A, E.
        alpha: score scale.
        divisor: the fixed N of an HSTU model.
        weights: "silu" sums silu(s) v / N; "softmax" normalises over the visible keys, N is not used.
        contextual: number C of contextual slots in front of the history.
        two_way: contextual slots see the whole history.
        window: a row sees at most this many ids back; 0 = everything.
        full_tail: the last so many history rows ignore the window.
    """

    heads: int
    qk_dim: int
    v_dim: int
    alpha: float
    divisor: float
    contextual: int = 0
    two_way: bool = False
    window: int = 0
    full_tail: int = 0
    weights: Literal["silu", "softmax"] = "silu"


@dataclass(frozen=True, slots=True)
class Segment:
    """What one request brings to a batch.

    Attributes:
        cached: tokens whose K/V `store` already holds.
        history: new contextual and event rows, at positions [cached, cached + history).
        candidates: rows to score; they see the history and themselves.
        store: where K/V live; None computes them for this batch only (then `cached` must be 0).
        candidate_high: int64 [candidates]; candidate j sees history tokens before this index only.
            None = all of them. Training scores many points in time of one history with it.
    """

    cached: int
    history: int
    candidates: int
    store: KvStore | None = None
    candidate_high: Tensor | None = None

    def __post_init__(self) -> None:
        if min(self.cached, self.history, self.candidates) < 0:
            raise ValueError(f"segment sizes must not be negative: {self}")
        if self.store is None and self.cached:
            raise ValueError(f"cached: {self.cached} tokens need a store")

    @property
    def tokens(self) -> int:
        return self.cached + self.history


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Where a segment's rows stand in the packed batch."""

    history: slice
    candidates: slice


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Packed rows of a batch: `rows` in all, padding included; padding rows hold zeros."""

    rows: int
    segments: tuple[SegmentRows, ...]

    @property
    def dense(self) -> bool:
        """True if no padding lies between or behind the rows."""
        used = sum(
            s.history.stop - s.history.start + s.candidates.stop - s.candidates.start for s in self.segments
        )
        return bool(used == self.rows)


def pack(segments: Sequence[Segment], align: int, fixed_tiles: bool) -> RowLayout:
    """Lay the rows out: every block starts at a multiple of `align`.

    With `fixed_tiles` a history row at position p also stands at p modulo `align` of its tile, so that
    its matrix products have the same shape and place however the history was cut.
    """
    cursor = 0
    placed: list[SegmentRows] = []
    for segment in segments:
        offset = segment.cached % align if fixed_tiles and segment.history else 0
        history = slice(cursor + offset, cursor + offset + segment.history)
        cursor = round_up(history.stop, align) if segment.history else cursor
        candidates = slice(cursor, cursor + segment.candidates)
        cursor = round_up(candidates.stop, align)
        placed.append(SegmentRows(history if segment.history else slice(cursor, cursor), candidates))
    return RowLayout(max(cursor, align), tuple(placed))


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def history_visibility(spec: AttentionSpec, tokens: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Interval [low, high) seen by the history rows at positions [start, stop) of a row of `tokens`.

    Returns two int64 tensors [stop - start]. Positions past `tokens` are allowed; they only ever pad a tile.
    """
    position = torch.arange(start, stop)
    shift = _id_shift(spec)
    ids = (position - shift).clamp(min=0)
    low = torch.zeros_like(position)
    high = position + 1
    if spec.window:
        low = torch.where(ids > spec.window, ids - spec.window + shift, low)
        if spec.full_tail:
            low = torch.where(ids >= tokens - shift - spec.full_tail, torch.zeros_like(low), low)
    if spec.two_way:
        high = torch.where(position < spec.contextual, torch.full_like(high, tokens), high)
    return low, high


def _id_shift(spec: AttentionSpec) -> int:
    """Two-way contextual slots share id 0 with nothing behind them: later ids are positions minus this."""
    return max(spec.contextual - 1, 0) if spec.two_way else 0


def candidate_visibility(spec: AttentionSpec, segment: Segment) -> tuple[int, int | Tensor]:
    """(low, high) of a segment's candidates; `high` is a tensor [candidates] when they differ.

    Raises:
        ValueError: a window together with differing ends, which no served request has.
    """
    if segment.candidate_high is not None:
        if spec.window:
            raise ValueError("candidate_high: not supported together with a window")
        return 0, segment.candidate_high
    if not spec.window or spec.full_tail or segment.tokens - _id_shift(spec) <= spec.window:
        return 0, segment.tokens
    return segment.tokens - spec.window, segment.tokens


class Plan(ABC):
    """What a kernel prepared for one batch; valid for every layer of that batch and no other."""

    segments: tuple[Segment, ...]
    layout: RowLayout


class Kernel(ABC):
    """One back-end. Chosen once at start; results never depend on batch mates."""

    name: str

    @abstractmethod
    def plan(self, spec: AttentionSpec, segments: Sequence[Segment], dtype: torch.dtype) -> Plan:
        """Lay out the rows and prepare masks. Changes nothing; raises ValueError on a bad segment."""

    @abstractmethod
    def run(
        self,
        plan: Plan,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        """Attention of one layer; writes the new history rows' K/V to each segment's store.

        Args:
            q, k: [rows, H, A]; v: [rows, H, E], any row stride, packed as `plan.layout` says.
            bias: added to the scores, in the dtype of q.

        Returns:
            [rows, H, E] in the dtype of v, divided by the model's N; padding rows are unspecified but finite.
        """

    @staticmethod
    def remember(plan: Plan, layer: int, k: Tensor, v: Tensor) -> None:
        """Only write the new history rows' K/V to the stores: all that a prefetch needs of the last layer.

        Args:
            k [rows, H, A], v [rows, H, E]: packed as for `run`.
        """
        for segment, rows in zip(plan.segments, plan.layout.segments, strict=True):
            if segment.store is not None and segment.history:
                segment.store.write(layer, segment.cached, k[rows.history], v[rows.history])

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, in] times weight [out, in] transposed, plus bias [out]; fp32 accumulation."""
