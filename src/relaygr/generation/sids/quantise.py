"""Residual quantisation: each level clusters what the levels before it left of the embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.generation.sids.kmeans import distinct_rows, fit_clusters
from relaygr.generation.sids.nearest import Float32s, Float64s, Int32s, Int64s, nearest

Collision = Literal["share", "digit", "reassign"]

MAX_LEVELS = 16
_LARGEST = 1e15  # of a value: distances of longer rows do not fit float32


class SidConfig(Section, frozen=True, kw_only=True):
    """How semantic ids are made; equal settings and equal embeddings give equal ids.

    Attributes:
        sizes: centroids of each level; shrunk where there are fewer different residuals.
        centre: subtract the mean of the embeddings first.
        normalise: scale embeddings to length 1 (after centring); zeros stay zero.
        passes, batch: of k-means; see `kmeans.fit_clusters`.
        collision: what happens where items have equal codes. "share" keeps several items per id, "digit"
            appends a level that numbers them, "reassign" moves all but one to free codes of the last level.
        neighbours: with "reassign", how many nearest codes an item may be moved to.
        seed: of all random choices.
    """

    PATH: ClassVar[str] = "sids"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "passes": Range(1, 10_000),
        "batch": Range(1, 1 << 24),
        "neighbours": Range(1, 1 << 20),
        "seed": Range(0, 2**63 - 1),
    }

    sizes: tuple[int, ...] = (256, 256, 256)
    centre: bool = True
    normalise: bool = False
    passes: int = 25
    batch: int = 16384
    collision: Collision = "share"
    neighbours: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.sizes) <= MAX_LEVELS:
            raise ConfigError("sids.sizes", f"{len(self.sizes)} levels, limit 1 to {MAX_LEVELS}")
        for size in self.sizes:
            Range(1, 1 << 20).check("sids.sizes", size)


@dataclass(frozen=True, slots=True, eq=False)
class Codebooks:
    """Frozen quantisers of all levels.

    Attributes:
        centroids: of each level, float32 [V, D].
        mean: float32 [D], subtracted first; zeros without centring.
        normalise: whether embeddings are scaled to length 1 after that.
    """

    centroids: tuple[Float32s, ...]
    mean: Float32s
    normalise: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(each) for each in self.centroids)

    @property
    def digest(self) -> str:
        """BLAKE2b-128 of all that decides on codes, in hexadecimal; items that are added leave it alone."""
        found = hashlib.blake2b(repr((self.sizes, self.normalise)).encode(), digest_size=16)
        for array in (*self.centroids, self.mean):
            found.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
        return found.hexdigest()

    def prepare(self, embeddings: Float32s) -> Float32s:
        """What the first level quantises, [n, D].

        Raises:
            ConfigError: another width, or a value is not finite; names the row.
        """
        return _prepared(checked(embeddings, len(self.mean)), self.mean, self.normalise)

    def encode(self, embeddings: Float32s) -> Int32s:
        """Codes [n, L] of embeddings [n, D], new ones or those it was fitted on; raises as `prepare`."""
        residuals = self.prepare(embeddings)
        codes = np.empty((len(residuals), len(self.centroids)), dtype=np.int32)
        for level, centroids in enumerate(self.centroids):
            codes[:, level], _ = nearest(residuals, centroids)
            residuals = residuals - centroids[codes[:, level]]
        return codes

    def decode(self, codes: Int32s, levels: int | None = None) -> Float32s:
        """Sum of the centroids of the first `levels` of codes [n, L], [n, D]: in the space of `prepare`."""
        out = np.zeros((len(codes), len(self.mean)), dtype=np.float32)
        for level, centroids in enumerate(self.centroids[:levels]):
            out += centroids[codes[:, level]]
        return out

    def energies(self, embeddings: Float32s, codes: Int32s) -> Float64s:
        """Mean squared length of what is left before each level and after the last, [L + 1]."""
        residuals = self.prepare(embeddings)
        found = [_energy(residuals)]
        for level, centroids in enumerate(self.centroids):
            residuals = residuals - centroids[codes[:, level]]
            found.append(_energy(residuals))
        return np.array(found)


def fit_codebooks(embeddings: Float32s, config: SidConfig) -> tuple[Codebooks, tuple[str, ...]]:
    """Codebooks for embeddings [n, D], and what had to be done otherwise than asked, in words.

    Raises:
        ConfigError: there are no embeddings, or a value is not finite.
    """
    if embeddings.ndim != 2 or not embeddings.size:
        raise ConfigError("embeddings", f"of shape {list(embeddings.shape)}, wanted [items, width]")
    data = checked(embeddings, embeddings.shape[1])
    mean = np.zeros(data.shape[1], dtype=np.float32)
    if config.centre:
        mean = data.mean(axis=0, dtype=np.float64).astype(np.float32)
    residuals: Float32s = _prepared(data, mean, config.normalise)
    notes: list[str] = []
    centroids: list[Float32s] = []
    for level, wanted in enumerate(config.sizes):
        size = min(wanted, distinct_rows(residuals))
        if size < wanted:
            notes.append(f"level {level + 1}: {wanted} centroids asked, {size} different points, so {size}")
        rng = np.random.default_rng((config.seed, level))
        found = fit_clusters(residuals, size, rng, config.passes, config.batch)
        if found.reseeded:
            notes.append(f"level {level + 1}: {found.reseeded} empty clusters moved to far points")
        centroids.append(found.centroids)
        residuals = residuals - found.centroids[found.codes]
    return Codebooks(tuple(centroids), mean, config.normalise), tuple(notes)


def checked(embeddings: Float32s, width: int) -> Float32s:
    """`embeddings` as float32 rows of `width`; ConfigError, naming the row, where that cannot be."""
    if embeddings.ndim != 2 or embeddings.shape[1] != width:
        raise ConfigError("embeddings", f"of shape {list(embeddings.shape)}, wanted [items, {width}]")
    data = np.ascontiguousarray(embeddings, dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(data).all(axis=1))
    if wrong.size:
        raise ConfigError("embeddings", f"row {int(wrong[0])} is not finite, and {wrong.size - 1} more")
    if data.size and float(np.abs(data).max()) > _LARGEST:
        row = int(np.abs(data).max(axis=1).argmax())
        largest = float(np.abs(data[row]).max())
        raise ConfigError("embeddings", f"row {row} holds {largest:g}, limit {_LARGEST:g} from 0")
    return data


def input_digest(item_ids: Int64s, embeddings: Float32s) -> str:
    """BLAKE2b-128 of items and embeddings, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(embeddings.shape).encode())
    digest.update(np.ascontiguousarray(item_ids, dtype="<i8").tobytes())
    digest.update(np.ascontiguousarray(embeddings, dtype="<f4").tobytes())
    return digest.hexdigest()


def _prepared(data: Float32s, mean: Float32s, normalise: bool) -> Float32s:
    moved: Float32s = data - mean
    if not normalise:
        return moved
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    scaled: Float32s = (moved / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


def _energy(rows: Float32s) -> float:
    return float(np.square(rows, dtype=np.float64).sum(axis=1).mean()) if len(rows) else 0.0
