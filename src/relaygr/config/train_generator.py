"""The settings of training a generator of semantic ids, and the size of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError

Arch: TypeAlias = Literal["attention", "hybrid", "linear"]
_LAYERS: dict[Arch, int] = {"attention": 3, "hybrid": 4, "linear": 3}


class TrainGeneratorConfig(Section, frozen=True, kw_only=True):
    """How a decoder is trained to generate the next items' codes.

    Attributes:
        arch: what the layers are: "attention" as in Qwen3; "hybrid" as in Qwen3-Next, linear attention on all
            but every `full_every`-th layer; "linear" is linear attention only.
        layers: 0 is 3, of hybrid decoders 4.
        hidden, heads, kv_heads, head_dim, mlp: shape of the decoder and of its full-attention layers.
        full_every: of a hybrid decoder, the last of so many layers is of full attention.
        linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim: of layers of linear attention.
        conv_taps: tokens that their convolution sees, the newest included.
        max_items: newest items of a history that a prompt holds.
        min_items: training windows have `min_items` to `max_items` items, drawn uniformly.
        batch_windows: windows of one optimiser step.
        within: weight of the items that follow another item of their own second, which no request asks for;
            the first item of a second counts 1.
        half_life: share of the training time after which an example is drawn half as often.
        max_minutes, max_steps: whichever comes first; 0 steps is no limit.
        lr, weight_decay, warmup_steps, clip_norm: of AdamW.
        eval_every_steps, eval_requests, eval_width: how often, on how many validation requests and with
            which beam width recall is measured.
        patience: evaluations without improvement before training stops; 0 never stops early.
    """

    PATH: ClassVar[str] = "train_generator"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "layers": Range(0, 256),
        "hidden": Range(2, 65_536),
        "heads": Range(1, 1024),
        "kv_heads": Range(1, 1024),
        "head_dim": Range(2, 1024),
        "mlp": Range(1, 1 << 20),
        "full_every": Range(2, 256),
        "linear_key_heads": Range(1, 1024),
        "linear_value_heads": Range(1, 1024),
        "linear_key_dim": Range(1, 1024),
        "linear_value_dim": Range(1, 1024),
        "conv_taps": Range(2, 64),
        "max_items": Range(1, 65_536),
        "min_items": Range(1, 65_536),
        "batch_windows": Range(1, 65_536),
        "within": Range(0, 1),
        "half_life": Range(0, 1e9, open_low=True),
        "max_minutes": Range(0, 10_080, open_low=True),
        "max_steps": Range(0, 100_000_000),
        "lr": Range(0, 10, open_low=True),
        "weight_decay": Range(0, 10),
        "warmup_steps": Range(0, 1_000_000),
        "clip_norm": Range(0, 1000, open_low=True),
        "eval_every_steps": Range(1, 1_000_000),
        "eval_requests": Range(1, 1_000_000),
        "eval_width": Range(1, 65_536),
        "patience": Range(0, 1000),
        "seed": Range(0, 2**63 - 1),
    }

    arch: Arch = "attention"
    layers: int = 0
    hidden: int = 64
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 192
    full_every: int = 4
    linear_key_heads: int = 2
    linear_value_heads: int = 2
    linear_key_dim: int = 64
    linear_value_dim: int = 64
    conv_taps: int = 4
    max_items: int = 48
    min_items: int = 16
    batch_windows: int = 16
    within: float = 0.1
    half_life: float = 0.2
    max_minutes: float = 8.0
    max_steps: int = 0
    lr: float = 3e-3
    weight_decay: float = 0.02
    warmup_steps: int = 50
    clip_norm: float = 1.0
    eval_every_steps: int = 400
    eval_requests: int = 1000
    eval_width: int = 32
    patience: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ConfigError(self.key("kv_heads"), f"{self.kv_heads} must divide heads, {self.heads}")
        if self.head_dim % 2:
            raise ConfigError(self.key("head_dim"), f"{self.head_dim} must be even")
        if self.linear_value_heads % self.linear_key_heads:
            told = (
                f"{self.linear_value_heads} must be a multiple of linear_key_heads, {self.linear_key_heads}"
            )
            raise ConfigError(self.key("linear_value_heads"), told)
        if self.arch == "hybrid" and self.depth < self.full_every:
            told = (
                f"{self.full_every} leaves {self.depth} layers without full attention; arch linear has none"
            )
            raise ConfigError(self.key("full_every"), told)
        if self.min_items > self.max_items:
            raise ConfigError(self.key("min_items"), f"{self.min_items} is above max_items, {self.max_items}")

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return self.layers or _LAYERS[self.arch]
