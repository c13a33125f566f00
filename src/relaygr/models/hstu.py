"""Configuration of an HSTU ranker: its variant, switches and the rules that tie them together."""

from __future__ import annotations

from typing import Literal

from relaygr.core.errors import ConfigError
from relaygr.models.config import Cacheable, Limits, RankerConfig, check_limits
from relaygr.models.switches import LayerSwitches, Table
from relaygr.models.variants import Variant, check_variant


class HstuConfig(
    RankerConfig, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="family", tag="hstu"
):
    """One HSTU ranker.

    Attributes:
        variant: whose tokens and heads: this project's own, or one of the published ones.
        layer: the switches of the layer.
        scaling_seqlen: the fixed attention divisor N; part of the model, never derived from a batch.
        contextual_two_way: profile slots see the whole history (then K/V cannot be appended to).
        window: a token sees at most this many tokens back; 0 = all.
        full_tail: the last so many history tokens ignore the window (then K/V cannot be appended to).
        position: "forward" counts from the row's start; "backward_time" counts from the candidates and adds
            the age at query time (then K/V hold for one query time).
        time_buckets: of "backward_time"; its table has one row more.
        time_bucket_limit: ages are clamped to the table's last row, or to its width as one published
            implementation does.
        action_mode: an event's action is added to its item token, is a token of its own behind it, or is
            not read.
        score_time_bias: a learned score bias by the age of a history token at query time.
        items: the item table of a published variant.
        actions: its action table, with "interleave".
        slot_tables: its table of each profile slot; slots may share a table.
        slot_min_history: a slot is zero while the history is shorter than this; one a slot, or none.
        token_mlp, slot_mlp: tokens of events and candidates, or of slots, go through a ReLU network of this
            hidden width; 0 for none.
        relu_last: these networks and the head of "nvidia" end with a ReLU, too.
        action_weights: the bit mask of each action type of "meta_stu".
        action_dim: width of its action table.
        postprocess: what its head does with candidate rows first.
        head_sizes: hidden widths of the head of "nvidia".
    """

    variant: Variant = "relay"
    layer: LayerSwitches = LayerSwitches()
    scaling_seqlen: int = 4096
    contextual_two_way: bool = False
    window: int = 0
    full_tail: int = 0
    position: Literal["forward", "backward_time"] = "forward"
    time_buckets: int = 0
    time_bucket_limit: Literal["rows", "embedding_dim"] = "rows"
    action_mode: Literal["add", "interleave", "none"] = "add"
    score_time_bias: bool = False
    items: Table | None = None
    actions: Table | None = None
    slot_tables: tuple[Table, ...] = ()
    slot_min_history: tuple[int, ...] = ()
    token_mlp: int = 0
    slot_mlp: int = 0
    relu_last: bool = False
    action_weights: tuple[int, ...] = ()
    action_dim: int = 8
    postprocess: Literal["norm", "time_norm", "l2", "none"] = "norm"
    head_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, _LIMITS)
        if self.full_tail and not self.window:
            raise ConfigError("model.full_tail", f"{self.full_tail} needs a window")
        check_variant(self)

    @property
    def cacheable(self) -> Cacheable:
        tied_to_query = self.position == "backward_time"
        if tied_to_query and self.query_times == "candidate":
            return "none"
        two_way = self.contextual_two_way and bool(self.contextual)
        rewrites_the_past = two_way or self.full_tail > 0 or any(self.slot_min_history)
        return "request" if tied_to_query or rewrites_the_past else "append"

    @property
    def tokens_per_event(self) -> int:
        return 2 if self.action_mode == "interleave" else 1

    @property
    def provisional(self) -> int:
        # The newest event's row is the user's vector, and its time bias reads the query time.
        return 1 if self.variant == "meta_research" else 0

    @property
    def alpha(self) -> float:
        return self.layer.alpha or float(self.qk_dim**-0.5)


_LIMITS: Limits = (
    ("scaling_seqlen", 1, 1 << 20),
    ("window", 0, 1 << 20),
    ("full_tail", 0, 1 << 20),
    ("time_buckets", 0, 1 << 20),
    ("token_mlp", 0, 65536),
    ("slot_mlp", 0, 65536),
    ("action_dim", 1, 4096),
)
