"""A net that reads a whole list: an ensemble of E members, evaluated together.

Inputs of position t, [P]: each head of the ranker (a logit, or log(1 + value)), then the features of the pick
behind those before it (`features.py`). The net returns corrections g of heads and exit, used as in a step
model:

    logit' = a_k * logit + c_k + g_k      y' = y * exp(c_k + g_k)      logit e = b + g_e

`attention`: h = tanh(in @ x + bias); each block: h_i += o @ sum_j w_ij v_j, h += down @ tanh(up @ h + bias),
with w_ij = exp(l_ij) / (exp(none) + sum_j exp(l_ij)), l_ij = q_i.k_j / sqrt(d) + relation . r_ij in each of
the attention heads, over other positions j, in a causal net over earlier ones. r_ij: cosine (with
`similarity`), equal values of each attribute of `relations`, 1 / |i - j|, j > i.
`recurrent`: h of an LSTM over the positions, in a net that is not causal of one in each direction.

g = out @ h. Zero `out` changes nothing. Arrays, float32, the members first: `in.weight` [E, D, P], `in.bias`,
`blocks.N.{q,k,v,o}.weight` [E, D, D], `blocks.N.relation` [E, H, R], `blocks.N.none` [E, H],
`blocks.N.up.weight` [E, 2 D, D], `blocks.N.up.bias`, `blocks.N.down.weight` [E, D, 2 D]; `forward.weight`
[E, 4 D, P + D] (gates in, forget, cell, out), `forward.bias` [E, 4 D], the same of `backward`; `out.weight`
[E, K + 1, D or 2 D], `scale`, `bias` [E, K], `exit` [E, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise import artefact
from relaygr.listwise.arrays import Float32, Float64
from relaygr.listwise.choose import Conformal
from relaygr.listwise.features import FeatureTable
from relaygr.listwise.folds import Fold, Lineage
from relaygr.listwise.pool import Head, HeadKind, sigmoid
from relaygr.listwise.step import DEFAULT_WINDOW, MAX_WINDOW, HeadSpec

NAME = "evaluator"
FORMAT_VERSION = 1


class Arch(StrEnum):
    ATTENTION = "attention"
    RECURRENT = "recurrent"


class BucketQuantile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The residual quantile of lists of one length and generator."""

    length: int
    generator: str
    quantile: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conformal quantiles on disk: those of buckets, and `pooled` for all others."""

    alpha: float
    pooled: float
    buckets: tuple[BucketQuantile, ...] = ()

    def conformal(self) -> Conformal:
        return Conformal({(one.length, one.generator): one.quantile for one in self.buckets}, self.pooled)


class ListNetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of the net, and where it comes from.

    Attributes:
        heads: of the ranker, in order.
        features: of the picks before a position; see `features.py`.
        relations: attributes whose equality attention sees; similarity: whether it sees cosines.
        window: picks that similarities of `features` look back at.
        watch_head: what the feature `watch` sums up.
        causal: whether later items leave earlier positions alone, as in full-screen feeds; False for grids.
        width: D; blocks: attention blocks; attention_heads: H.
        exit: whether users leave.
        members: E.
        seed: of first weights and of the users that members learn from.
        fold: whose users it learned from.
        calibration: residual quantiles of lists that it has not learned from.
    """

    heads: tuple[HeadSpec, ...]
    features: tuple[str, ...]
    relations: tuple[str, ...] = ()
    similarity: bool = True
    window: int = DEFAULT_WINDOW
    watch_head: str | None = None
    arch: Arch = Arch.ATTENTION
    causal: bool = True
    width: int = 32
    blocks: int = 1
    attention_heads: int = 4
    exit: bool = True
    members: int = 1
    seed: int = 0
    fold: Fold | None = None
    calibration: Calibration | None = None
    format_version: int = FORMAT_VERSION

    @property
    def inputs(self) -> int:
        """P."""
        return len(self.heads) + len(self.features)

    @property
    def relation_inputs(self) -> bool:
        """Whether relations between positions are read."""
        return self.arch is Arch.ATTENTION and self.blocks > 0

    @property
    def relation_count(self) -> int:
        """R."""
        return int(self.similarity) + len(self.relations) + 2


class ListNet:
    """The net. Immutable; shared by all requests.

    Raises:
        ConfigError: naming what is missing, unexpected, mis-shaped or out of range.
    """

    def __init__(self, config: ListNetConfig, tensors: Mapping[str, Float32]) -> None:
        _check_config(config)
        artefact.check(NAME, tensors, shapes(config))
        self.config, self.tensors = config, dict(tensors)
        self.heads = tuple(Head(each.name, each.kind) for each in config.heads)
        self.version = artefact.version_of(config, tensors)
        self.features = FeatureTable([config.features], config.window)
        self._arrays = {name: values.astype(np.float64) for name, values in tensors.items()}
        self._binary = np.array([head.kind is HeadKind.BINARY for head in self.heads])

    @property
    def lineage(self) -> Lineage:
        return Lineage(
            version=self.version, fold=self.config.fold, arch=self.config.arch.value, seed=self.config.seed
        )

    def __call__(self, context: Float64, base: Float64, relations: Float64) -> tuple[Float64, Float64]:
        """What each member says of G lists; a list's values do not depend on the others.

        Args:
            context: [G, L, F]; base: [G, L, K], outputs of the ranker; relations: [G, R, L, L].

        Returns:
            Probabilities of binary heads and values of regression heads [E, K, G, L]; logits of leaving
            [E, G, L], -inf where users do not leave.
        """
        arrays, K = self._arrays, len(self.heads)
        x = np.concatenate([np.where(self._binary, base, np.log1p(np.abs(base))), context], axis=2)[None]
        if self.config.arch is Arch.ATTENTION:
            h = np.tanh(x @ _turned(arrays["in.weight"]) + arrays["in.bias"][:, None, None])
            for block in range(self.config.blocks):
                h = self._block(f"blocks.{block}.", h, relations)
        else:
            h = self._lstm("forward", x)
            if not self.config.causal:
                back = self._lstm("backward", x[:, :, ::-1])[:, :, ::-1]
                h = np.concatenate([h, back], axis=3)
        g = h @ _turned(arrays["out.weight"])  # [E, G, L, K + 1]
        changed = arrays["bias"][:, None, None] + g[..., :K]
        scaled = sigmoid(arrays["scale"][:, None, None] * base + changed)
        values = scaled if self._binary.all() else np.where(self._binary, scaled, base * np.exp(changed))
        leave = arrays["exit"][:, None] + g[..., K]
        if not self.config.exit:
            leave = np.full_like(leave, -np.inf)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2)), leave

    def _block(self, prefix: str, h: Float64, relations: Float64) -> Float64:
        arrays, (E, G, L, D) = self._arrays, h.shape
        H = self.config.attention_heads
        q, k, v = (
            (h @ _turned(arrays[f"{prefix}{name}.weight"]))
            .reshape(E, G, L, H, D // H)
            .transpose(0, 1, 3, 2, 4)
            for name in "qkv"
        )  # [E, G, H, L, d]
        # Sums over relations one by one, so that they do not depend on how many lists there are.
        weights = arrays[f"{prefix}relation"]  # [E, H, R]
        logits = q @ k.swapaxes(3, 4) / np.sqrt(D // H)
        for r in range(weights.shape[2]):
            logits += weights[:, None, :, r, None, None] * relations[None, :, None, r]
        places = np.arange(L)
        seen = places[:, None] > places if self.config.causal else places[:, None] != places
        logits = np.where(seen, logits, -np.inf)
        none = arrays[f"{prefix}none"][:, None, :, None, None]
        top = np.maximum(logits.max(axis=4, keepdims=True), none)
        odds = np.exp(logits - top)
        odds /= np.exp(none - top) + odds.sum(axis=4, keepdims=True)
        mixed = (odds @ v).transpose(0, 1, 3, 2, 4).reshape(E, G, L, D)
        h = h + mixed @ _turned(arrays[f"{prefix}o.weight"])
        up = np.tanh(h @ _turned(arrays[f"{prefix}up.weight"]) + arrays[f"{prefix}up.bias"][:, None, None])
        changed: Float64 = h + up @ _turned(arrays[f"{prefix}down.weight"])
        return changed

    def _lstm(self, name: str, x: Float64) -> Float64:
        """Hidden states [E, G, L, D] of inputs [1, G, L, P]."""
        P = x.shape[3]
        weight, bias = self._arrays[f"{name}.weight"], self._arrays[f"{name}.bias"]
        E, D = len(weight), self.config.width
        inner = x @ _turned(weight[:, :, :P]) + bias[:, None, None]  # [E, G, L, 4 D]
        outer = _turned(weight[:, :, P:])
        G, L = x.shape[1:3]
        hidden, cell = np.zeros((E, G, 1, D)), np.zeros((E, G, 1, D))
        states = np.empty((E, G, L, D))
        for t in range(L):
            gates = inner[:, :, t : t + 1] + hidden @ outer
            enter, forget, fresh, leave = np.split(gates, 4, axis=3)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(fresh)
            hidden = sigmoid(leave) * np.tanh(cell)
            states[:, :, t] = hidden[:, :, 0]
        return states

    def save(self, folder: Path) -> None:
        """Write `evaluator.json` and `evaluator.safetensors`."""
        artefact.save(folder, NAME, self.config, self.tensors)

    @classmethod
    def load(cls, folder: Path) -> ListNet:
        """Read what `save` wrote. Raises ConfigError."""
        return cls(*artefact.load(folder, NAME, ListNetConfig))

    @classmethod
    def zero(cls, config: ListNetConfig, exit_logit: float = -2.0) -> ListNet:
        """The net before training: it changes nothing. Inner layers are random by `config.seed`."""
        tensors: dict[str, Float32] = {}
        for name, shape in shapes(config).items():
            tensors[name] = np.zeros(shape, dtype=np.float32)
            if name.endswith(".weight") and name != "out.weight":
                bound = 1.0 / np.sqrt(shape[2])
                for member in range(config.members):
                    random = np.random.default_rng((config.seed, member, *name.encode()))
                    tensors[name][member] = random.uniform(-bound, bound, shape[1:])
        tensors["scale"][:] = 1.0
        tensors["exit"][:] = exit_logit
        return cls(config, tensors)


def shapes(config: ListNetConfig) -> dict[str, tuple[int, ...]]:
    """Every array of the net and its shape."""
    E, D, P, K = config.members, config.width, config.inputs, len(config.heads)
    wanted: dict[str, tuple[int, ...]] = {}
    states = D
    if config.arch is Arch.ATTENTION:
        wanted |= {"in.weight": (E, D, P), "in.bias": (E, D)}
        for block in range(config.blocks):
            prefix = f"blocks.{block}."
            wanted |= {f"{prefix}{name}.weight": (E, D, D) for name in "qkvo"}
            wanted[f"{prefix}relation"] = (E, config.attention_heads, config.relation_count)
            wanted[f"{prefix}none"] = (E, config.attention_heads)
            wanted |= {f"{prefix}up.weight": (E, 2 * D, D), f"{prefix}up.bias": (E, 2 * D)}
            wanted[f"{prefix}down.weight"] = (E, D, 2 * D)
    else:
        for name in ("forward",) if config.causal else ("forward", "backward"):
            wanted |= {f"{name}.weight": (E, 4 * D, P + D), f"{name}.bias": (E, 4 * D)}
        states = D if config.causal else 2 * D
    return wanted | {"out.weight": (E, K + 1, states), "scale": (E, K), "bias": (E, K), "exit": (E, 1)}


def _turned(weight: Float64) -> Float64:
    """[E, outputs, inputs] -> [E, 1, inputs, outputs]"""
    return weight.swapaxes(1, 2)[:, None]


def _check_config(config: ListNetConfig) -> None:
    if config.format_version != FORMAT_VERSION:
        raise ConfigError(
            "format_version", f"is {config.format_version}, this release reads {FORMAT_VERSION}"
        )
    names = [each.name for each in config.heads]
    if not names or len(set(names)) != len(names):
        raise ConfigError("heads", f"{names} must be distinct names, at least one")
    if len(set(config.features)) != len(config.features):
        raise ConfigError("features", f"{list(config.features)} must be distinct")
    for name, least in (("window", 1), ("width", 1), ("blocks", 0), ("attention_heads", 1), ("members", 1)):
        if getattr(config, name) < least:
            raise ConfigError(name, f"{getattr(config, name)} is below {least}")
    if config.window > MAX_WINDOW:
        raise ConfigError("window", f"{config.window} is above {MAX_WINDOW}")
    if config.arch is Arch.ATTENTION and config.width % config.attention_heads:
        raise ConfigError(
            "attention_heads", f"width {config.width} is no multiple of {config.attention_heads}"
        )
    if ("watch" in config.features or config.watch_head is not None) and config.watch_head not in names:
        raise ConfigError("watch_head", f"{config.watch_head!r} is none of {', '.join(names)}")
