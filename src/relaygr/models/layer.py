"""One HSTU layer of the `relay` variant: norm, one projection, attention without softmax, gated output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.interface import Kernel, Plan
from relaygr.models.config import HstuConfig
from relaygr.models.dense import Dense, Norm
from relaygr.models.tokens import GAP_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class Ages:
    """How old a segment's history tokens are when its candidates are scored.

    Attributes:
        rows: rows of the gap table, int64 [tokens], or [runs, tokens] when query times differ.
        runs: None, or the run of each candidate, int64 [candidates].
    """

    rows: Tensor
    runs: Tensor | None = None


class HstuLayer(nn.Module):
    """out = x + [u, o, u * LN(o)] W2, where u, v, q, k = LN(x) W1 + b1 and u is activated."""

    def __init__(self, config: HstuConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads, self.qk_dim, self.v_dim = config.num_heads, config.qk_dim, config.v_dim
        self.value_size = config.num_heads * config.v_dim
        self.key_size = config.num_heads * config.qk_dim
        self.input_norm = Norm(config.hidden_size, config.norm_eps)
        self.uvqk = Dense(config.hidden_size, 2 * (self.value_size + self.key_size))
        self.output_norm = Norm(self.value_size, config.norm_eps)
        self.output = Dense(3 * self.value_size, config.hidden_size, bias=False)
        self.time_bias = nn.Parameter(torch.zeros(GAP_ROWS, self.heads)) if config.score_time_bias else None

    def forward(self, x: Tensor, plan: Plan, kernel: Kernel, ages: Sequence[Ages] | None) -> Tensor:
        """x [rows, D] -> [rows, D]; new history rows' K/V go to the plan's stores.

        Args:
            ages: with a score-time bias, per segment how old its history tokens are.
        """
        mixed = self.uvqk(self.input_norm(x), kernel)
        u, v, q, k = mixed.split((self.value_size, self.value_size, self.key_size, self.key_size), dim=-1)
        u = F.silu(u)
        rows = len(x)
        attended = kernel.run(
            plan,
            self.index,
            q.view(rows, self.heads, self.qk_dim),
            k.view(rows, self.heads, self.qk_dim),
            v.view(rows, self.heads, self.v_dim),
            self._bias(ages, v.dtype),
        ).flatten(1)
        gated = u * self.output_norm(attended)
        out: Tensor = x + self.output(torch.cat([u, attended, gated], dim=-1), kernel)
        return out

    def remember(self, x: Tensor, plan: Plan, kernel: Kernel) -> None:
        """Only leave the K/V of the new history rows x [rows, D] in the plan's stores."""
        normed = self.input_norm(x)
        values, keys = 2 * self.value_size, 2 * self.value_size + self.key_size
        v = self.uvqk.rows(normed, slice(self.value_size, values), kernel)
        k = self.uvqk.rows(normed, slice(keys, None), kernel)
        rows = len(x)
        kernel.remember(
            plan,
            self.index,
            k.view(rows, self.heads, self.qk_dim),
            v.view(rows, self.heads, self.v_dim),
        )

    def _bias(self, ages: Sequence[Ages] | None, dtype: torch.dtype) -> list[Tensor] | None:
        """Per segment [H, tokens] or [H, candidates, tokens]."""
        if self.time_bias is None or ages is None:
            return None
        table = self.time_bias.to(dtype)
        biases = []
        for age in ages:
            bias = F.embedding(age.rows, table).movedim(-1, 0)
            biases.append(bias if age.runs is None else bias.index_select(1, age.runs))
        return biases
