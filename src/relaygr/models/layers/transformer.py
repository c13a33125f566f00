"""A causal transformer layer: RMSNorm, rotary softmax attention, RMSNorm, SwiGLU.

Candidates stand one place behind the history and see it and themselves, as in every ranker here.
Sources: RMSNorm, Zhang and Sennrich, arXiv 1910.07467; rotary positions, Su et al., arXiv 2104.09864;
SwiGLU, Shazeer, arXiv 2002.05202.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel, Plan
from relaygr.models.dense import Dense, RmsNorm
from relaygr.models.layers.interface import Layer, Stack
from relaygr.models.row import RowInput
from relaygr.models.transformer import TransformerConfig


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Cosine and sine of every packed row's angles, [rows, 1, A / 2] each."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        """Rotate x [rows, H, A]: dimension d pairs with d + A / 2."""
        wide = x.to(self.cos.dtype)
        a, b = wide.chunk(2, dim=-1)
        turned = torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1)
        return turned.to(x.dtype)


class TransformerLayer(Layer[Rotation]):
    """x += attention(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x)))."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads, self.qk_dim, self.v_dim = config.num_heads, config.qk_dim, config.v_dim
        self.key_size = config.num_heads * config.qk_dim
        self.value_size = config.num_heads * config.v_dim
        size, eps = config.hidden_size, config.norm_eps
        self.attention_norm = RmsNorm(size, eps)
        self.qkv = Dense(size, 2 * self.key_size + self.value_size, bias=False)
        self.q_norm = RmsNorm(config.qk_dim, eps) if config.qk_norm else None
        self.k_norm = RmsNorm(config.qk_dim, eps) if config.qk_norm else None
        self.output = Dense(self.value_size, size, bias=False)
        self.mlp_norm = RmsNorm(size, eps)
        self.gate_up = Dense(size, 2 * config.mlp_size, bias=False)
        self.down = Dense(config.mlp_size, size, bias=False)

    def forward(self, x: Tensor, plan: Plan, kernel: Kernel, around: Rotation) -> Tensor:
        mixed: Tensor = self.qkv(self.attention_norm(x), kernel)
        q, k, v = torch.split(mixed, [self.key_size, self.key_size, self.value_size], dim=-1)
        q = self._place(q, self.q_norm, around)
        k = self._place(k, self.k_norm, around)
        attended = kernel.run(plan, self.index, q, k, v.view(len(x), self.heads, self.v_dim))
        x = x + self.output(attended.flatten(1), kernel)
        gate, up = self.gate_up(self.mlp_norm(x), kernel).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * up, kernel)
        return out

    def remember(self, x: Tensor, plan: Plan, kernel: Kernel, around: Rotation) -> None:
        mixed = self.qkv.rows(self.attention_norm(x), slice(self.key_size, None), kernel)
        k, v = torch.split(mixed, [self.key_size, self.value_size], dim=-1)
        k = self._place(k, self.k_norm, around)
        kernel.remember(plan, self.index, k, v.view(len(x), self.heads, self.v_dim))

    def _place(self, x: Tensor, norm: nn.Module | None, rotation: Rotation) -> Tensor:
        """Queries or keys [rows, H A] -> [rows, H, A], normalised and rotated to their places."""
        each = x.view(len(x), self.heads, self.qk_dim)
        return rotation.turn(each if norm is None else norm(each))


class TransformerStack(Stack[Rotation]):
    """The layers of a transformer ranker."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(TransformerLayer(config, i) for i in range(config.num_layers))
        self.config = config

    def around(self, inputs: Sequence[RowInput], plan: Plan) -> Rotation:
        places = torch.zeros(plan.layout.rows, dtype=torch.int64)
        for row, segment, where in zip(inputs, plan.segments, plan.layout.segments, strict=True):
            places[where.history] = torch.arange(segment.cached, segment.tokens)
            high = segment.tokens if row.candidate_high is None else row.candidate_high
            places[where.candidates] = torch.as_tensor(high)
        dims = torch.arange(0, self.config.qk_dim, 2, dtype=torch.float64) / self.config.qk_dim
        angles = places[:, None] * self.config.rope_theta**-dims
        norm = self[0].attention_norm
        assert isinstance(norm, RmsNorm)
        dtype = norm.weight.dtype
        return Rotation(angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None])
