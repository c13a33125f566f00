"""HSTU attention as the formula reads: one score matrix per request and head, any dtype, under autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.kernels.interface import (
    AttentionSpec,
    Kernel,
    Plan,
    RowLayout,
    Segment,
    candidate_visibility,
    history_visibility,
    pack,
)


@dataclass(frozen=True, slots=True)
class DensePlan(Plan):
    spec: AttentionSpec
    segments: tuple[Segment, ...]
    layout: RowLayout
    history_masks: tuple[Tensor, ...]  # [history, tokens] each
    candidate_masks: tuple[Tensor, ...]  # [candidates, tokens] each


class ReferenceKernel(Kernel):
    """The slow, obvious back-end that the others are checked against."""

    name = "reference"

    def plan(self, spec: AttentionSpec, segments: Sequence[Segment], dtype: torch.dtype) -> DensePlan:
        history_masks, candidate_masks = [], []
        for segment in segments:
            key = torch.arange(segment.tokens)
            low, high = history_visibility(spec, segment.tokens, segment.cached, segment.tokens)
            history_masks.append(((key >= low[:, None]) & (key < high[:, None])).to(dtype))
            first, last = candidate_visibility(spec, segment)
            end = last if isinstance(last, Tensor) else torch.full((segment.candidates,), last)
            candidate_masks.append(((key >= first) & (key < end[:, None])).to(dtype))
        layout = pack(segments, align=1, fixed_tiles=False)
        return DensePlan(spec, tuple(segments), layout, tuple(history_masks), tuple(candidate_masks))

    def run(
        self,
        plan: Plan,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        assert isinstance(plan, DensePlan)
        spec = plan.spec
        out: list[Tensor] = []
        for i, segment in enumerate(plan.segments):
            rows = plan.layout.segments[i]
            keys, values = self._history(segment, layer, k[rows.history], v[rows.history])
            if segment.history:
                out.append(_attend(spec, q[rows.history], keys, values, plan.history_masks[i], None))
            if segment.candidates:
                own_bias = None if bias is None else bias[i]
                mine = rows.candidates
                seen = _attend(spec, q[mine], keys, values, plan.candidate_masks[i], own_bias)
                score = F.silu(spec.alpha * (q[mine] * k[mine]).sum(-1, keepdim=True))
                out.append(seen + score * v[mine] / spec.divisor)
        return torch.cat(out) if out else v.new_zeros(v.shape)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def _history(segment: Segment, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [H, tokens, A] and values [H, tokens, E] of the whole history."""
        if segment.store is None:
            return k.transpose(0, 1), v.transpose(0, 1)
        if segment.history:
            segment.store.write(layer, segment.cached, k, v)
        keys, values = segment.store.read(layer, segment.tokens)
        return keys[:, : segment.tokens], values[:, : segment.tokens]


def _attend(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None
) -> Tensor:
    """q [n, H, A], k [H, t, A], v [H, t, E], mask [n, t] -> [n, H, E]."""
    scores = spec.alpha * (q.transpose(0, 1) @ k.transpose(1, 2))  # [H, n, t]
    if bias is not None:
        scores = scores + (bias if bias.dim() == 3 else bias[:, None])
    weights = mask * F.silu(scores) / spec.divisor
    return (weights @ v).transpose(0, 1)
