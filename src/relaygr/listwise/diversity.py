"""How different the lists of a pool are, and what each generator is good for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relaygr.listwise.arrays import Float32, Float64, Int32
from relaygr.listwise.ballot import stack
from relaygr.listwise.proposal import Proposal
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What a pool of lists is like.

    Attributes:
        order: float64 [G, G], `order_distances`.
        embedding: float64 [G, G], `embedding_distances`; None without vectors.
        gain: by generator, the utility of the best list less that of the best list without this generator's;
            a list that others proposed too is not lost with it.
        best: the highest utility.
    """

    order: Float64
    embedding: Float64 | None
    gain: Mapping[str, float]
    best: float

    @property
    def mean_order(self) -> float:
        """Mean over the pairs of different lists; 0 if there is one list only."""
        return _mean_of_pairs(self.order)

    @property
    def mean_embedding(self) -> float | None:
        return None if self.embedding is None else _mean_of_pairs(self.embedding)


def report(scene: Scene, proposals: Sequence[Proposal], utility: Sequence[float]) -> PoolReport:
    """Of lists with their utilities, before duplicates are removed; at least one list."""
    lists = stack(proposals)
    worth = np.asarray(utility, dtype=np.float64)
    names = [one.generator for one in proposals]
    best, gain = float(worth.max()), dict[str, float]()
    for name in dict.fromkeys(names):
        others = [value for value, mine in zip(worth.tolist(), names, strict=True) if mine != name]
        gain[name] = best - max(others) if others else best
    embedding = None if scene.pool.vectors is None else embedding_distances(scene.unit, lists)
    return PoolReport(order_distances(lists), embedding, gain, best)


def order_distances(lists: Int32) -> Float64:
    """Share of ordered pairs that one list has and the other has not. int32 [G, L] -> [G, G]

    A list orders each of its items before the later ones and before all items that it lacks, those among
    themselves not at all (a partial order). 0 for equal lists, 1 if no pair is common.
    """
    items, places = np.unique(lists, return_inverse=True)
    G, L = lists.shape
    rank = np.full((G, len(items)), L)  # absent items come last
    np.put_along_axis(rank, places.reshape(G, L), np.broadcast_to(np.arange(L), (G, L)), axis=1)
    before = (rank[:, :, None] < rank[:, None, :]).reshape(G, -1).astype(np.float64)  # [G, pairs]
    common = before @ before.T
    number = before.sum(1)
    every = number[:, None] + number[None, :] - common
    distances: Float64 = 1.0 - np.where(every > 0, common / np.maximum(every, 1.0), 1.0)
    return distances


def embedding_distances(unit: Float64, lists: Int32) -> Float64:
    """Mean over positions of (1 - cosine) / 2 of the items there. unit [C, Dv], int32 [G, L] -> [G, G]"""
    flat = unit[lists].reshape(len(lists), -1)  # [G, L * Dv]
    cosine = (flat @ flat.T) / lists.shape[1]
    distances: Float64 = np.clip(0.5 * (1.0 - cosine), 0.0, 1.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def list_distance(vectors: Float32) -> float:
    """Mean of (1 - cosine) / 2 over the pairs of a list's items; unit vectors [L, Dv], L >= 2."""
    sums = vectors.sum(0, dtype=np.float64)
    L = len(vectors)
    cosine = (float(sums @ sums) - L) / (L * (L - 1))
    return min(max(0.5 * (1.0 - cosine), 0.0), 1.0)


def pool_distance(lists: Int32) -> float:
    """Mean of `order_distances` over the pairs of different lists int32 [G, L]."""
    return _mean_of_pairs(order_distances(lists))


def _mean_of_pairs(distances: Float64) -> float:
    G = len(distances)
    return float(distances.sum() / (G * (G - 1))) if G > 1 else 0.0
