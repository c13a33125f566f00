"""The HSTU ranker: requests in, logits out, K/V of new history tokens left in each request's store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import AttentionSpec, Kernel, KvStore, RowLayout, Segment
from relaygr.models.config import HstuConfig
from relaygr.models.dense import Dense
from relaygr.models.heads import MultiTaskHead
from relaygr.models.layer import Ages, HstuLayer
from relaygr.models.tokens import NO_PREDECESSOR, TokenEmbedding, gap_bucket, last_seen_gap


@dataclass(frozen=True, slots=True)
class RowInput:
    """One user's row: profile slots, events in order, candidates.

    Attributes:
        contextual: int64 [C], one value per configured slot.
        items, timestamps, actions: int64 [h], the whole history, oldest first.
        candidates: int64 [m], item ids to score.
        query_time: seconds; an int for all candidates, or int64 [m].
        cached: tokens (profile slots first) whose K/V `store` holds already.
        store: where K/V are read and written; None for one pass without reuse.
        candidate_high: int64 [m] or None; see `Segment`.
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

    @property
    def tokens(self) -> int:
        return len(self.contextual) + len(self.items)

    def segment(self) -> Segment:
        return Segment(
            self.cached, self.tokens - self.cached, len(self.candidates), self.store, self.candidate_high
        )


class HstuRanker(nn.Module):
    """Variant `relay` of `hstu.md`: causal history, isolated candidates, fixed divisor.

    Weights are float32 unless moved; `cast` puts the matrices into bf16 while norms, tables and the
    residual stream stay float32.
    """

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = TokenEmbedding(config)
        self.layers = nn.ModuleList(HstuLayer(config, i) for i in range(config.num_layers))
        self.head = MultiTaskHead(config)
        self.spec = AttentionSpec(
            heads=config.num_heads,
            qk_dim=config.qk_dim,
            v_dim=config.v_dim,
            alpha=config.alpha,
            divisor=float(config.scaling_seqlen),
            contextual=len(config.contextual),
            two_way=config.contextual_two_way,
            window=config.window,
            full_tail=config.full_tail,
        )

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of matrices and K/V."""
        return self.head.item.first.weight.dtype

    def cast(self, dtype: torch.dtype) -> HstuRanker:
        """Put all matrices into `dtype`, in place; float64 takes everything along."""
        if dtype == torch.float64:
            return self.double()
        for module in self.modules():
            if isinstance(module, Dense):
                module.cast(dtype)
        return self

    def forward(self, inputs: Sequence[RowInput], kernel: Kernel) -> list[Tensor]:
        """Score a batch of rows.

        Returns:
            Per row logits [m, tasks]; float32, or float64 for a float64 model. A row with no candidates
            gives [0, tasks] (a prefetch). K/V of tokens from `cached` on are written to each row's store.
        """
        segments = [row.segment() for row in inputs]
        plan = kernel.plan(self.spec, segments, self.compute_dtype)
        candidate_ids = torch.cat([row.candidates for row in inputs])
        empty = self.tokens.position.new_zeros(0, self.config.hidden_size)
        ids, shared = candidate_ids, None
        if self.training:
            # Negatives repeat within a batch; the candidates of a request hardly do.
            ids, shared = torch.unique(candidate_ids, return_inverse=True)
        item_tokens = self.tokens.item(ids, kernel) if len(ids) else empty
        of_candidates = item_tokens if shared is None else item_tokens[shared]
        x = self._embed(inputs, plan.layout, of_candidates, kernel)
        ages = [self._ages(row) for row in inputs] if self.config.score_time_bias else None
        for layer in self.layers[:-1]:
            x = layer(x, plan, kernel, ages)
        last = self.layers[-1]
        assert isinstance(last, HstuLayer)
        if not len(candidate_ids):
            # Nothing reads a history row's output of the last layer, only its K/V.
            last.remember(x, plan, kernel)
            return [x.new_zeros(0, len(self.config.tasks)) for _ in inputs]
        x = last(x, plan, kernel, ages)
        rows = torch.cat([x[where.candidates] for where in plan.layout.segments])
        logits = self.head(rows, item_tokens, kernel, shared)
        return list(logits.split([len(row.candidates) for row in inputs]))

    def _embed(
        self, inputs: Sequence[RowInput], layout: RowLayout, item_tokens: Tensor, kernel: Kernel
    ) -> Tensor:
        """Packed rows [rows, D]; padding rows are zero."""
        parts: list[Tensor] = []
        size = self.config.hidden_size
        cursor = 0
        dtype = self.tokens.position.dtype

        def place(rows: Tensor, start: int) -> None:
            nonlocal cursor
            if start > cursor:
                parts.append(torch.zeros(start - cursor, size, dtype=dtype))
            parts.append(rows)
            cursor = start + len(rows)

        first = 0
        for row, where in zip(inputs, layout.segments, strict=True):
            if row.cached < row.tokens:
                place(self._history(row, kernel), where.history.start)
            count = len(row.candidates)
            if count:
                place(
                    self._candidates(row, item_tokens[first : first + count], kernel), where.candidates.start
                )
                first += count
        place(torch.zeros(0, size, dtype=dtype), layout.rows)
        return torch.cat(parts)

    def _history(self, row: RowInput, kernel: Kernel) -> Tensor:
        """Rows of the tokens from `cached` on, [tokens - cached, D]."""
        slots = len(row.contextual)
        parts = []
        if row.cached < slots:
            parts.append(self.tokens.contextual(row.contextual, kernel)[row.cached :])
        first = max(row.cached - slots, 0)
        if first < len(row.items):
            times = row.timestamps[max(first - 1, 0) :]
            gaps = gap_bucket(times.diff())
            if first == 0:
                gaps = torch.cat([gaps.new_full((1,), NO_PREDECESSOR), gaps])
            parts.append(
                self.tokens.events(
                    row.items[first:],
                    row.actions[first:],
                    row.timestamps[first:],
                    gaps,
                    torch.arange(slots + first, row.tokens),
                    torch.tensor([row.utc_offset_s]),
                    kernel,
                )
            )
        return torch.cat(parts)

    def _candidates(self, row: RowInput, item_tokens: Tensor, kernel: Kernel) -> Tensor:
        """Candidate rows [m, D]; one shared place row where candidates stand at the same time."""
        high = row.candidate_high if row.candidate_high is not None else torch.tensor([row.tokens])
        query = torch.as_tensor(row.query_time).reshape(-1)
        event = high - len(row.contextual)
        gaps = torch.full_like(event, NO_PREDECESSOR)
        if len(row.items):
            last = row.timestamps[(event - 1).clamp(min=0)]
            gaps = torch.where(event > 0, gap_bucket(query - last), gaps)
        seen = None
        if self.config.last_seen:
            seen = last_seen_gap(row.items, row.timestamps, row.candidates, event, query)
        offset = torch.tensor([row.utc_offset_s])
        return self.tokens.candidates(item_tokens, high, query, gaps, seen, offset, kernel)

    def _ages(self, row: RowInput) -> Ages:
        """The ages of the history tokens, once for each run of candidates with one query time."""
        query, runs = torch.as_tensor(row.query_time), None
        if query.dim():
            query, runs = torch.unique_consecutive(query, return_inverse=True)
        ages = gap_bucket(query[..., None] - row.timestamps)
        slots = torch.full((*ages.shape[:-1], len(row.contextual)), NO_PREDECESSOR)
        return Ages(torch.cat([slots, ages], dim=-1), runs)
