"""The shape of a hybrid decoder's linear layers: the gated delta rule behind a short convolution."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch

from relaygr.core.errors import ConfigError
from relaygr.kernels.recurrent import RecurrentSpec
from relaygr.memory.recurrent import RecurrentLayout

LayerKind = Literal["linear_attention", "full_attention"]


def layer_kinds(layers: int, every: int) -> tuple[LayerKind, ...]:
    """All linear but for the last of every `every` layers."""
    return tuple("linear_attention" if (i + 1) % every else "full_attention" for i in range(layers))


class LinearConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Linear layers of one decoder.

    Attributes:
        layer_types: the kind of every layer of the decoder.
        key_heads, value_heads, key_dim, value_dim: Hk, Hv, dk, dv; value head h reads key head
            h // (Hv / Hk).
        taps: rows that the convolution sees, the token's own included.

    Raises: ConfigError naming the field, its value and its limit.
    """

    layer_types: tuple[LayerKind, ...]
    key_heads: int = 16
    value_heads: int = 32
    key_dim: int = 128
    value_dim: int = 128
    taps: int = 4

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"linear.{name}", f"{getattr(self, name)} must be at least 1")
        if self.value_heads % self.key_heads:
            told = f"{self.value_heads} must be a multiple of the {self.key_heads} key heads"
            raise ConfigError("linear.value_heads", told)
        if self.taps < 2:
            raise ConfigError("linear.taps", f"{self.taps} must be at least 2: the token and one before it")

    @property
    def layers(self) -> int:
        """How many of the decoder's layers are linear."""
        return self.layer_types.count("linear_attention")

    @property
    def spec(self) -> RecurrentSpec:
        return RecurrentSpec("delta", self.key_heads, self.value_heads, self.key_dim, self.value_dim)

    @property
    def key_size(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: all queries, all keys, all values."""
        return 2 * self.key_size + self.value_size

    @property
    def inputs(self) -> int:
        """Outputs of the input projection: channels, then the output's gate, then beta and decay by head."""
        return self.channels + self.value_size + 2 * self.value_heads

    def layout(self, dtype: torch.dtype) -> RecurrentLayout:
        """What the layers keep, for matrices of `dtype`."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return RecurrentLayout(
            self.layers,
            self.key_heads,
            self.value_heads,
            self.key_dim,
            self.value_dim,
            self.spec.decay_shape,
            self.taps,
            self.channels,
            key_dtype=wide,
            row_dtype=dtype,
            state_dtype=wide,
        )
