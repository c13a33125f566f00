"""A layer of linear attention by the gated delta rule, behind a short convolution (Qwen3-Next).

Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.convolution import convolve_prompt
from relaygr.kernels.linear import Linear
from relaygr.models.decoder.batch import BeamBatch, PromptBatch, joined, wide
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.delta_rows import convolved_rows, delta_rows
from relaygr.models.decoder.layer import DecoderLayer, Projection
from relaygr.models.decoder.linear_config import LinearConfig
from relaygr.models.decoder.rope import Rotation
from relaygr.models.dense import RmsNorm

_LENGTH_EPS = 1e-6  # of the sum of squares of a query or key
_RATES = (1.0, 16.0)  # of fresh weights, as published: a head forgets at a rate times a step
_STEPS = (1e-3, 1e-1)
_LANES = 64  # at least as many as a vector of any processor has elements


class Decay(nn.Module):
    """ln a = -exp(log_rate) softplus(a + offset) of each head, in fp32 also of a narrow model."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.zeros(heads))
        self.offset = nn.Parameter(torch.zeros(heads))

    def forward(self, a: Tensor) -> Tensor:
        """a [..., heads] -> ln a, not above 0."""
        return -self.log_rate.exp() * _softplus(a.to(self.offset.dtype) + self.offset)

    def init_weights(self, generator: torch.Generator) -> None:
        """Heads that remember between some ten and some thousand tokens."""
        drawn = torch.rand(2, len(self.offset), generator=generator)
        low, high = (math.log(step) for step in _STEPS)
        step = (low + drawn[1] * (high - low)).exp()
        self.log_rate.copy_((_RATES[0] + drawn[0] * (_RATES[1] - _RATES[0])).log())
        self.offset.copy_(step + torch.log(-torch.expm1(-step)))  # softplus gives the step


def _softplus(x: Tensor) -> Tensor:
    """While serving all elements take one loop: torch leaves those that fill no vector at the end to another,
    with other last bits, and few heads do not fill one with every row."""
    rest = 0 if torch.is_grad_enabled() else -x.numel() % _LANES
    if not rest:
        return F.softplus(x)
    return F.softplus(F.pad(x.flatten(), (0, rest)))[:-rest].view(x.shape)


class Convolution(nn.Module):
    """Taps of each channel [C, taps], oldest first."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, taps))

    def init_weights(self, generator: torch.Generator) -> None:
        bound = self.weight.shape[1] ** -0.5
        self.weight.copy_((2 * torch.rand(self.weight.shape, generator=generator) - 1) * bound)


class _Token(NamedTuple):
    """Inputs of the recurrence for rows, in fp32 or wider: see `RecurrentKernel`."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor


class DeltaLayer(DecoderLayer):
    """Gated delta rule; a prompt leaves one state and the last rows before the convolution."""

    def __init__(self, config: DecoderConfig, index: int, linear: LinearConfig) -> None:
        super().__init__(config, index, linear.value_size, False)
        self.linear, self.spec = linear, linear.spec
        self.inputs = Projection(config.hidden_size, linear.inputs, False)
        self.convolution = Convolution(linear.channels, linear.taps)
        self.decay = Decay(linear.value_heads)
        self.state_norm = RmsNorm(linear.value_dim, config.norm_eps)  # plain in every family

    def prompt(self, x: Tensor, batch: PromptBatch) -> Tensor:
        mixed = self._mixed(x, batch.linear)
        return self.finish(x, self._gated(self._read(mixed, batch), mixed), batch.linear)

    def last(self, x: Tensor, batch: PromptBatch) -> Tensor:
        mixed = self._mixed(x, batch.linear)
        out = self._read(mixed, batch)
        return self.finish(x[batch.last], self._gated(out[batch.last], mixed[batch.last]), batch.alone)

    def remember(self, x: Tensor, batch: PromptBatch) -> None:
        self._read(self._mixed(x, batch.linear), batch)

    def beams(self, x: Tensor, batch: BeamBatch) -> Tensor:
        mixed = self._mixed(x, batch.linear)
        found = []
        for row, at in zip(batch.rows, batch.spans, strict=True):
            own, channels = row.linear, mixed[at, : self.linear.channels]
            if own is None:
                raise ValueError("linear: a model with linear layers needs its beams' past")
            convolved = own.convolve(self.index, channels, self.convolution.weight, row.anc)
            found.append(own.step(self.index, *self._token(convolved, mixed[at]), row.anc))
        return self.finish(x, self._gated(joined(found), mixed), batch.linear)

    def whole(self, x: Tensor, batch: int, rotation: Rotation) -> Tensor:
        mixed = self._mixed(x, F.linear)
        rows = mixed.view(batch, -1, self.linear.inputs)[:, :, : self.linear.channels]
        convolved = convolved_rows(wide(rows), wide(self.convolution.weight))
        token = self._token(convolved.flatten(0, 1), mixed)
        out = delta_rows(*(part.view(batch, -1, *part.shape[1:]) for part in token))
        return self.finish(x, self._gated(out.flatten(0, 1), mixed), F.linear)

    def _mixed(self, x: Tensor, linear: Linear) -> Tensor:
        """[n, channels | gate | beta | decay]."""
        mixed: Tensor = self.inputs(self.attention_norm(x), linear)
        return mixed

    def _read(self, mixed: Tensor, batch: PromptBatch) -> Tensor:
        """What the rows read [n, Hv, dv]; the states behind them are left in the batch."""
        found = []
        for row, at, states in zip(batch.rows, batch.spans, batch.states, strict=True):
            if row.state is None:
                raise ValueError("state: a model with linear layers needs the prompt's state")
            channels, past = mixed[at, : self.linear.channels], row.state.rows(self.index)
            convolved, kept = convolve_prompt(channels, self.convolution.weight, None, past)
            token = self._token(convolved, mixed[at])
            state = row.state.state(self.index)
            out, state = batch.kernels.recurrent.prefill(self.spec, *token, state)
            states[self.index] = state, kept
            found.append(out)
        return joined(found)

    def _token(self, convolved: Tensor, mixed: Tensor) -> _Token:
        """convolved [n, C] and mixed [n, inputs] of the same rows."""
        linear, rows = self.linear, len(mixed)
        serving = not torch.is_grad_enabled()
        y = F.silu(convolved, inplace=serving)
        both = y[:, : 2 * linear.key_size].view(rows, 2, linear.key_heads, linear.key_dim)
        lengths = torch.rsqrt(both.square().sum(-1, keepdim=True) + _LENGTH_EPS)
        q, k = (both * lengths).unbind(1)
        v = y[:, 2 * linear.key_size :].view(rows, linear.value_heads, linear.value_dim)
        beta, a = wide(mixed[:, -2 * linear.value_heads :]).chunk(2, dim=1)
        return _Token(q * linear.key_dim**-0.5, k, v, self.decay(a), torch.sigmoid(beta))

    def _gated(self, out: Tensor, mixed: Tensor) -> Tensor:
        """Normalised by head and gated, in fp32 or wider; [n, Hv, dv]."""
        start = self.linear.channels
        z = wide(mixed[:, start : start + self.linear.value_size]).view(out.shape)
        normed: Tensor = self.state_norm(out)
        return normed * F.silu(z)
