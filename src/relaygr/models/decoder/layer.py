"""What all decoder layers share: pre-norms, an output projection and SwiGLU, gate and up fused.

What a layer mixes in from other tokens, and what it keeps of them, is its own kind's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.linear import Linear
from relaygr.models.decoder.batch import BeamBatch, PromptBatch
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.rope import Rotation
from relaygr.models.dense import OffsetRmsNorm, RmsNorm


class Projection(nn.Module):
    """y = x W^T + b through a given route."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor, linear: Linear, outputs: slice | None = None) -> Tensor:
        """x [rows, in] -> [rows, out], or only the given outputs."""
        x = x.to(self.weight.dtype)
        if outputs is None:
            return linear(x, self.weight, self.bias)
        return linear(x, self.weight[outputs], None if self.bias is None else self.bias[outputs])


def make_norm(config: DecoderConfig, size: int) -> RmsNorm:
    """A norm in the model's convention."""
    return (OffsetRmsNorm if config.offset_norms else RmsNorm)(size, config.norm_eps)


class DecoderLayer(nn.Module, ABC):
    """One layer; rows x [n, D] in fp32 or wider. Serving calls may write over their x.

    Args:
        index: which of the layers of its kind it is, from 0.
        mixed: width of what its mixing yields, before the output projection.
    """

    def __init__(self, config: DecoderConfig, index: int, mixed: int, bias: bool) -> None:
        super().__init__()
        self.config, self.index = config, index
        size = config.hidden_size
        self.attention_norm = make_norm(config, size)
        self.output = Projection(mixed, size, bias)
        self.mlp_norm = make_norm(config, size)
        self.gate_up = Projection(size, 2 * config.mlp_size, False)
        self.down = Projection(config.mlp_size, size, False)

    @abstractmethod
    def prompt(self, x: Tensor, batch: PromptBatch) -> Tensor:
        """New prompt rows; what later rows need of them is kept."""

    @abstractmethod
    def last(self, x: Tensor, batch: PromptBatch) -> Tensor:
        """As `prompt`, but only each request's last row comes out, [requests, D]."""

    @abstractmethod
    def remember(self, x: Tensor, batch: PromptBatch) -> None:
        """As `prompt`, but nothing comes out."""

    @abstractmethod
    def beams(self, x: Tensor, batch: BeamBatch) -> Tensor:
        """One decode step."""

    @abstractmethod
    def whole(self, x: Tensor, batch: int, rotation: Rotation) -> Tensor:
        """Whole rows [batch * n, D], of n tokens each, under autograd; `rotation` is of all of them."""

    def finish(self, x: Tensor, mixed: Tensor, linear: Linear) -> Tensor:
        """The rest of the layer: x [n, D] and mixed [n, ...] -> [n, D]. Writes over `x` when serving."""
        serving = not torch.is_grad_enabled()
        mixed = self.output(mixed.reshape(len(x), -1), linear)
        x = x.add_(mixed) if serving else x + mixed
        gate, up = self.gate_up(self.mlp_norm(x), linear).chunk(2, dim=-1)
        inner = F.silu(gate, inplace=True).mul_(up) if serving else F.silu(gate) * up
        mixed = self.down(inner, linear)
        return x.add_(mixed) if serving else x + mixed
