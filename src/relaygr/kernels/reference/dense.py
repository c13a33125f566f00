"""Attention as the formula reads: one score matrix per request and head, any dtype, under autograd."""

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
    ScoreBias,
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
        bias: ScoreBias | None = None,
    ) -> Tensor:
        assert isinstance(plan, DensePlan)
        spec = plan.spec
        out: list[Tensor] = []
        for i, segment in enumerate(plan.segments):
            rows, everything = plan.layout.segments[i], slice(0, segment.tokens)
            keys, values = self._history(segment, layer, k[rows.history], v[rows.history])
            if segment.history:
                scores = spec.alpha * (q[rows.history].transpose(0, 1) @ keys.transpose(1, 2))  # [H, n, t]
                added = None if bias is None else bias.history(i, slice(0, segment.history), everything)
                weights = _weigh(spec, _plus(scores, added), plan.history_masks[i])
                out.append((weights @ values).transpose(0, 1))
            if segment.candidates:
                mine = rows.candidates
                scores = spec.alpha * (q[mine].transpose(0, 1) @ keys.transpose(1, 2))  # [H, m, t]
                added = None if bias is None else bias.candidates(i, slice(0, segment.candidates), everything)
                own = spec.alpha * (q[mine] * k[mine]).sum(-1)  # [m, H]
                own = _plus(own, None if bias is None else bias.own(i)).t()[..., None]
                mask = F.pad(plan.candidate_masks[i], (0, 1), value=1)
                weights = _weigh(spec, torch.cat([_plus(scores, added), own], dim=-1), mask)
                seen = (weights[..., :-1] @ values).transpose(0, 1)
                out.append(seen + weights[..., -1].t()[..., None] * v[mine])
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


def _plus(scores: Tensor, added: Tensor | None) -> Tensor:
    """Scores [H, n, t] and what is added, of the same shape or [H, t]."""
    if added is None:
        return scores
    return scores + (added[:, None] if added.dim() < scores.dim() else added)


def _weigh(spec: AttentionSpec, scores: Tensor, mask: Tensor) -> Tensor:
    """Scores [H, n, t] and mask [n, t] -> weights of the values."""
    if spec.weights == "softmax":
        return scores.masked_fill(mask == 0, float("-inf")).softmax(-1)
    return mask * F.silu(scores) / spec.divisor
