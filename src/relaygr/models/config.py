"""Configuration of an HSTU ranker: switches, size presets and what they imply for prefix reuse."""

from __future__ import annotations

import difflib
from typing import Literal

import msgspec

from relaygr.core.errors import ConfigError

MAX_ACTION_BITS = 63  # of a non-negative int64

Cacheable = Literal["append", "request", "none"]


class HstuConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One HSTU ranker.

    Attributes:
        hidden_size, num_layers, num_heads, qk_dim, v_dim: D, Y, H, A, E of the layer.
        max_seq_len: most tokens of a row, contextual slots and events together.
        scaling_seqlen: the fixed attention divisor N; part of the model, never derived from a batch.
        max_num_candidates: most candidates of one request.
        contextual: names of the profile slots in front of the history.
        contextual_two_way: profile slots see the whole history (then K/V cannot be appended to).
        window: a token sees at most this many tokens back; 0 = all.
        full_tail: the last so many history tokens ignore the window (then K/V cannot be appended to).
        position_buckets: rows of the forward position table.
        score_time_bias: a learned score bias by the age of a history token at query time.
        last_seen: a candidate token carries the age of its item's last event in the user's own history.
        action_bits: names of the bits of an event's action set, lowest bit first.
        tasks: the heads, a subset of `action_bits`: "will the candidate get this bit".
        item_rows, item_hashes, embedding_dim: the hashed item table; any int64 id is valid.
        norm_eps: epsilon of the layer norms inside the layers.
    """

    family: Literal["hstu"] = "hstu"
    variant: Literal["relay"] = "relay"
    hidden_size: int
    num_layers: int
    num_heads: int
    qk_dim: int
    v_dim: int
    max_seq_len: int = 4096
    scaling_seqlen: int = 4096
    max_num_candidates: int = 16384
    contextual: tuple[str, ...] = ()
    contextual_two_way: bool = False
    window: int = 0
    full_tail: int = 0
    position_buckets: int = 4096
    score_time_bias: bool = False
    last_seen: bool = False
    action_bits: tuple[str, ...] = ("engage",)
    tasks: tuple[str, ...] = ("engage",)
    item_rows: int = 131072
    item_hashes: int = 2
    embedding_dim: int = 64
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"model.{name}", f"{value} is outside [{low}, {high}]")
        if self.full_tail and not self.window:
            raise ConfigError("model.full_tail", f"{self.full_tail} needs a window")
        if len(self.contextual) >= self.max_seq_len:
            raise ConfigError(
                "model.contextual", f"{len(self.contextual)} slots leave no room in {self.max_seq_len}"
            )
        for name in ("action_bits", "tasks", "contextual"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ConfigError(f"model.{name}", f"{values} holds a name twice")
        if not 1 <= len(self.action_bits) <= MAX_ACTION_BITS:
            raise ConfigError(
                "model.action_bits", f"{len(self.action_bits)} names are outside [1, {MAX_ACTION_BITS}]"
            )
        if not self.tasks:
            raise ConfigError("model.tasks", "needs at least one task")
        for task in self.tasks:
            if task not in self.action_bits:
                raise ConfigError("model.tasks", f"{task!r} is not one of the action bits {self.action_bits}")

    @property
    def cacheable(self) -> Cacheable:
        """How far a prefix's K/V may be reused; derived, never set by hand.

        `append`: exact for every later request, and after appending events. `request`: only inside one
        request, because later events change the K/V of earlier tokens. Every relay model has one query
        time per request, so `none` does not occur.
        """
        rewrites_the_past = (self.contextual_two_way and bool(self.contextual)) or self.full_tail > 0
        return "request" if rewrites_the_past else "append"

    @property
    def max_history(self) -> int:
        """Most events of a row."""
        return self.max_seq_len - len(self.contextual)

    @property
    def alpha(self) -> float:
        """The score scale, 1 / sqrt(A)."""
        return float(self.qk_dim**-0.5)


_LIMITS: tuple[tuple[str, float, float], ...] = (
    ("hidden_size", 8, 16384),
    ("num_layers", 1, 128),
    ("num_heads", 1, 128),
    ("qk_dim", 8, 1024),
    ("v_dim", 8, 1024),
    ("max_seq_len", 1, 1 << 20),
    ("scaling_seqlen", 1, 1 << 20),
    ("max_num_candidates", 1, 1 << 20),
    ("window", 0, 1 << 20),
    ("full_tail", 0, 1 << 20),
    ("position_buckets", 1, 1 << 20),
    ("item_rows", 1, 1 << 31),
    ("item_hashes", 1, 8),
    ("embedding_dim", 1, 4096),
    ("norm_eps", 1e-12, 1e-2),
)

PRESETS: dict[str, HstuConfig] = {
    "hstu-tiny": HstuConfig(
        hidden_size=64, num_layers=2, num_heads=2, qk_dim=32, v_dim=32, embedding_dim=32, item_rows=65536
    ),
    "hstu-small": HstuConfig(hidden_size=256, num_layers=4, num_heads=4, qk_dim=64, v_dim=64),
    "hstu-kuairand": HstuConfig(
        hidden_size=512,
        num_layers=3,
        num_heads=4,
        qk_dim=128,
        v_dim=128,
        max_seq_len=8192,
        scaling_seqlen=8192,
    ),
    "hstu-mlperf": HstuConfig(hidden_size=512, num_layers=5, num_heads=4, qk_dim=128, v_dim=128),
}


def preset(name: str) -> HstuConfig:
    """The configuration called `name`.

    Raises:
        ConfigError: listing the nearest names.
    """
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.0)
    raise ConfigError("preset", f"{name!r} is unknown; did you mean {', '.join(near)}?")
