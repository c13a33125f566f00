"""The shape of a decoder, whichever family published it."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch

from relaygr.core.errors import ConfigError
from relaygr.memory.layout import KvLayout
from relaygr.memory.recurrent import RecurrentLayout
from relaygr.models.decoder.linear_config import LayerKind, LinearConfig

Family = Literal["qwen3", "qwen2", "llama", "qwen3_next"]
RopeKind = Literal["default", "linear", "llama3"]


class RopeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How positions become angles.

    Attributes:
        theta: base of the frequencies.
        kind: "default"; "linear" divides all frequencies by `factor`; "llama3" only the low ones.
        factor: how many times longer the context became.
        low_freq_factor, high_freq_factor, original_positions: "llama3" only; wavelengths above
            original_positions / low_freq_factor are divided, those below original_positions /
            high_freq_factor kept, and the ones between blended.
        part: share of a head's dimensions that is turned, from the front.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    part: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.theta < float("inf"):
            raise ConfigError("rope.theta", f"{self.theta} must be positive and finite")
        if not 1 <= self.factor < float("inf"):
            raise ConfigError("rope.factor", f"{self.factor} must be at least 1 and finite")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                "rope.high_freq_factor",
                f"{self.high_freq_factor} must be above low_freq_factor, {self.low_freq_factor}, above 0",
            )
        if not 0 < self.part <= 1:
            raise ConfigError("rope.part", f"{self.part} must be above 0 and at most 1")
        if self.original_positions < 1:
            raise ConfigError("rope.original_positions", f"{self.original_positions} must be at least 1")


class DecoderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One decoder.

    Attributes:
        family: whose file layout and which of the differences it has: "qwen3" normalises queries and keys by
            head, "qwen2" has biases on Q, K and V; "qwen3_next" is "qwen3" with gated attention, norms that
            multiply by 1 + weight, and linear attention on the layers that `linear` names.
        vocab_size, hidden_size, mlp_size, num_layers: V, D, M, Y.
        num_heads, num_kv_heads, head_dim: Hq, Hkv, d; query head h reads K/V head h // (Hq / Hkv).
        norm_eps: epsilon of every RMS norm.
        rope: how positions become angles.
        tie_embeddings: the output head is the embedding table.
        attention_bias: biases on the Q, K, V projections, and but for "qwen2" on the output projection.
        max_positions: tokens of the longest row, fed codes included.
        level_heads: the vocabulary is nothing but the codebooks of the levels, so that a level's columns are
            a head of its own and scores over the whole vocabulary are scores over the level.
        linear: which layers keep a recurrent state, and its shape; "qwen3_next" only.

    Raises: ConfigError naming the field, its value and its limit.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    rope: RopeConfig = msgspec.field(default_factory=RopeConfig)
    tie_embeddings: bool = False
    attention_bias: bool = False
    max_positions: int = 4096
    level_heads: bool = False
    linear: LinearConfig | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(name, f"{getattr(self, name)} must be at least 1")
            # What a file claims is looked at before its tensors are: no claim may take for ever.
            if getattr(self, name) > (most := _MOST_LAYERS if name == "num_layers" else _MOST):
                raise ConfigError(name, f"{getattr(self, name)} must be at most {most}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError("num_kv_heads", f"{self.num_kv_heads} must divide num_heads, {self.num_heads}")
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            part = f", of which partial_rotary_factor {self.rope.part} leaves {self.rotary_dim},"
            turned = "" if self.rope.part == 1 else part
            told = f"{self.head_dim}{turned} must be even and above 0: it is rotated in pairs"
            raise ConfigError("head_dim", told)
        if not 0 <= self.norm_eps < 1:
            raise ConfigError("norm_eps", f"{self.norm_eps} must be in [0, 1)")
        if self.family == "qwen2" and not self.attention_bias:
            raise ConfigError("attention_bias", "qwen2 always has biases on Q, K and V")
        if (self.linear is not None) != (self.family == "qwen3_next"):
            raise ConfigError(
                "linear", f"must be given for qwen3_next and for no other; family {self.family}"
            )
        if self.linear is not None and len(self.linear.layer_types) != self.num_layers:
            told = f"{len(self.linear.layer_types)} kinds for {self.num_layers} layers"
            raise ConfigError("linear.layer_types", told)

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised by head."""
        return self.family in ("qwen3", "qwen3_next")

    @property
    def gated(self) -> bool:
        """Whether what was attended to is multiplied by a gate, which the query projection yields too."""
        return self.family == "qwen3_next"

    @property
    def offset_norms(self) -> bool:
        """Whether norms multiply by 1 + weight."""
        return self.family == "qwen3_next"

    @property
    def layer_types(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        if self.linear is not None:
            return self.linear.layer_types
        full: tuple[LayerKind, ...] = ("full_attention",)
        return full * self.num_layers

    @property
    def full_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layer_types.count("full_attention")

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are turned, the first ones."""
        return int(self.head_dim * self.rope.part)

    @property
    def output_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self.attention_bias and self.family != "qwen2"

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def query_rows(self) -> int:
        """Outputs of the query projection: with a gate, each head's query and then its gate."""
        return self.query_size * (2 if self.gated else 1)

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values, of one token on one layer."""
        return self.num_kv_heads * self.head_dim

    def kv_layout(self, dtype: torch.dtype, page_tokens: int) -> KvLayout:
        """The keys and values that a row leaves behind; ValueError if no layer keeps any."""
        return KvLayout(self.full_layers, self.num_kv_heads, self.head_dim, self.head_dim, dtype, page_tokens)

    def recurrent_layout(self, dtype: torch.dtype) -> RecurrentLayout | None:
        """What linear layers keep of a prompt and of beams; None if there are none.

        States, updates and recorded keys stay wide: a rounded key costs three digits of all that follows.
        """
        if self.linear is None or not self.linear.layers:
            return None
        return self.linear.layout(dtype)


_MOST, _MOST_LAYERS = (1 << 31) - 1, 4096
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "mlp_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_positions",
)
