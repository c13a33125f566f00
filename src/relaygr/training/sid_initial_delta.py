"""What the first linear layer of a generator starts from: the token before, or all of repeating in one layer.

The convolution lets a key hold tokens before its own while the value is the token itself, so that one linear
layer is both steps of repeating a sequence: a state maps what came before to what followed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relaygr.models.decoder.delta import DeltaLayer

_TAP = 0.3  # of what passes the convolution: so small that its SiLU halves it and hardly bends it
_OPEN = 2.0  # before the SiLU of an output gate
_SURE, _SLOW = 1.5, -3.0  # before the sigmoid of a write strength
_KEPT = 0.003  # -ln of what is left of a state a token later
_LAGS = (1.0, 0.7, 0.6)  # how much each of the last tokens counts in a comparison, newest first
_CONSTANT = 0.6  # of every key and query: what no key is like reads the mean of what was written
_COPIED = 6.0
_RECENT = 4.0


def remember_before(layer: DeltaLayer, common: Tensor, content: Tensor, output: Tensor) -> None:
    """Head 1 reads the content [k, D] of the token before and adds it by `output` [D, k].

    All keys are one, which the delta rule overwrites: the state is the newest value.
    """
    writer = _Writer(layer, common)
    rows = content[: layer.linear.value_dim]
    writer.keys(0, [], [], 1.0)
    writer.value(0, rows, 1, _SURE)
    # Normalised, so as long as a row's own content is after the layer's norm.
    writer.output(0, output[:, : len(rows)] * _length(layer, rows))


def repeat(layer: DeltaLayer, common: Tensor, content: Tensor) -> None:
    """Head 1 reads what followed the last tokens the last time; another key head's first reads recent tokens.

    Args:
        common: [D], in all tokens.
        content: [k, D], tells them apart.
    """
    linear, writer = layer.linear, _Writer(layer, common)
    lags = min(linear.taps - 1, len(_LAGS), linear.key_dim - 1)
    if not lags:
        return
    each = min((linear.key_dim - 1) // lags, len(content))
    group = linear.value_heads // linear.key_heads
    queries = [(content[:each] * _LAGS[lag], lag) for lag in range(lags)]
    keys = [(rows, lag + 1) for rows, lag in queries]
    writer.keys(0, queries, keys, _CONSTANT)
    rows = content[: linear.value_dim]
    writer.value(0, rows, 0, _SURE)
    writer.output(0, rows.t() * (_COPIED / math.sqrt(linear.value_dim)))
    if linear.key_heads > 1:
        writer.keys(1, [], [], 1.0)
        writer.value(group, rows, 0, _SLOW)
        writer.output(group, rows.t() * (_RECENT / math.sqrt(linear.value_dim)))


def _length(layer: DeltaLayer, rows: Tensor) -> float:
    """Of a row's content [k, D] of D, half of it being common, over that of a head that is normalised."""
    return math.sqrt(len(rows) / 2) / math.sqrt(layer.linear.value_dim)


class _Writer:
    """Sets heads of one layer; rows come normalised, half of each is `common` [D]."""

    def __init__(self, layer: DeltaLayer, common: Tensor) -> None:
        self._layer, self._linear = layer, layer.linear
        self._common = common * math.sqrt(2 / len(common))  # reads 1 off every row
        self._inputs, self._taps = layer.inputs.weight, layer.convolution.weight

    def keys(
        self, head: int, queries: list[tuple[Tensor, int]], keys: list[tuple[Tensor, int]], constant: float
    ) -> None:
        """Maps [n, D] of tokens some places back, one behind another, and the same number for all tokens."""
        linear = self._linear
        for start, parts in ((0, queries), (linear.key_size, keys)):
            at = start + head * linear.key_dim
            self._inputs[at : at + linear.key_dim] = 0
            self._channels(at, self._common[None] * constant, 0)
            at += 1
            for rows, lag in parts:
                # Each part is of length 1 for a row's content.
                self._channels(at, rows * math.sqrt(2 / len(rows)), lag)
                at += len(rows)

    def value(self, head: int, rows: Tensor, lag: int, strength: float) -> None:
        """A map [k, D] of the token `lag` places back; `strength` before its sigmoid; hardly any decay."""
        linear = self._linear
        at = 2 * linear.key_size + head * linear.value_dim
        self._inputs[at : at + linear.value_dim] = 0
        self._channels(at, rows, lag)
        beta = linear.channels + linear.value_size + head
        self._inputs[beta] = self._common * strength
        self._inputs[beta + linear.value_heads] = 0
        self._layer.decay.log_rate[head] = 0
        self._layer.decay.offset[head] = math.log(math.expm1(_KEPT))

    def output(self, head: int, output: Tensor) -> None:
        """A map [D, k] of what the head reads, normalised."""
        linear = self._linear
        at = linear.channels + head * linear.value_dim
        self._inputs[at : at + linear.value_dim] = self._common * _OPEN
        gate = _OPEN * torch.sigmoid(torch.tensor(_OPEN)).item()
        at = head * linear.value_dim
        self._layer.output.weight[:, at : at + output.shape[1]] = output / gate

    def _channels(self, at: int, rows: Tensor, lag: int) -> None:
        """Channels [at, at + n) are a map [n, D] of the token `lag` places back."""
        self._inputs[at : at + len(rows)] = rows
        self._taps[at : at + len(rows)] = 0
        self._taps[at : at + len(rows), -1 - lag] = _TAP
