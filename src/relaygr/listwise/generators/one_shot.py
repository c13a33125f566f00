"""A distilled generator: all positions from one pass, without a step model and without steps of a net.

Every candidate gets a score and what repetitions take from it; a list takes the best of what is left.
Inputs of candidate i, [P]:

    (V_i - mean V) / std V, rank / C,
    each head (a logit, or log(1 + value)),
    largest and mean cosine to candidates of better rank, largest cosine to shown items  (with `similarity`)
    for each attribute: log(1 + candidates of better rank with i's value), log(1 + such shown items)

    h = tanh(in @ inputs + bias)                                        [C, D]
    each block: h += o @ attention(q h, k h, v h);  h += down @ tanh(up @ h + bias)
    score = base * (V - mean V) / std V + out @ h

    repulsion = repel @ h + bias                                        [C, 1 + attributes]

Attention logits are q.k / sqrt(D) + cosine * cos_ij + better * [j is of better rank]. The net runs once a
request; what candidate i loses behind the picks S is looked up: repulsion_0 * max(0, largest cosine of i to
the last `window` picks) (with `similarity`) + sum over attributes of repulsion_a * picks with i's value.
Without it one order would have to serve all prefixes, and of two similar items that are both good at the
top both would be shown. Zero `out` and `repel` give the pointwise order. Arrays, float32, `weight`s
[outputs, inputs]: `in.weight` [D, P], `in.bias`, `blocks.N.{q,k,v,o}.weight` [D, D], `blocks.N.cosine` [1],
`blocks.N.better` [1], `blocks.N.up.weight` [2 D, D], `blocks.N.up.bias`, `blocks.N.down.weight` [D, 2 D],
`out.weight` [1, D], `base` [1], `repel.weight` [1 + attributes, D], `repel.bias`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise import artefact
from relaygr.listwise.arrays import Bool, Float32, Float64
from relaygr.listwise.context import same_values
from relaygr.listwise.decode import best, decode
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.folds import Fold, Lineage
from relaygr.listwise.pool import MISSING, HeadKind
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene, unit
from relaygr.listwise.step import DEFAULT_WINDOW, HeadSpec

NAME = "one_shot"
FORMAT_VERSION = 2
DEFAULT_TOP = 30


class OneShotConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of the scorer.

    Attributes:
        heads: of the ranker, in order.
        attributes: whose repetitions it sees.
        similarity: whether it sees cosines.
        width: D.
        blocks: attention blocks.
        window: picks that similarities look back at.
        top: candidates by pointwise rank that it looks at, and those of the fallback.
        fold: whose requests it was distilled on; None if nobody wrote it down.
    """

    heads: tuple[HeadSpec, ...]
    attributes: tuple[str, ...] = ()
    similarity: bool = True
    width: int = 16
    blocks: int = 0
    window: int = DEFAULT_WINDOW
    top: int = DEFAULT_TOP
    fold: Fold | None = None
    format_version: int = FORMAT_VERSION

    @property
    def inputs(self) -> int:
        """P."""
        return 2 + len(self.heads) + 3 * self.similarity + 2 * len(self.attributes)


class OneShot:
    """The generator. Immutable; shared by all requests.

    Raises:
        ConfigError: naming every array that is missing, unexpected, mis-shaped or not finite.
    """

    name = NAME

    def __init__(self, config: OneShotConfig, tensors: Mapping[str, Float32]) -> None:
        if config.format_version != FORMAT_VERSION:
            raise ConfigError(
                "format_version", f"is {config.format_version}, this release reads {FORMAT_VERSION}"
            )
        for name, least in (("width", 1), ("blocks", 0), ("window", 1), ("top", 1)):
            if getattr(config, name) < least:
                raise ConfigError(name, f"{getattr(config, name)} is below {least}")
        artefact.check(NAME, tensors, shapes(config))
        self.config, self.tensors = config, dict(tensors)
        self.version = artefact.version_of(config, tensors)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        columns = scene.top(self.config.top)
        if len(columns) == len(scene):
            return self._propose(scene, budget)
        made = self._propose(scene.narrow(columns), budget)
        return [replace(one, picks=columns[one.picks].astype(np.int32)) for one in made]

    @property
    def lineage(self) -> Lineage:
        """What a judge has to differ from."""
        return Lineage(version=self.version, fold=self.config.fold, arch=NAME)

    def _propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        scores, repulsion = self.scores(scene)
        cosine = np.maximum(scene.cosine, 0.0) if self.config.similarity else None
        values = [scene.pool.attributes[name] for name in self.config.attributes]
        left = scores.copy()  # behind the repeated values of attributes

        def pick(t: int, picks: list[int], mask: Bool, value: Float64) -> int:
            if t:
                last = picks[-1]
                for column, loss in zip(values, repulsion[1:], strict=True):
                    if column[last] != MISSING:
                        np.subtract(left, loss, out=left, where=column == column[last])
            now = left
            if t and cosine is not None:
                now = left - repulsion[0] * cosine[picks[-self.config.window :]].max(0)
            return best(mask, now)

        return decode(scene, self.name, pick, budget)

    def scores(self, scene: Scene) -> tuple[Float64, Float64]:
        """Of each candidate [C], and what one repetition takes from it [1 + attributes, C].

        Raises:
            RequestError: the request lacks an attribute, vectors or a head.
            SlateNanError: a score is not finite.
        """
        arrays = self.tensors
        inputs, standard = self.inputs(scene)
        h = np.tanh(inputs @ arrays["in.weight"].T + arrays["in.bias"])  # [C, D]
        cosine = scene.cosine.astype(np.float32) if self.config.similarity else None
        for block in range(self.config.blocks):
            h = self._block(f"blocks.{block}.", h, cosine)
        scores: Float64 = float(arrays["base"][0]) * standard + (h @ arrays["out.weight"][0])
        repulsion: Float64 = (h @ arrays["repel.weight"].T + arrays["repel.bias"]).astype(np.float64)
        if not (np.isfinite(scores).all() and np.isfinite(repulsion).all()):
            raise SlateNanError(NAME)
        return scores, repulsion.T

    def _block(self, prefix: str, h: Float32, cosine: Float32 | None) -> Float32:
        arrays, C = self.tensors, len(h)
        q, k, v = (h @ arrays[f"{prefix}{name}.weight"].T for name in "qkv")
        logits = (q @ k.T) / np.float32(np.sqrt(self.config.width))
        if cosine is not None:
            logits += arrays[f"{prefix}cosine"] * cosine
        logits += arrays[f"{prefix}better"] * np.tri(C, k=-1, dtype=np.float32)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        h = h + (weights @ v) @ arrays[f"{prefix}o.weight"].T
        up = np.tanh(h @ arrays[f"{prefix}up.weight"].T + arrays[f"{prefix}up.bias"])
        changed: Float32 = h + up @ arrays[f"{prefix}down.weight"].T
        return changed

    def inputs(self, scene: Scene) -> tuple[Float32, Float64]:
        """Inputs [C, P] and standardised pointwise values [C]; training reads them too."""
        pool, shown, C = scene.pool, scene.ask.shown, len(scene)
        wanted = tuple((each.name, each.kind) for each in self.config.heads)
        if tuple((head.name, head.kind) for head in pool.heads) != wanted:
            raise RequestError("heads", f"{pool.heads} are not those of the generator: {wanted}")
        spread = float(scene.value.std())
        standard = (scene.value - scene.value.mean()) / (spread if spread > 0 else 1.0)
        columns = [standard, np.arange(C) / C]
        for at, head in enumerate(pool.heads):
            output = pool.outputs[:, at].astype(np.float64)
            columns.append(output if head.kind is HeadKind.BINARY else np.log1p(output))
        better = _better(C)
        if self.config.similarity:
            columns.append(np.where(better, scene.cosine, -1.0).max(1, initial=-1.0))
            columns.append(np.where(better, scene.cosine, 0.0).sum(1) / np.maximum(np.arange(C), 1))
            seen = np.full(C, -1.0)
            if shown is not None and len(shown):
                if shown.vectors is None:
                    raise RequestError("shown.vectors", f"are needed by {NAME}, and there are none")
                seen = (scene.unit @ unit(shown.vectors).T).max(1)
            columns.append(seen)
        for name in self.config.attributes:
            if name not in pool.attributes:
                raise RequestError("attributes", f"lack {name!r}, which {NAME} knows")
            values = pool.attributes[name]
            columns.append(np.log1p((same_values(values, values) & better).sum(1)))
            repeats = np.zeros(C)
            if shown is not None and len(shown):
                if name not in shown.attributes:
                    raise RequestError("shown.attributes", f"lack {name!r}, which {NAME} knows")
                repeats = same_values(shown.attributes[name], values).sum(0).astype(np.float64)
            columns.append(np.log1p(repeats))
        return np.stack(columns, axis=1).astype(np.float32), standard

    def save(self, folder: Path) -> None:
        """Write `one_shot.json` and `one_shot.safetensors`."""
        artefact.save(folder, NAME, self.config, self.tensors)

    @classmethod
    def load(cls, folder: Path) -> OneShot:
        """Read what `save` wrote. Raises ConfigError."""
        return cls(*artefact.load(folder, NAME, OneShotConfig))

    @classmethod
    def zero(cls, config: OneShotConfig, seed: int = 0) -> OneShot:
        """The scorer before training: the pointwise order. Inner layers are random by `seed`."""
        random = np.random.default_rng(seed)
        tensors: dict[str, Float32] = {}
        for name, shape in shapes(config).items():
            tensors[name] = np.zeros(shape, dtype=np.float32)
            if name.endswith(".weight") and name not in ("out.weight", "repel.weight"):
                bound = 1.0 / np.sqrt(shape[1])
                tensors[name] = random.uniform(-bound, bound, shape).astype(np.float32)
        tensors["base"][:] = 1.0
        return cls(config, tensors)


@lru_cache(maxsize=64)
def _better(candidates: int) -> Bool:
    """[i, j]: whether j is of better rank. [C, C]"""
    return np.tri(candidates, k=-1, dtype=bool)


def shapes(config: OneShotConfig) -> dict[str, tuple[int, ...]]:
    """Every array of the scorer and its shape."""
    D = config.width
    wanted: dict[str, tuple[int, ...]] = {"in.weight": (D, config.inputs), "in.bias": (D,)}
    for block in range(config.blocks):
        prefix = f"blocks.{block}."
        wanted |= {f"{prefix}{name}.weight": (D, D) for name in "qkvo"}
        wanted |= {f"{prefix}cosine": (1,), f"{prefix}better": (1,)}
        wanted |= {f"{prefix}up.weight": (2 * D, D), f"{prefix}up.bias": (2 * D,)}
        wanted[f"{prefix}down.weight"] = (D, 2 * D)
    rows = 1 + len(config.attributes)
    return wanted | {"out.weight": (1, D), "base": (1,), "repel.weight": (rows, D), "repel.bias": (rows,)}
