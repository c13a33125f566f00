"""Attention written straight from the mask and score formulas of a whole row; float64, no caching."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.kernels.interface import AttentionSpec, Kernel, KvStore, ScoreBias, Segment, round_up


@dataclass
class Row:
    """One user's whole row: history K/V and queries, then candidates; bias [H, t + m, t + m] or None."""

    q: Tensor  # [t + m, H, A]
    k: Tensor
    v: Tensor  # [t + m, H, E]
    candidates: int
    cached: int
    bias: Tensor | None = None
    same: bool = False  # the bias of every candidate is the same
    high: Tensor | None = None

    @property
    def tokens(self) -> int:
        return len(self.q) - self.candidates


def make_row(spec: AttentionSpec, cached: int, new: int, candidates: int, seed: int, bias: str = "") -> Row:
    g = torch.Generator().manual_seed(seed)
    n, t = cached + new + candidates, cached + new

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    row = Row(
        draw(n, spec.heads, spec.qk_dim),
        draw(n, spec.heads, spec.qk_dim),
        draw(n, spec.heads, spec.v_dim),
        candidates,
        cached,
    )
    if bias == "key":
        row.bias = torch.zeros(spec.heads, n, n, dtype=torch.float64)
        row.bias[:, t:, :t] = draw(spec.heads, 1, t)
        row.same = True
    elif bias == "pair":
        row.bias = torch.zeros(spec.heads, n, n, dtype=torch.float64)
        row.bias[:, t:, :t] = draw(spec.heads, candidates, t)
    elif bias == "all":
        row.bias = draw(spec.heads, n, n)
    elif bias == "high":
        row.high = torch.randint(0, t + 1, (candidates,), generator=g)
    return row


def allowed(spec: AttentionSpec, row: Row) -> Tensor:
    """The mask of section 4 by ids, [n, n] bool."""
    n, targets, c = len(row.q), row.candidates, spec.contextual
    two_way = spec.two_way and c > 0
    end = n - targets - c + 1 if two_way else n - targets
    position = torch.arange(n)
    ids = (position - c + 1).clamp(min=0) if two_way else position.clone()
    ids[n - targets :] = end
    i, j = ids[:, None], ids[None, :]
    mask = i > j
    if spec.window:
        near = i - j <= spec.window
        if spec.full_tail:
            near |= i >= end - spec.full_tail
        mask &= near
    if two_way:
        mask |= (i == 0) & (j < end)
    if row.high is not None:
        mask[n - targets :] &= position < row.high[:, None]
    return mask | torch.eye(n, dtype=torch.bool)


def oracle(spec: AttentionSpec, row: Row) -> Tensor:
    """[n, H, E]."""
    mask = allowed(spec, row).double()
    scores = spec.alpha * torch.einsum("iha,jha->hij", row.q, row.k)
    if row.bias is not None:
        scores = scores + row.bias
    if spec.weights == "softmax":
        shifted = mask * torch.exp(scores)
        weights = shifted / shifted.sum(-1, keepdim=True)
    else:
        weights = mask * scores * torch.sigmoid(scores) / spec.divisor
    return torch.einsum("hij,jhe->ihe", weights, row.v)


def run_kernel(
    kernel: Kernel,
    spec: AttentionSpec,
    rows: list[Row],
    stores: list[KvStore | None],
    dtype: torch.dtype,
) -> list[tuple[Tensor, Tensor]]:
    """(new history rows, candidates) of each row; cached rows are written to the stores first."""
    segments = []
    for row, store in zip(rows, stores, strict=True):
        if store is not None and row.cached:
            store.write(0, 0, row.k[: row.cached].to(dtype), row.v[: row.cached].to(dtype))
        segments.append(Segment(row.cached, row.tokens - row.cached, row.candidates, store, row.high))
    plan = kernel.plan(spec, segments, dtype)
    packed = []
    for name in ("q", "k", "v"):
        width = getattr(rows[0], name).shape[2]
        x = torch.zeros(plan.layout.rows, spec.heads, width, dtype=dtype)
        for row, where in zip(rows, plan.layout.segments, strict=True):
            values = getattr(row, name).to(dtype)
            x[where.history] = values[row.cached : row.tokens]
            x[where.candidates] = values[row.tokens :]
        packed.append(x)
    bias = RowBias(rows, dtype) if any(row.bias is not None for row in rows) else None
    with torch.inference_mode():
        out = kernel.run(plan, 0, *packed, bias)
    return [(out[where.history], out[where.candidates]) for where in plan.layout.segments]


class RowBias(ScoreBias):
    """Blocks of each row's whole bias."""

    def __init__(self, rows: list[Row], dtype: torch.dtype) -> None:
        self.rows, self.dtype = rows, dtype

    def history(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        row = self.rows[segment]
        assert 0 <= rows.start < rows.stop <= row.tokens - row.cached
        return self._block(row, slice(row.cached + rows.start, row.cached + rows.stop), keys)

    def candidates(self, segment: int, rows: slice, keys: slice) -> Tensor | None:
        row = self.rows[segment]
        assert 0 <= rows.start < rows.stop <= row.candidates
        if row.same:
            block = self._block(row, slice(row.tokens, row.tokens + 1), keys)
            return None if block is None else block[:, 0]
        return self._block(row, slice(row.tokens + rows.start, row.tokens + rows.stop), keys)

    def own(self, segment: int) -> Tensor | None:
        row = self.rows[segment]
        if row.bias is None:
            return None
        return row.bias.diagonal(dim1=1, dim2=2)[:, row.tokens :].t().to(self.dtype)

    def _block(self, row: Row, rows: slice, keys: slice) -> Tensor | None:
        assert 0 <= keys.start <= keys.stop <= row.tokens
        return None if row.bias is None else row.bias[:, rows, keys].to(self.dtype)


class ListStore:
    """The obvious K/V store."""

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, page: int = 32) -> None:
        self.k = torch.zeros(0, spec.heads, spec.qk_dim, dtype=dtype)
        self.v = torch.zeros(0, spec.heads, spec.v_dim, dtype=dtype)
        self.page = page

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        assert layer == 0
        assert start <= len(self.k)
        self.k = torch.cat([self.k[:start], k])
        self.v = torch.cat([self.v[:start], v])

    def read(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        padded = round_up(tokens, self.page)
        out = []
        for x in (self.k, self.v):
            y = torch.zeros(x.shape[1], padded, x.shape[2], dtype=x.dtype)
            y[:, :tokens] = x[:tokens].transpose(0, 1)
            out.append(y)
        return out[0], out[1]
