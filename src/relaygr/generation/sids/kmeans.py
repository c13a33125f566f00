"""k-means on one level's residuals: k-means++ start, mini-batches, empty clusters moved to far points.

Sources: Arthur and Vassilvitskii 2007 (k-means++); Sculley 2010 (mini-batches with a step size per centre).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.generation.sids.nearest import Float32s, Float64s, Int32s, Int64s, nearest

START_POINTS = 16  # a cluster, of the sample that the start is drawn from
_ENOUGH = 1e-4  # a pass that lowers the mean distance by a smaller share is the last
_REPAIRS = 4  # passes that give empty clusters a point at the end


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """What a fit found.

    Attributes:
        centroids: float32 [k, D], all different.
        codes: int32 [n], nearest centroid of each point.
        distances: float64 [n], squared distance to it.
        passes: over the points.
        reseeded: empty clusters that were moved to a far point, counted each time.
    """

    centroids: Float32s
    codes: Int32s
    distances: Float64s
    passes: int
    reseeded: int


def distinct_rows(points: Float32s) -> int:
    """How many different points there are."""
    rows = np.ascontiguousarray(points + np.float32(0))  # -0.0 is 0.0
    return len(np.unique(rows.view(np.dtype((np.void, rows.shape[1] * 4)))))


def fit_clusters(points: Float32s, k: int, rng: np.random.Generator, passes: int, batch: int) -> Clusters:
    """Fit `k` centroids; equal arguments and an equally seeded `rng` give equal centroids.

    Args:
        points: [n, D], with at least `k` different rows.
        passes: most passes over the points; fewer where the last one hardly helped.
        batch: points of one update; all at once (Lloyd's algorithm) where there are no more.
    """
    n = len(points)
    centroids = _start(points, k, rng)
    batch = min(batch, n)
    seen = np.zeros(k)
    before, done, reseeded = np.inf, 0, 0
    for _ in range(passes):
        done += 1
        order = np.arange(n) if batch == n else rng.permutation(n)
        used, total = np.zeros(k), 0.0
        for first in range(0, n, batch):
            part = points[order[first : first + batch]]
            codes, distances = nearest(part, centroids)
            counts, means = _means(part, codes, k)
            used += counts
            total += float(distances.sum())
            hit = counts > 0
            if batch == n:
                centroids[hit] = means[hit]
            else:
                seen += counts
                step = (counts[hit] / seen[hit])[:, None]
                centroids[hit] += (step * (means[hit] - centroids[hit])).astype(np.float32)
        empty = np.flatnonzero(used == 0)
        moved = _reseed(centroids, empty, part, distances)
        seen[empty] = 0
        reseeded += moved
        if total > (1 - _ENOUGH) * before and not moved:
            break
        before = total
    return _finish(points, centroids, done, reseeded)


def _finish(points: Float32s, centroids: Float32s, done: int, reseeded: int) -> Clusters:
    """Centroids become means of all their points once more, and no cluster stays empty that can be filled."""
    k = len(centroids)
    codes, distances = nearest(points, centroids)
    for repair in range(_REPAIRS):
        counts, means = _means(points, codes, k)
        empty = np.flatnonzero(counts == 0)
        if repair and not empty.size:
            break
        centroids[counts > 0] = means[counts > 0]
        reseeded += _reseed(centroids, empty, points, distances)
        codes, distances = nearest(points, centroids)
        done += 1
    return Clusters(centroids, codes, distances, done, reseeded)


def _start(points: Float32s, k: int, rng: np.random.Generator) -> Float32s:
    """k-means++: each next centre is drawn in proportion to the squared distance to the nearest so far."""
    size = max(START_POINTS * k, 4096)
    if len(points) > size:
        sample = points[np.sort(rng.choice(len(points), size=size, replace=False))]
        # A sample of many copies may hold too few different points; then all are looked at.
        sample = sample if distinct_rows(sample) >= k else points
    else:
        sample = points
    centroids = np.empty((k, points.shape[1]), dtype=np.float32)
    centroids[0] = sample[int(rng.integers(len(sample)))]
    left = np.full(len(sample), np.inf)
    for index in range(1, k):
        # By differences, so that a copy of a centre is exactly 0 away and never drawn again.
        difference = sample - centroids[index - 1]
        left = np.minimum(left, np.einsum("nd,nd->n", difference, difference, dtype=np.float64))
        running = np.cumsum(left)
        ticket = rng.random() * running[-1]
        at = min(int(np.searchsorted(running, ticket, side="right")), len(sample) - 1)
        centroids[index] = sample[at if left[at] > 0 else int(left.argmax())]
    return centroids


def _means(points: Float32s, codes: Int32s, k: int) -> tuple[Float64s, Float32s]:
    """(points of each cluster [k], their means [k, D], 0 where there are none)."""
    counts = np.bincount(codes, minlength=k).astype(np.float64)
    order = np.argsort(codes, kind="stable")
    filled = np.flatnonzero(counts)
    begins = (np.cumsum(counts) - counts)[filled].astype(np.int64)
    means = np.zeros((k, points.shape[1]), dtype=np.float32)
    sums = np.add.reduceat(points[order].astype(np.float64), begins, axis=0)
    means[filled] = sums / counts[filled, None]
    return counts, means


def _reseed(centroids: Float32s, empty: Int64s, points: Float32s, distances: Float64s) -> int:
    """Put `empty` centroids on the farthest different points; how many were put."""
    if not empty.size:
        return 0
    taken: set[bytes] = set()
    waiting = empty.tolist()
    for at in np.argsort(-distances, kind="stable").tolist():
        if not waiting or distances[at] <= 0:
            break
        row = points[at].tobytes()
        if row not in taken:
            taken.add(row)
            centroids[waiting.pop(0)] = points[at]
    return int(empty.size) - len(waiting)
