"""One HSTU layer with the switches of its published variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel, Plan, ScoreBias
from relaygr.models.dense import Dense, Norm, PlainNorm
from relaygr.models.hstu import HstuConfig
from relaygr.models.layers.ages import AgeBias, Ages
from relaygr.models.layers.interface import Layer, Stack
from relaygr.models.layers.relative import RelativeBias, RelativeTables, Steps
from relaygr.models.row import RowInput
from relaygr.models.tokens.times import GAP_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """What the score biases of a batch read, per segment; None without such a bias."""

    ages: Sequence[Ages] | None = None
    steps: Sequence[Steps] | None = None


class GroupNorm(nn.Module):
    """Layer norm of each head by itself, with one scale and one shift a head; [rows, H, E]."""

    def __init__(self, heads: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))
        self.bias = nn.Parameter(torch.zeros(heads))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = F.layer_norm(x.to(self.weight.dtype), x.shape[-1:], None, None, self.eps)
        return (wide * self.weight[:, None] + self.bias[:, None]).to(x.dtype)


class HstuLayer(Layer[Surroundings]):
    """u, v, q, k = norm(x) W1 + b1, some activated; o = attention; out = x + f(u, o, norm(o)) W2 + b2."""

    def __init__(self, config: HstuConfig, index: int) -> None:
        super().__init__()
        self.index, self.switches = index, config.layer
        self.heads, self.qk_dim, self.v_dim = config.num_heads, config.qk_dim, config.v_dim
        self.value_size = config.num_heads * config.v_dim
        self.key_size = config.num_heads * config.qk_dim
        switches, size, eps = config.layer, config.hidden_size, config.norm_eps
        self.input_norm = Norm(size, eps) if switches.input_norm == "affine" else PlainNorm(eps)
        self.uvqk = Dense(size, 2 * (self.value_size + self.key_size), bias=switches.uvqk_bias)
        self.output_norm = self._output_norm(eps)
        self.output = Dense(switches.output_parts * self.value_size, size, bias=switches.out_bias)
        self.time_bias = nn.Parameter(torch.zeros(GAP_ROWS, self.heads)) if config.score_time_bias else None
        self.relative = RelativeTables(config) if switches.relative_bias != "none" else None

    def forward(self, x: Tensor, plan: Plan, kernel: Kernel, around: Surroundings) -> Tensor:
        mixed = self.uvqk(self.input_norm(x), kernel)
        if self.switches.silu_on == "uvqk":
            mixed = F.silu(mixed)
        u, v, q, k = mixed.split((self.value_size, self.value_size, self.key_size, self.key_size), dim=-1)
        if self.switches.silu_on == "u":
            u = F.silu(u)
        rows = len(x)
        attended = kernel.run(
            plan,
            self.index,
            q.view(rows, self.heads, self.qk_dim),
            k.view(rows, self.heads, self.qk_dim),
            v.view(rows, self.heads, self.v_dim),
            self._bias(around, v.dtype),
        )
        normed = self.output_norm(attended if self.switches.output_norm == "group" else attended.flatten(1))
        out: Tensor = self.output(self._mix(u, attended.flatten(1), normed.flatten(1)), kernel)
        return x + out if self.switches.residual else out.to(x.dtype)

    def remember(self, x: Tensor, plan: Plan, kernel: Kernel, around: Surroundings) -> None:
        normed = self.input_norm(x)
        values, keys = 2 * self.value_size, 2 * self.value_size + self.key_size
        v = self.uvqk.rows(normed, slice(self.value_size, values), kernel)
        k = self.uvqk.rows(normed, slice(keys, None), kernel)
        if self.switches.silu_on == "uvqk":
            v, k = F.silu(v), F.silu(k)
        rows = len(x)
        kernel.remember(
            plan,
            self.index,
            k.view(rows, self.heads, self.qk_dim),
            v.view(rows, self.heads, self.v_dim),
        )

    def _output_norm(self, eps: float) -> nn.Module:
        if self.switches.output_norm == "group":
            return GroupNorm(self.heads, eps)
        return Norm(self.value_size, eps) if self.switches.output_norm == "affine" else PlainNorm(eps)

    def _mix(self, u: Tensor, o: Tensor, z: Tensor) -> Tensor:
        """What the output projection reads."""
        if self.switches.concat == "gate":
            return u * z
        return torch.cat([u, o if self.switches.concat == "u_o_y" else z, u * z], dim=-1)

    def _bias(self, around: Surroundings, dtype: torch.dtype) -> ScoreBias | None:
        if self.time_bias is not None and around.ages is not None:
            return AgeBias.of(self.time_bias.to(dtype), around.ages)
        if self.relative is not None and around.steps is not None:
            return RelativeBias(self.relative, around.steps, self.heads, dtype)
        return None


class HstuStack(Stack[Surroundings]):
    """The layers of an HSTU ranker."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__(HstuLayer(config, i) for i in range(config.num_layers))
        self.config = config

    def around(self, inputs: Sequence[RowInput], plan: Plan) -> Surroundings:
        each = self.config.query_times == "candidate"
        relative = self.config.layer.relative_bias != "none"
        return Surroundings(
            ages=[Ages.of(row, each) for row in inputs] if self.config.score_time_bias else None,
            steps=[Steps.of(row) for row in inputs] if relative else None,
        )
