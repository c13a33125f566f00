"""A ranker of any family: requests in, logits out, K/V of new history tokens left in each request's store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from relaygr.kernels.interface import AttentionSpec, Kernel, Plan, RowLayout, Segment
from relaygr.models.dense import Dense
from relaygr.models.heads.interface import Head
from relaygr.models.heads.mlp import MlpHead
from relaygr.models.heads.multitask import MultiTaskHead
from relaygr.models.heads.similarity import SimilarityHead
from relaygr.models.hstu import HstuConfig
from relaygr.models.layers.hstu import HstuStack
from relaygr.models.layers.interface import Tail
from relaygr.models.layers.transformer import TransformerStack
from relaygr.models.presets import AnyConfig
from relaygr.models.row import RowInput
from relaygr.models.tokens.interface import Tokens
from relaygr.models.tokens.meta import MetaTokens
from relaygr.models.tokens.nvidia import NvidiaTokens
from relaygr.models.tokens.relay import RelayTokens
from relaygr.models.tokens.research import ResearchTokens

__all__ = ["Ranker", "RowInput"]


class Ranker(nn.Module):
    """Tokens, layers and a head, chosen by the configuration; causal history, isolated candidates.

    Weights are float32 unless moved; `cast` puts the matrices into bf16 while norms, tables and the
    residual stream stay float32.
    """

    def __init__(self, config: AnyConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = _tokens(config)
        self.layers = _layers(config)
        self.head = _head(config)
        self.spec = _spec(config)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of matrices and K/V."""
        return next(m for m in self.layers.modules() if isinstance(m, Dense)).weight.dtype

    def cast(self, dtype: torch.dtype) -> Ranker:
        """Put all matrices into `dtype`, in place; float64 takes everything along."""
        if dtype == torch.float64:
            return self.double()
        for module in self.modules():
            if isinstance(module, Dense):
                module.cast(dtype)
        return self

    def segment(self, row: RowInput) -> Segment:
        """What a row brings to a batch; a provisional newest event is its only target."""
        events, targets = len(row.items), len(row.candidates)
        if self.config.provisional:
            targets = min(targets, events, 1)
        history = self.config.prefix_tokens(events) - row.cached
        return Segment(row.cached, history, targets, row.store, row.candidate_high)

    def forward(self, inputs: Sequence[RowInput], kernel: Kernel) -> list[Tensor]:
        """Score a batch of rows.

        Returns:
            Per row logits [m, tasks]; float32, or float64 for a float64 model. A row with no candidates
            gives [0, tasks] (a prefetch). K/V of tokens from `cached` on are written to each row's store.
        """
        segments = [self.segment(row) for row in inputs]
        plan = kernel.plan(self.spec, segments, self.compute_dtype)
        ids, where = torch.cat([row.candidates for row in inputs]), None
        if self.training:
            # Negatives repeat within a batch; the candidates of a request hardly do.
            ids, where = torch.unique(ids, return_inverse=True)
        empty = torch.zeros(0, self.config.hidden_size, dtype=self.tokens.dtype)
        items = self.tokens.items(ids, kernel) if len(ids) else empty
        x = self._embed(inputs, segments, plan.layout, items if where is None else items[where], kernel)
        tail = self._tail(inputs, segments, plan, kernel) if len(ids) else None
        x = self.layers.run(x, inputs, plan, kernel, targets=bool(len(ids)), tail=tail)
        if not len(ids):
            return [x.new_zeros(0, len(self.config.tasks)) for _ in inputs]
        layout = plan.layout if tail is None else tail.plan.layout
        rows = torch.cat([x[part.candidates] for part in layout.segments])
        logits: Tensor = self.head(rows, items, where, inputs, kernel)
        return list(torch.split(logits, [len(row.candidates) for row in inputs]))

    def _tail(
        self, inputs: Sequence[RowInput], segments: Sequence[Segment], plan: Plan, kernel: Kernel
    ) -> Tail | None:
        """The candidates by themselves, where new history rows need not go through the last layer."""
        kept = all(segment.store is not None for segment in segments if segment.history)
        if self.training or self.config.provisional or not kept or not any(s.history for s in segments):
            return None
        alone = [replace(part, cached=part.tokens, history=0) for part in segments]
        rows = [replace(row, cached=part.cached) for row, part in zip(inputs, alone, strict=True)]
        return Tail(rows, kernel.plan(self.spec, alone, self.compute_dtype), plan.layout)

    def _embed(
        self,
        inputs: Sequence[RowInput],
        segments: Sequence[Segment],
        layout: RowLayout,
        items: Tensor,
        kernel: Kernel,
    ) -> Tensor:
        """Packed rows [rows, D]; padding rows are zero."""
        parts: list[Tensor] = []
        size, dtype = self.config.hidden_size, self.tokens.dtype
        cursor = 0

        def place(rows: Tensor, start: int) -> None:
            nonlocal cursor
            if start > cursor:
                parts.append(torch.zeros(start - cursor, size, dtype=dtype))
            parts.append(rows)
            cursor = start + len(rows)

        first = 0
        for row, segment, where in zip(inputs, segments, layout.segments, strict=True):
            if segment.history:
                place(self.tokens.history(row, kernel), where.history.start)
            mine = items[first : first + len(row.candidates)]
            first += len(mine)
            if segment.candidates:
                place(self.tokens.targets(row, mine, kernel), where.candidates.start)
        place(torch.zeros(0, size, dtype=dtype), layout.rows)
        return torch.cat(parts)


def _tokens(config: AnyConfig) -> Tokens:
    if isinstance(config, HstuConfig):
        if config.variant == "meta_stu":
            return MetaTokens(config)
        if config.variant == "nvidia":
            return NvidiaTokens(config)
        if config.variant == "meta_research":
            return ResearchTokens(config)
    return RelayTokens(config)


def _layers(config: AnyConfig) -> HstuStack | TransformerStack:
    return HstuStack(config) if isinstance(config, HstuConfig) else TransformerStack(config)


def _head(config: AnyConfig) -> Head:
    if isinstance(config, HstuConfig):
        if config.variant == "meta_stu":
            assert config.items is not None
            return MultiTaskHead(config, config.items.dim or config.embedding_dim, config.postprocess)
        if config.variant == "nvidia":
            return MlpHead(config)
        if config.variant == "meta_research":
            return SimilarityHead()
    return MultiTaskHead(config, config.hidden_size)


def _spec(config: AnyConfig) -> AttentionSpec:
    """The attention of a configuration; a softmax needs no divisor."""
    if isinstance(config, HstuConfig):
        return AttentionSpec(
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
    return AttentionSpec(
        heads=config.num_heads,
        qk_dim=config.qk_dim,
        v_dim=config.v_dim,
        alpha=config.alpha,
        divisor=1.0,
        contextual=len(config.contextual),
        window=config.window,
        weights="softmax",
    )
