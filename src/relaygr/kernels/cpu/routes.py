"""Two routes to the same matrix products: oneDNN with the activation fused, or plain ATen calls.

On a CPU where the BLAS behind ATen lacks the widest vectors, oneDNN's fp32 product is twice as fast; in
bf16 both end in oneDNN, but the fused activation saves one pass over the scores. `kernels.select` measures
and picks.
"""

from __future__ import annotations

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
            bias: None, [H, keys] or [H, rows, keys].

        Returns:
            [H, rows, E] in the input dtype.
        """


class AtenRoute(MatrixRoute):
    """Batched products over all heads, activation in place."""

    name = "aten"
    row_tile = 256

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, patches: tuple[MaskPatch, ...], bias: Tensor | None
    ) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2))
        if bias is not None:
            scores += bias if bias.dim() == 3 else bias[:, None]
        F.silu(scores, inplace=True)
        for patch in patches:
            patch.apply(scores)
        return torch.bmm(scores, v)


_NO_SCALARS: list[Any] = []


class OneDnnRoute(MatrixRoute):
    """One fused product per head: scores leave the multiplier already activated."""

    name = "onednn"
    row_tile = 512

    def __init__(self) -> None:
        self._pointwise: Any = torch.ops.mkldnn._linear_pointwise.default

    @staticmethod
    def available(dtype: torch.dtype) -> bool:
        """Whether this build of torch has the fused product for `dtype`."""
        if dtype not in (torch.float32, torch.bfloat16):
            return False
        has_library: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return has_library and hasattr(torch.ops.mkldnn, "_linear_pointwise")

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = self._pointwise(x, weight, bias, "none", _NO_SCALARS, "")
        return out

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, patches: tuple[MaskPatch, ...], bias: Tensor | None
    ) -> Tensor:
        out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
        for head in range(q.shape[0]):
            scores = self._scores(q[head], k[head], None if bias is None else bias[head])
            for patch in patches:
                patch.apply(scores)
            if scores.dtype == torch.float32:
                out[head] = self._pointwise(scores, v[head].t(), None, "none", _NO_SCALARS, "")
            else:
                torch.mm(scores, v[head], out=out[head])
        return out

    def _scores(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None and bias.dim() == 2:
            # A bias that differs by row cannot ride on the product's epilogue.
            plain: Tensor = self._pointwise(q, k, None, "none", _NO_SCALARS, "")
            return F.silu(plain.add_(bias), inplace=True)
        fused: Tensor = self._pointwise(q, k, bias, "swish", _NO_SCALARS, "")
        return fused
