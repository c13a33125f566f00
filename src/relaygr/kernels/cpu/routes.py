"""Two routes to the same matrix products: oneDNN with the activation fused, or plain ATen calls.

On a CPU where the BLAS behind ATen lacks the widest vectors, oneDNN's fp32 product is twice as fast; in
bf16 both end in oneDNN, but the fused activation saves one pass over the scores. `kernels.select` measures
and picks.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MaskPatch:
    """What a tile may not see among the score columns [start, stop).

    `mask` [rows, columns] multiplies the scores. None stands for the causal triangle: row r sees column c
    if c <= r + `diagonal`, which needs no tensor.
    """

    start: int
    stop: int
    mask: Tensor | None
    diagonal: int = 0

    def apply(self, scores: Tensor) -> None:
        """Zero what is hidden, in place; scores [..., rows, columns]."""
        part = scores[..., self.start : self.stop]
        if self.mask is None:
            part.tril_(self.diagonal)
        else:
            part.mul_(self.mask)

    def hide(self, scores: Tensor) -> None:
        """Set what is hidden to -inf, in place, ahead of a softmax."""
        part = scores[..., self.start : self.stop]
        if self.mask is None:
            hidden = torch.ones(part.shape[-2:], dtype=torch.bool).triu_(self.diagonal + 1)
        else:
            hidden = self.mask == 0
        part.masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxPart:
    """A softmax over some of the keys, to be merged with other keys; at least fp32.

    Attributes:
        values: [H, rows, E], sum of exp(s - top) v.
        top: [H, rows, 1], the largest score, -inf if no key is visible.
        total: [H, rows, 1], sum of exp(s - top).
    """

    values: Tensor
    top: Tensor
    total: Tensor

    def merge(self, other: SoftmaxPart) -> SoftmaxPart:
        """Over the keys of both. Source: Milakov and Gimelshein, arXiv 1805.02867."""
        top = torch.maximum(self.top, other.top)
        base = top.clamp(min=torch.finfo(top.dtype).min)
        mine, theirs = (self.top - base).exp_(), (other.top - base).exp_()
        return SoftmaxPart(
            self.values * mine + other.values * theirs, top, self.total * mine + other.total * theirs
        )

    def result(self) -> Tensor:
        """[H, rows, E]; zero where no key is visible."""
        return self.values / self.total.clamp(min=torch.finfo(self.total.dtype).tiny)


class MatrixRoute(ABC):
    """How one back-end multiplies; stateless.

    Attributes:
        row_tile: rows of one score tile that suit this route: fewer calls against a larger masked triangle.
    """

    name: str
    row_tile: int

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [rows, in], weight [out, in], bias [out] -> [rows, out]."""

    @abstractmethod
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, patches: tuple[MaskPatch, ...], bias: Tensor | None
    ) -> Tensor:
        """Sum of silu(q.k + bias) v over keys.

        Args:
            q: [H, rows, A], already scaled; each head contiguous.
            k: [H, keys, A]; v: [H, keys, E]; each head contiguous, rows of zeros contribute nothing.
            patches: masks on parts of the scores, the same for all heads.
            bias: None, [H, 1, keys] or [H, rows, keys].

        Returns:
            [H, rows, E] in the input dtype.
        """

    def attend_softmax(
        self, q: Tensor, k: Tensor, v: Tensor, patches: tuple[MaskPatch, ...], bias: Tensor | None
    ) -> SoftmaxPart:
        """Softmax over the given keys; arguments as for `attend`, but padding keys are masked."""
        scores = self.scores(q, k)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if bias is not None:
            scores += bias
        for patch in patches:
            patch.hide(scores)
        top = scores.amax(-1, keepdim=True)
        scores.sub_(top.clamp(min=torch.finfo(top.dtype).min)).exp_()
        total = scores.sum(-1, keepdim=True)
        values = self.combine(scores.to(v.dtype), v)
        return SoftmaxPart(values.to(scores.dtype), top, total)

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """[H, rows, A] x [H, keys, A] -> [H, rows, keys], in memory of its own."""

    @abstractmethod
    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        """[H, rows, keys] x [H, keys, E] -> [H, rows, E]."""


class AtenRoute(MatrixRoute):
    """Batched products over all heads, activation in place."""

    name = "aten"
    row_tile = 256

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, patches: tuple[MaskPatch, ...], bias: Tensor | None
    ) -> Tensor:
        scores = self.scores(q, k)
        if bias is not None:
            scores += bias
        F.silu(scores, inplace=True)
        for patch in patches:
            patch.apply(scores)
        return self.combine(scores, v)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.bmm(q, k.transpose(1, 2))

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(weights, v)


_NO_SCALARS: list[Any] = []


@functools.cache
def _onednn_computes(dtype: torch.dtype) -> bool:
    """Processors without the instructions refuse some types when a product is made, and not before."""
    some = torch.ones(32, 32, dtype=dtype)
    try:
        torch.ops.mkldnn._linear_pointwise.default(some, some, None, "none", _NO_SCALARS, "")
    except RuntimeError:
        return False
    return True


class OneDnnRoute(MatrixRoute):
    """One fused product per head: scores leave the multiplier already activated."""

    name = "onednn"
    row_tile = 512

    def __init__(self) -> None:
        self._pointwise: Any = torch.ops.mkldnn._linear_pointwise.default

    @staticmethod
    def available(dtype: torch.dtype) -> bool:
        """Whether this build of torch has the fused product for `dtype`, and this processor computes it."""
        if dtype not in (torch.float32, torch.bfloat16):
            return False
        has_library: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return has_library and hasattr(torch.ops.mkldnn, "_linear_pointwise") and _onednn_computes(dtype)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = self._pointwise(x, weight, bias, "none", _NO_SCALARS, "")
        return out

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, patches: tuple[MaskPatch, ...], bias: Tensor | None
    ) -> Tensor:
        out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
        for head in range(q.shape[0]):
            scores = self._activated(q[head], k[head], None if bias is None else bias[head])
            for patch in patches:
                patch.apply(scores)
            self._product(scores, v[head], out[head])
        return out

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        out = q.new_empty(q.shape[0], q.shape[1], k.shape[1])
        for head in range(q.shape[0]):
            out[head] = self.linear(q[head], k[head], None)
        return out

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        out = v.new_empty(weights.shape[0], weights.shape[1], v.shape[2])
        for head in range(weights.shape[0]):
            self._product(weights[head], v[head], out[head])
        return out

    def _product(self, weights: Tensor, v: Tensor, out: Tensor) -> None:
        """out [rows, E] = weights [rows, keys] x v [keys, E]."""
        if weights.dtype == torch.float32:
            out.copy_(self.linear(weights, v.t(), None))
        else:
            torch.mm(weights, v, out=out)

    def _activated(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None and len(bias) > 1:
            # A bias that differs by row cannot ride on the product's epilogue.
            return F.silu(self.linear(q, k, None).add_(bias), inplace=True)
        row = None if bias is None else bias[0].contiguous()
        fused: Tensor = self._pointwise(q, k, row, "swish", _NO_SCALARS, "")
        return fused
