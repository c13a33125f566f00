"""What every ranker's configuration holds: sizes, inputs, tasks and what they imply for prefix reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from relaygr.core.errors import ConfigError

MAX_ACTION_BITS = 63  # of a non-negative int64

Cacheable = Literal["append", "request", "none"]
Limits = tuple[tuple[str, float, float], ...]


class RankerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ranker of any family.

    Attributes:
        hidden_size, num_layers, num_heads, qk_dim, v_dim: D, Y, H, A, E of the layer.
        max_seq_len: most history tokens of a row, contextual slots included.
        max_num_candidates: most candidates of one request.
        contextual: names of the profile slots in front of the history.
        position_buckets: rows of the position table; 0 for a model without one.
        last_seen: a candidate token carries the age of its item's last event in the user's own history.
        action_bits: names of the bits of an event's action set, lowest bit first.
        tasks: the heads.
        regressions: those of the tasks whose score is the value itself, not the logit of a probability.
        item_rows, item_hashes, embedding_dim: the item table.
        stack_size, head_size: hidden widths of the networks behind tables and in the head.
        norm_eps: epsilon of the norms inside the layers.
        query_times: one query time a request, or each candidate may carry its own.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    qk_dim: int
    v_dim: int
    max_seq_len: int = 4096
    max_num_candidates: int = 16384
    contextual: tuple[str, ...] = ()
    position_buckets: int = 4096
    last_seen: bool = False
    action_bits: tuple[str, ...] = ("engage",)
    tasks: tuple[str, ...] = ("engage",)
    regressions: tuple[str, ...] = ()
    item_rows: int = 131072
    item_hashes: int = 2
    embedding_dim: int = 64
    stack_size: int = 256
    head_size: int = 512
    norm_eps: float = 1e-6
    query_times: Literal["request", "candidate"] = "request"

    def __post_init__(self) -> None:
        check_limits(self, _LIMITS)
        if self.max_history < 1:
            raise ConfigError(
                "model.max_seq_len",
                f"{self.max_seq_len} leaves no room for an event of {self.tokens_per_event} tokens behind "
                f"{len(self.contextual)} profile slots",
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
        for task in self.regressions:
            if task not in self.tasks:
                raise ConfigError("model.regressions", f"{task!r} is not one of the tasks {self.tasks}")

    @property
    def family(self) -> str:
        """Name of the family, as in `config.json`."""
        return str(self.__struct_config__.tag)

    @property
    def alpha(self) -> float:
        """The score scale, 1 / sqrt(A) unless the family says otherwise."""
        return float(self.qk_dim**-0.5)

    @property
    def cacheable(self) -> Cacheable:
        """How far a prefix's K/V may be reused; derived, never set by hand.

        `append`: exact for every later request, and after appending events. `request`: for all candidates
        of one request, because later events or the query time change the K/V of earlier tokens. `none`:
        for one pass only, because candidates of one request stand at different query times.
        """
        return "append"

    @property
    def tokens_per_event(self) -> int:
        return 1

    @property
    def provisional(self) -> int:
        """Newest events (0 or 1) whose rows depend on the query and are computed in every rank call."""
        return 0

    @property
    def max_history(self) -> int:
        """Most events of a row."""
        return (self.max_seq_len - len(self.contextual)) // self.tokens_per_event

    def prefix_tokens(self, events: int) -> int:
        """History tokens of a row of `events` whose K/V can be kept: slots and all but provisional events."""
        return len(self.contextual) + self.tokens_per_event * max(events - self.provisional, 0)

    def check_tasks_are_bits(self) -> None:
        """For heads that predict "will the candidate get this bit"."""
        for task in self.tasks:
            if task not in self.action_bits:
                raise ConfigError("model.tasks", f"{task!r} is not one of the action bits {self.action_bits}")


_LIMITS: Limits = (
    ("hidden_size", 8, 16384),
    ("num_layers", 1, 128),
    ("num_heads", 1, 128),
    ("qk_dim", 8, 1024),
    ("v_dim", 8, 1024),
    ("max_seq_len", 1, 1 << 20),
    ("max_num_candidates", 1, 1 << 20),
    ("position_buckets", 0, 1 << 20),
    ("item_rows", 1, 1 << 31),
    ("item_hashes", 1, 8),
    ("embedding_dim", 1, 4096),
    ("stack_size", 1, 65536),
    ("head_size", 1, 65536),
    ("norm_eps", 1e-12, 1e-2),
)


def check_limits(config: msgspec.Struct, limits: Sequence[tuple[str, float, float]]) -> None:
    """Raise ConfigError for the first field outside its range."""
    for name, low, high in limits:
        value = getattr(config, name)
        if not low <= value <= high:
            raise ConfigError(f"model.{name}", f"{value} is outside [{low}, {high}]")
