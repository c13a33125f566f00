"""Sizes of a linear-attention model's states and records, and the state that a prompt leaves behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relaygr.memory.layout import DTYPES

INDEX_BYTES = 4  # of one entry of an ancestor index


class LinearBytes(NamedTuple):
    """Bytes of one request over all linear layers, apart: recurrent states and records; convolution rows."""

    state: int
    convolution: int

    @property
    def total(self) -> int:
        return self.state + self.convolution


@dataclass(frozen=True, slots=True)
class RecurrentLayout:
    """Shape and types of what linear-attention layers keep.

    Attributes:
        layers: linear ones only.
        decay_shape: of one token's ln a in a record, (Hv,) or (heads, dk); () if decays are constant.
        taps, channels: of the short convolution; 1 tap for none.
        key_dtype, row_dtype: of recorded keys and of convolution rows; the model's will do.
        state_dtype: of states, recorded updates and decays.

    Raises:
        ValueError: naming the field.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    decay_shape: tuple[int, ...]
    taps: int = 1
    channels: int = 0
    key_dtype: torch.dtype = torch.float32
    row_dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("layers", "key_heads", "value_heads", "key_dim", "value_dim", "taps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if any(size < 1 for size in self.decay_shape):
            raise ValueError(f"decay_shape: {self.decay_shape} must be sizes of at least 1")
        if self.channels < 0 or (self.channels == 0) != (self.taps == 1):
            raise ValueError(f"channels: {self.channels} do not fit {self.taps} taps")
        for name in ("key_dtype", "row_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(
                    f"{name}: {getattr(self, name)} must be one of {', '.join(map(str, DTYPES))}"
                )
        if self.state_dtype not in (torch.float32, torch.float64):
            raise ValueError(f"state_dtype: {self.state_dtype} must be float32 or float64")

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def prompt_bytes(self) -> LinearBytes:
        """Of a prompt's state, at any length."""
        state = self.layers * math.prod(self.state_shape) * self.state_dtype.itemsize
        return LinearBytes(state, self.layers * (self.taps - 1) * self.channels * self.row_dtype.itemsize)

    @property
    def slot_bytes(self) -> LinearBytes:
        """Of one record: a token fed to one beam."""
        wide = self.value_heads * self.value_dim + (math.prod(self.decay_shape) if self.decay_shape else 0)
        keys = self.key_heads * self.key_dim * self.key_dtype.itemsize
        rows = self.channels * self.row_dtype.itemsize
        return LinearBytes(self.layers * (keys + wide * self.state_dtype.itemsize), self.layers * rows)

    def request_bytes(self, widths: Sequence[int]) -> LinearBytes:
        """Of one request: the prompt's state and a record for each beam of each round that is fed.

        The ancestor index comes on top, once for all layers of a model: `index_bytes`.
        """
        slots, prompt, slot = sum(widths), self.prompt_bytes, self.slot_bytes
        return LinearBytes(prompt.state + slots * slot.state, prompt.convolution + slots * slot.convolution)

    def materialised_bytes(self, width: int) -> LinearBytes:
        """Of a state and convolution rows for each beam instead."""
        return LinearBytes(width * self.prompt_bytes.state, width * self.prompt_bytes.convolution)


def index_bytes(rounds: int, width: int) -> int:
    """Of a request's ancestor index, whatever the number and kinds of its layers."""
    return INDEX_BYTES * rounds * width


class PromptState:
    """What a prompt leaves behind on all linear layers: fixed in size, exact to continue, not to be cut back.

    Changes: only through the views it gives.

    Attributes:
        tokens: how many tokens the state stands behind; the owner counts.
    """

    def __init__(
        self,
        layout: RecurrentLayout,
        device: torch.device | str = "cpu",
        parts: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Before the first token; or in the memory `parts`, as of `buffers`, which holds anything yet."""
        self.layout, self.tokens = layout, 0
        self._states, self._rows = buffers(layout, device) if parts is None else parts

    @property
    def nbytes(self) -> LinearBytes:
        return LinearBytes(self._states.nbytes, self._rows.nbytes)

    def state(self, layer: int) -> Tensor:
        """[Hv, dk, dv], a view."""
        return self._states[layer]

    def rows(self, layer: int) -> Tensor:
        """The rows before the convolution of the last taps - 1 tokens, [taps - 1, C], a view."""
        return self._rows[layer]

    def write(self, layer: int, state: Tensor, rows: Tensor | None = None) -> None:
        """Set one layer's state and, if it has a convolution, its rows."""
        if state.shape != self._states[layer].shape or state.dtype != self._states.dtype:
            raise ValueError(f"state: {state.dtype} {tuple(state.shape)} does not fit {self.layout}")
        if (rows is None) != (self.layout.taps == 1):
            raise ValueError("rows: must be given for layers with a convolution, and only for them")
        if rows is not None:
            if rows.shape != self._rows[layer].shape or rows.dtype != self._rows.dtype:
                raise ValueError(f"rows: {rows.dtype} {tuple(rows.shape)} do not fit {self.layout}")
            self._rows[layer].copy_(rows.detach())
        self._states[layer].copy_(state.detach())

    def clear(self) -> None:
        """Stand before the first token again."""
        self._states.zero_()
        self._rows.zero_()
        self.tokens = 0

    def copy_from(self, other: PromptState) -> None:
        """Stand where `other` does, on whatever device that lies; ValueError for another layout."""
        if other.layout != self.layout:
            raise ValueError(f"a state of {other.layout} does not fit {self.layout}")
        self._states.copy_(other._states)
        self._rows.copy_(other._rows)
        self.tokens = other.tokens

    def copy(self) -> PromptState:
        """A snapshot that shares no memory with this one."""
        other = PromptState(self.layout, self._states.device)
        other.copy_from(self)
        return other


def buffers(
    layout: RecurrentLayout, device: torch.device | str = "cpu", count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Zeroed memory for a state: [layers, Hv, dk, dv] and rows [layers, taps - 1, C]; for `count` of them,
    with that in front.
    """
    front = () if count is None else (count,)
    states = torch.zeros(*front, layout.layers, *layout.state_shape, dtype=layout.state_dtype, device=device)
    size = (*front, layout.layers, layout.taps - 1, layout.channels)
    return states, torch.zeros(size, dtype=layout.row_dtype, device=device)
