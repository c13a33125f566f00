"""The step model: how the picks so far change what the ranker said of a candidate.

Binary head k: logit' = a_k * logit + c_k + g_k; regression head k: y' = y * exp(c_k + g_k). Exit after
position t: logit e = b_t + g_e + h(conditional outputs), e within [0, 1 - 1e-6]. Each g is a sum over groups
of features of a small net each, out @ tanh(hidden @ features + bias), so that explanations sum. Where the
last layers are zero nothing changes, and the exit does not depend on the item.

Arrays, all float32; `weight`s are [outputs, inputs]:

| name | shape | |
|---|---|---|
| `heads.scale`, `heads.bias` | [K] | a and c; a is 1 for regression heads |
| `groups.G.hidden.weight`, `.hidden.bias` | [H, features of G], [H] | |
| `groups.G.out.weight` | [K + 1, H] | rows: the heads in order, then the exit |
| `exit.bias` | [T] | b_t; the last one goes for all positions from T - 1 on |
| `exit.hidden.weight`, `.hidden.bias`, `.out.weight` | [E, K], [E], [1, E] | if `exit_hidden` = E > 0 |

The inputs of h are conditional logits of binary heads and log(1 + y') of regression heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise import artefact
from relaygr.listwise.arrays import Float32, Float64
from relaygr.listwise.features import FeatureTable, parse_feature
from relaygr.listwise.folds import Fold, Lineage
from relaygr.listwise.pool import Head, HeadKind, sigmoid

NAME = "step"
FORMAT_VERSION = 1
MAX_HAZARD = 1.0 - 1e-6
DEFAULT_WINDOW = 3
MAX_WINDOW = 4096  # picks and shown items whose vectors are kept for each list
DEFAULT_HIDDEN = 16


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of features with a net of its own, and with a line of its own in explanations."""

    name: str
    features: tuple[str, ...]
    hidden: int = DEFAULT_HIDDEN


class HeadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: HeadKind = HeadKind.BINARY


class StepConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of a step model.

    Attributes:
        heads: of the ranker, in order.
        groups: of features; see `features.py` for their names.
        window: picks that similarities look back at.
        watch_head: what the feature `watch` sums up.
        exit: whether users leave; without, the survival stays as it is.
        exit_hidden: units of the net from conditional outputs to the exit; 0 for none.
        positions: T, exit biases.
        fold: whose users it learned from; None if nobody wrote it down.
    """

    heads: tuple[HeadSpec, ...]
    groups: tuple[Group, ...]
    window: int = DEFAULT_WINDOW
    watch_head: str | None = None
    exit: bool = True
    exit_hidden: int = 0
    positions: int = 1
    fold: Fold | None = None
    format_version: int = FORMAT_VERSION


def default_groups(
    attributes: Sequence[str],
    similarity: bool = True,
    hidden: int = DEFAULT_HIDDEN,
    watch: bool = False,
) -> tuple[Group, ...]:
    """Similarity, one group an attribute, what was watched so far, and the place in list and session."""
    groups = [
        Group(name=each, features=(f"count:{each}", f"recency:{each}"), hidden=hidden) for each in attributes
    ]
    if similarity:
        groups.insert(
            0, Group(name="similarity", features=("similarity:max", "similarity:mean"), hidden=hidden)
        )
    if watch:
        groups.append(Group(name="watch", features=("watch",), hidden=hidden))
    return (*groups, Group(name="place", features=("position", "session", "page"), hidden=hidden))


@dataclass(frozen=True, slots=True)
class Net:
    """One group's net in float64, for explanations."""

    name: str
    rows: list[int]  # of the context
    hidden: Float64  # [H, features]
    bias: Float64  # [H, 1]
    out: Float64  # [K + 1, H]

    def __call__(self, context: Float64) -> Float64:
        """Terms [..., K + 1, n] of contexts [..., F, n]."""
        terms: Float64 = self.out @ np.tanh(self.hidden @ context[..., self.rows, :] + self.bias)
        return terms


class StepModel:
    """A checked set of arrays. Immutable; shared by all requests.

    Raises:
        ConfigError: naming what is missing, unexpected, mis-shaped or out of range.
    """

    def __init__(self, config: StepConfig, tensors: Mapping[str, Float32]) -> None:
        _check_config(config)
        artefact.check(NAME, tensors, shapes(config))
        self.config = config
        self.heads = tuple(Head(each.name, each.kind) for each in config.heads)
        self.tensors: Mapping[str, Float32] = dict(tensors)
        self.version = artefact.version_of(config, tensors)
        self.features = FeatureTable([group.features for group in config.groups], config.window)
        self.binary = np.array([head.kind is HeadKind.BINARY for head in self.heads])
        self._regressions = [int(at) for at in np.flatnonzero(~self.binary)]
        self.scale = tensors["heads.scale"].astype(np.float64)
        self.bias = tensors["heads.bias"].astype(np.float64)
        if not (self.scale[~self.binary] == 1.0).all():
            raise ConfigError("heads.scale", "regression heads have no scale, so theirs must be 1")
        self.exit_bias = tensors["exit.bias"].astype(np.float64)
        self.nets = [self._net(group) for group in config.groups]
        self._stack()

    def _net(self, group: Group) -> Net:
        prefix = f"groups.{group.name}."
        return Net(
            group.name,
            self.features.rows(group.features),
            self.tensors[f"{prefix}hidden.weight"].astype(np.float64),
            self.tensors[f"{prefix}hidden.bias"].astype(np.float64)[:, None],
            self.tensors[f"{prefix}out.weight"].astype(np.float64),
        )

    def _stack(self) -> None:
        """All groups as one net over all features, float32, for searches."""
        units = sum(group.hidden for group in self.config.groups)
        self.stacked_hidden = np.zeros((units, len(self.features)), dtype=np.float32)  # [sum H, F]
        self.stacked_bias = np.zeros(units, dtype=np.float32)
        self.stacked_out = np.zeros((len(self.heads) + 1, units), dtype=np.float32)
        at = 0
        for net in self.nets:
            rows = slice(at, at + len(net.bias))
            self.stacked_hidden[rows, net.rows] = net.hidden
            self.stacked_bias[rows] = net.bias[:, 0]
            self.stacked_out[:, rows] = net.out
            at = rows.stop
        self.stacked_still = np.ascontiguousarray(self.stacked_hidden[:, self.features.still])
        self.stacked_moving = np.ascontiguousarray(self.stacked_hidden[:, self.features.moving])
        self.exit_hidden = self.exit_hidden_bias = self.exit_out = None
        if self.config.exit_hidden:
            self.exit_hidden = self.tensors["exit.hidden.weight"].astype(np.float64)
            self.exit_hidden_bias = self.tensors["exit.hidden.bias"].astype(np.float64)[:, None]
            self.exit_out = self.tensors["exit.out.weight"].astype(np.float64)

    @property
    def lineage(self) -> Lineage:
        """What a judge has to differ from."""
        return Lineage(version=self.version, fold=self.config.fold, arch=NAME)

    def conditional(self, outputs: Float64, corrections: Float64) -> Float64:
        """The ranker's outputs with corrections g: logits and positive values. All [K, n, m]."""
        changed = self.scale[:, None, None] * outputs + (self.bias[:, None, None] + corrections)
        for at in self._regressions:
            changed[at] = outputs[at] * np.exp(self.bias[at] + corrections[at])
        return changed

    def natural(self, conditional: Float64) -> Float64:
        """Conditional outputs as probabilities and values; a new array. [K, ...]"""
        values = sigmoid(conditional)
        for at in self._regressions:
            values[at] = conditional[at]
        return values

    def exit_term(self, conditional: Float64) -> Float64 | None:
        """h of conditional outputs [..., K, n]; None if the model has no such net. [..., n]"""
        if self.exit_hidden is None or self.exit_hidden_bias is None or self.exit_out is None:
            return None
        inputs = conditional
        if self._regressions:
            inputs = conditional.copy()
            for at in self._regressions:
                inputs[..., at, :] = np.log1p(conditional[..., at, :])
        term: Float64 = self.exit_out @ np.tanh(self.exit_hidden @ inputs + self.exit_hidden_bias)
        return term[..., 0, :]

    def exit_bias_at(self, t: int) -> float:
        return float(self.exit_bias[min(t, len(self.exit_bias) - 1)])

    def save(self, folder: Path) -> None:
        """Write `step.json` and `step.safetensors`."""
        artefact.save(folder, NAME, self.config, self.tensors)

    @classmethod
    def load(cls, folder: Path) -> StepModel:
        """Read what `save` wrote. Raises ConfigError."""
        return cls(*artefact.load(folder, NAME, StepConfig))

    @classmethod
    def zero(cls, config: StepConfig, exit_logit: float = -2.0, seed: int = 0) -> StepModel:
        """The model before training: it changes nothing, and `exit_logit` is every position's.

        Hidden layers are random by `seed`, uniform within 1 / sqrt(inputs), as a net with zeroes in both
        layers could not learn.
        """
        random = np.random.default_rng(seed)
        tensors: dict[str, Float32] = {}
        for name, shape in shapes(config).items():
            if ".hidden." in name:
                inputs = shapes(config)[name.replace("bias", "weight")][1]
                bound = 1.0 / np.sqrt(max(inputs, 1))
                tensors[name] = random.uniform(-bound, bound, shape).astype(np.float32)
            else:
                tensors[name] = np.zeros(shape, dtype=np.float32)
        tensors["heads.scale"][:] = 1.0
        tensors["exit.bias"][:] = exit_logit
        return cls(config, tensors)


def hazard(logits: Float64) -> Float64:
    """Exit probabilities of logits, within [0, 1 - 1e-6]."""
    clipped: Float64 = np.minimum(sigmoid(logits), MAX_HAZARD)
    return clipped


def shapes(config: StepConfig) -> dict[str, tuple[int, ...]]:
    """Every array of a step model and its shape."""
    heads = len(config.heads)
    wanted: dict[str, tuple[int, ...]] = {
        "heads.scale": (heads,),
        "heads.bias": (heads,),
        "exit.bias": (config.positions,),
    }
    for group in config.groups:
        prefix = f"groups.{group.name}."
        wanted[f"{prefix}hidden.weight"] = (group.hidden, len(group.features))
        wanted[f"{prefix}hidden.bias"] = (group.hidden,)
        wanted[f"{prefix}out.weight"] = (heads + 1, group.hidden)
    if config.exit_hidden:
        wanted["exit.hidden.weight"] = (config.exit_hidden, heads)
        wanted["exit.hidden.bias"] = (config.exit_hidden,)
        wanted["exit.out.weight"] = (1, config.exit_hidden)
    return wanted


def _check_config(config: StepConfig) -> None:
    if config.format_version != FORMAT_VERSION:
        raise ConfigError(
            "format_version", f"is {config.format_version}, this release reads {FORMAT_VERSION}"
        )
    names = [each.name for each in config.heads]
    if not names or len(set(names)) != len(names):
        raise ConfigError("heads", f"{names} must be distinct names, at least one")
    groups = [group.name for group in config.groups]
    if len(set(groups)) != len(groups):
        raise ConfigError("groups", f"{groups} must be distinct names")
    for at, group in enumerate(config.groups):
        if not group.name or "." in group.name:
            raise ConfigError(f"groups[{at}].name", f"{group.name!r} is empty or has a dot")
        if not group.features or len(set(group.features)) != len(group.features):
            raise ConfigError(
                f"groups[{at}].features", f"{list(group.features)} must be distinct, at least one"
            )
        if group.hidden < 1:
            raise ConfigError(f"groups[{at}].hidden", f"{group.hidden} is below 1")
        for name in group.features:
            parse_feature(f"groups[{at}].features", name)
    for name, least in (("window", 1), ("positions", 1), ("exit_hidden", 0)):
        if getattr(config, name) < least:
            raise ConfigError(name, f"{getattr(config, name)} is below {least}")
    if config.window > MAX_WINDOW:
        raise ConfigError("window", f"{config.window} is above {MAX_WINDOW}")
    watching = any("watch" in group.features for group in config.groups)
    if (watching or config.watch_head is not None) and config.watch_head not in names:
        raise ConfigError("watch_head", f"{config.watch_head!r} is none of {', '.join(names)}")
