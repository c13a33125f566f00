"""The nearest centroid of each point, the same whatever else is in the batch, however the product rounds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_TILE_CELLS = 1 << 22  # (point, centroid) distances held at once
_PAIR_FLOATS = 1 << 22  # floats of near ties that are looked at again at once


def nearest(points: Float32s, centroids: Float32s) -> tuple[Int32s, Float64s]:
    """(index of the nearest centroid [n], squared distance to it [n]); ties go to the lower index.

    A float32 product finds the candidates: every centroid that its rounding error could hide. They are
    compared by differences in float64, so that a point has one answer, alone or in any batch.

    Args:
        points: [n, D], finite.
        centroids: [k, D], finite, k >= 1.
    """
    k, dim = centroids.shape
    norms = np.einsum("kd,kd->k", centroids, centroids)
    # |computed - true| of a dot product of length D is at most D * eps * |x||c|; twice that for 2 x.c, and
    # once more for the best one's own error.
    share = np.float32(4 * (dim + 2) * np.finfo(np.float32).eps)
    longest = float(norms.max()) ** 0.5
    rows = max(_TILE_CELLS // k, 1)
    codes = np.empty(len(points), dtype=np.int32)
    distances = np.empty(len(points), dtype=np.float64)
    for first in range(0, len(points), rows):
        tile = points[first : first + rows]
        scores = norms - 2 * (tile @ centroids.T)  # [m, k], squared distance less the point's own norm
        lengths = np.sqrt(np.einsum("md,md->m", tile, tile))
        bound = scores.min(axis=1) + share * (lengths + longest) * longest
        row, column = np.nonzero(scores <= bound[:, None])
        exact = _exact(tile, centroids, row, column)
        best = _first_of_least(row, column, exact)
        codes[first : first + rows] = column[best]
        distances[first : first + rows] = exact[best]
    return codes, distances


def _exact(points: Float32s, centroids: Float32s, row: Int64s, column: Int64s) -> Float64s:
    out = np.empty(len(row), dtype=np.float64)
    step = max(_PAIR_FLOATS // points.shape[1], 1)
    for first in range(0, len(row), step):
        at = slice(first, first + step)
        difference = points[row[at]].astype(np.float64) - centroids[column[at]]
        out[at] = np.square(difference).sum(axis=1)
    return out


def _first_of_least(row: Int64s, column: Int64s, exact: Float64s) -> Int64s:
    """For each row, in order, the place of its least distance, the lowest column of equal ones."""
    order = np.lexsort((column, exact, row))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.diff(row[order]) != 0
    return order[begins]
