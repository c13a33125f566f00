"""One decoder layer: grouped-query attention and SwiGLU with pre-norms, Q/K/V and gate/up fused.

Attention itself is the caller's: a layer makes queries, keys and values, and takes what was attended to.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.linear import Linear
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.rope import Rotation
from relaygr.models.dense import RmsNorm


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


class DecoderLayer(nn.Module):
    """Weights of one layer; rows [n, D] in fp32, queries [n, Hq, d], keys and values [n, Hkv, d] between."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.norm_eps
        self.attention_norm = RmsNorm(size, eps)
        fused = config.query_size + 2 * config.kv_size
        self.qkv = Projection(size, fused, config.attention_bias)
        self.q_norm = RmsNorm(config.head_dim, eps) if config.qk_norm else None
        self.k_norm = RmsNorm(config.head_dim, eps) if config.qk_norm else None
        self.output = Projection(config.query_size, size, config.output_bias)
        self.mlp_norm = RmsNorm(size, eps)
        self.gate_up = Projection(size, 2 * config.mlp_size, False)
        self.down = Projection(config.mlp_size, size, False)

    def project(self, x: Tensor, rotation: Rotation, linear: Linear) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all rows; queries and keys are views of one tensor."""
        config = self.config
        mixed = self.qkv(self.attention_norm(x), linear).view(len(x), -1, config.head_dim)
        turned = config.num_heads + config.num_kv_heads
        both = self._place(mixed[:, :turned], self._scale(True, True), rotation)
        return both[:, : config.num_heads], both[:, config.num_heads :], mixed[:, turned:]

    def query(self, x: Tensor, rotation: Rotation, linear: Linear) -> Tensor:
        """Queries only."""
        mixed = self.qkv(self.attention_norm(x), linear, slice(self.config.query_size))
        return self._place(mixed.view(len(x), -1, self.config.head_dim), self._scale(True, False), rotation)

    def remember(self, x: Tensor, rotation: Rotation, linear: Linear) -> tuple[Tensor, Tensor]:
        """Keys and values only."""
        config = self.config
        mixed = self.qkv(self.attention_norm(x), linear, slice(config.query_size, None))
        each = mixed.view(len(x), 2 * config.num_kv_heads, config.head_dim)
        keys = self._place(each[:, : config.num_kv_heads], self._scale(False, True), rotation)
        return keys, each[:, config.num_kv_heads :]

    def finish(self, x: Tensor, attended: Tensor, linear: Linear) -> Tensor:
        """The rest of the layer: x [n, D] and attended [n, Hq, d] -> [n, D]. Writes over `x` when serving."""
        serving = not torch.is_grad_enabled()
        mixed = self.output(attended.reshape(len(x), -1), linear)
        x = x.add_(mixed) if serving else x + mixed
        gate, up = self.gate_up(self.mlp_norm(x), linear).chunk(2, dim=-1)
        inner = F.silu(gate, inplace=True).mul_(up) if serving else F.silu(gate) * up
        mixed = self.down(inner, linear)
        return x.add_(mixed) if serving else x + mixed

    def _scale(self, queries: bool, keys: bool) -> Tensor | None:
        """Scales of the chosen heads' norms, [heads, d]."""
        if self.q_norm is None or self.k_norm is None:
            return None
        q = self.q_norm.weight.expand(self.config.num_heads, -1)
        k = self.k_norm.weight.expand(self.config.num_kv_heads, -1)
        return torch.cat([q, k]) if queries and keys else q if queries else k

    def _place(self, x: Tensor, scale: Tensor | None, rotation: Rotation) -> Tensor:
        """Heads [n, H, d], normalised and turned to their places in fp32 or wider."""
        wide = x if x.dtype == torch.float64 else x.float()
        if scale is not None:
            wide = F.rms_norm(wide, wide.shape[-1:], None, self.config.norm_eps) * scale
        return rotation.turn(wide).to(x.dtype)
