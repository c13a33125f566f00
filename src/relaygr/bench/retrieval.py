"""The step in front of ranking: recent items, exact inner-product retrieval, and a filter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Int64s
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import Ranker
from relaygr.training.catalogue import Catalogue

Vectors = npt.NDArray[np.float32]

_CHUNK = 8192


@dataclass(frozen=True, slots=True)
class RetrievalSpec:
    """How candidates are found.

    Attributes:
        recent: the user vector is a mean over this many latest events.
        half_life: events after which an event counts half.
        wanted: candidates to return.
        again: so many of the user's latest distinct items are candidates too. Without them a repeat among
            injected positives would stand out, and the order by recency look better than it is.
        overfetch: so many times `wanted` items are retrieved before the filter.
        floor: items with fewer events in the catalogue are filtered out.
    """

    recent: int = 50
    half_life: float = 20.0
    wanted: int = 128
    again: int = 32
    overfetch: int = 4
    floor: int = 2


class Retriever:
    """Exact top-k by inner product, for one user at a time.

    Args:
        vectors: float32 [items, D], in the order of `catalogue.items`.

    Raises:
        ConfigError: the filter would leave nothing.
    """

    def __init__(self, catalogue: Catalogue, vectors: Vectors, spec: RetrievalSpec) -> None:
        self.catalogue, self.vectors, self.spec = catalogue, vectors, spec
        self._popular = catalogue.counts >= spec.floor
        if not self._popular.any():
            raise ConfigError("floor", f"no item of the catalogue has {spec.floor} events")

    def user_vector(self, items: Int64s) -> Vectors:
        """Weighted mean [D] of the vectors of the latest known items; zero if none is known."""
        latest = items[-self.spec.recent :]
        known = self.catalogue.knows(latest)
        if not known.any():
            return np.zeros(self.vectors.shape[1], np.float32)
        age = np.arange(len(latest))[::-1][known]
        weight = (0.5 ** (age / self.spec.half_life)).astype(np.float32)
        place = np.searchsorted(self.catalogue.items, latest[known])
        mean: Vectors = (weight @ self.vectors[place]) / weight.sum()
        return mean

    def retrieve(self, items: Int64s) -> Int64s:
        """Distinct candidates of at least the popularity floor: the user's latest, then by inner product."""
        scores = self.vectors @ self.user_vector(items)
        best = top_k(scores, self.spec.wanted * self.spec.overfetch)
        found = np.concatenate([self._latest(items), self.catalogue.items[best[self._popular[best]]]])
        _, first = np.unique(found, return_index=True)
        return found[np.sort(first)][: self.spec.wanted]

    def _latest(self, items: Int64s) -> Int64s:
        kept = items[self.catalogue.counts_of(items) >= self.spec.floor][::-1]
        _, first = np.unique(kept, return_index=True)
        return kept[np.sort(first)][: self.spec.again]


def top_k(scores: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """Indices of the `k` largest scores, largest first; equal scores by index."""
    if k < 1:
        raise ValueError(f"k: {k} must be at least 1")
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    # Everything that ties with the k-th score is sorted too, so that ties break by index.
    limit = np.partition(scores, len(scores) - k)[len(scores) - k]
    kept = np.flatnonzero(scores >= limit)
    return kept[np.argsort(-scores[kept], kind="stable")][:k]


@torch.inference_mode()
def item_vectors(model: Ranker, kernel: Kernel, items: Int64s) -> Vectors:
    """The model's item tokens, centred, unit length; float32 [items, D].

    Centring removes what all items share, which would otherwise dominate every inner product.
    """
    ids = torch.from_numpy(np.array(items))
    parts = [model.tokens.items(ids[i : i + _CHUNK], kernel).float() for i in range(0, len(ids), _CHUNK)]
    vectors: Vectors = torch.cat(parts).numpy()
    vectors = vectors - vectors.mean(axis=0)
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return unit
