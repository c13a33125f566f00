"""Configuration of a causal transformer ranker: softmax attention, rotary positions, SwiGLU."""

from __future__ import annotations

from relaygr.core.errors import ConfigError
from relaygr.models.config import Limits, RankerConfig, check_limits


class TransformerConfig(
    RankerConfig, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="family", tag="transformer"
):
    """One causal transformer ranker; tokens and heads are those of the HSTU `relay` variant.

    Positions are rotations of queries and keys, so `position_buckets` is 0 and the row's length is bounded
    by `max_seq_len` only. Every token depends on the tokens before it and nothing else: `append`.

    Attributes:
        mlp_size: width of the gated network behind attention.
        rope_theta: base of the rotation's wavelengths.
        window: a token sees at most this many tokens back; 0 = all.
        qk_norm: queries and keys are normalised per head before they are rotated.
    """

    position_buckets: int = 0
    mlp_size: int = 256
    rope_theta: float = 10_000.0
    window: int = 0
    qk_norm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, _LIMITS)
        self.check_tasks_are_bits()
        if self.position_buckets:
            raise ConfigError(
                "model.position_buckets", f"{self.position_buckets}: positions are rotary, use 0"
            )
        if self.qk_dim % 2:
            raise ConfigError("model.qk_dim", f"{self.qk_dim} is odd; rotations need pairs")


_LIMITS: Limits = (
    ("mlp_size", 8, 65536),
    ("rope_theta", 1.0, 1e9),
    ("window", 0, 1 << 20),
)
