"""Small building blocks that multiply through the chosen kernel: dense layers, SwishLN and their stack."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel

_VECTOR = 32  # elements; a multiple of every vector width


class Dense(nn.Module):
    """y = x W^T + b, in the dtype of W, fp32 accumulation."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, kernel: Kernel) -> Tensor:
        return kernel.linear(x.to(self.weight.dtype), self.weight, self.bias)

    def rows(self, x: Tensor, outputs: slice, kernel: Kernel) -> Tensor:
        """Only some of the outputs."""
        bias = None if self.bias is None else self.bias[outputs]
        return kernel.linear(x.to(self.weight.dtype), self.weight[outputs], bias)

    def cast(self, dtype: torch.dtype) -> None:
        """Store weight and bias in `dtype`; norms and tables around them stay as they are."""
        self.weight.data = self.weight.data.to(dtype)
        if self.bias is not None:
            self.bias.data = self.bias.data.to(dtype)


class Norm(nn.Module):
    """Layer norm over the last axis with scale and shift, biased variance, computed in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class PlainNorm(nn.Module):
    """Layer norm over the last axis without scale and shift."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], None, None, self.eps)


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) times a scale, over the last axis, computed in fp32.

    Attributes:
        neutral: the weight that changes nothing.
    """

    neutral: ClassVar[float] = 1.0

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    @property
    def scale(self) -> Tensor:
        """What rows are multiplied by, [size]."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.weight.dtype), x.shape[-1:], self.scale, self.eps).to(x.dtype)


class OffsetRmsNorm(RmsNorm):
    """As `RmsNorm`, but multiplies by 1 + weight, so that zeros change nothing."""

    neutral = 0.0

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)

    @property
    def scale(self) -> Tensor:
        return 1 + self.weight


class ReluStack(nn.Module):
    """Linear layers with a ReLU between them, and behind the last one if `last`."""

    def __init__(self, *sizes: int, last: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Dense(a, b) for a, b in pairwise(sizes))
        self.last = last

    def forward(self, x: Tensor, kernel: Kernel) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x, kernel)
        return F.relu(x) if self.last else x


def _sigmoid(x: Tensor) -> Tensor:
    """Sigmoid of rows [n, width] in whole vectors: the bits of a scalar rest differ, and n moves the rest."""
    missing = -x.shape[-1] % _VECTOR
    if not missing:
        return torch.sigmoid(x)
    return torch.sigmoid(F.pad(x, (0, missing)))[..., : x.shape[-1]]


class SwishNormStack(nn.Module):
    """Linear -> SwishLN -> Linear, with SwishLN(x) = x * sigmoid(LN(x))."""

    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        self.first = Dense(inputs, middle)
        self.norm = Norm(middle, 1e-5)
        self.second = Dense(middle, outputs)

    def forward(self, x: Tensor, kernel: Kernel) -> Tensor:
        hidden = self.first(x, kernel)
        hidden = hidden * _sigmoid(self.norm(hidden))
        out: Tensor = self.second(hidden, kernel)
        return out
