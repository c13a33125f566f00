"""One round's selection: the best W of all children, exactly, at any out-degree.

Children come first and the best of them second. Taking a top-k of the logits before looking at the catalogue
loses valid children wherever the model's favourites are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from relaygr.generation.noise import gumbel
from relaygr.generation.normalise import Normalization, row_normalisers, segment_normalisers
from relaygr.generation.prepare import Pool

Float64s: TypeAlias = npt.NDArray[np.float64]
Int64s: TypeAlias = npt.NDArray[np.int64]
Method: TypeAlias = Literal["threshold", "sort"]


@dataclass(frozen=True, slots=True, eq=False)
class Beams:
    """What a round selected, best first.

    Attributes:
        nodes: int64 [W'], nodes of the round's level.
        scores: float64 [W'], cumulative log-probabilities, finite, descending.
        parents: int64 [W'], rank in the round before.
        codes: int64 [W'], the codes selected.
        candidates: how many there were to select from.
        cut: whether some that could have been selected were not.
        impossible: candidates to which the model gave probability zero; they are never selected.
    """

    nodes: Int64s
    scores: Float64s
    parents: Int64s
    codes: Int64s
    candidates: int
    cut: bool
    impossible: int


def select(
    pool: Pool,
    scores: Float64s,
    logits: Tensor,
    width: int,
    normalization: Normalization,
    *,
    seed: int | None = None,
    method: Method = "threshold",
) -> Beams:
    """The best `width` candidates by (score descending, parent rank, code).

    Args:
        pool: candidates of W parents.
        scores: float64 [W], cumulative scores of the parents.
        logits: float32 [W, columns] on the CPU, the columns of `pool.head`.
        seed: sample without replacement by Gumbel noise of this seed; the sample is in score order.
        method: "sort" orders all candidates, which is the slow way to the same result.

    Raises:
        NonFiniteError: a logit is NaN or +inf.
        ValueError: the logits are not what the pool asked for.
    """
    if logits.ndim != 2 or logits.shape != (len(scores), pool.head.width):
        raise ValueError(f"logits: {tuple(logits.shape)}, expected {(len(scores), pool.head.width)}")
    total = len(pool.nodes)
    if total == 0:
        return _chosen(pool, np.empty(0, dtype=np.int64), np.empty(0), 0, 0)
    sums = _sums(pool, scores, logits, normalization)
    keys = sums if seed is None else sums + gumbel(seed, pool.level, pool.nodes)
    impossible = int(np.count_nonzero(sums == -np.inf)) if sums.min() == -np.inf else 0
    possible = total - impossible
    # What is impossible sorts last, so that it falls off with the width.
    count = min(width, possible)
    kept = best(keys, count) if method == "threshold" else np.argsort(-keys, kind="stable")[:count]
    if seed is not None:
        kept = kept[np.lexsort((kept, -sums[kept]))]
    return _chosen(pool, kept, sums[kept], possible, impossible)


def best(keys: Float64s, count: int) -> Int64s:
    """Indices of the `count` greatest keys, greatest first, equal ones by index; no key is NaN. [count]"""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    if count < len(keys):
        threshold = np.partition(keys, len(keys) - count)[len(keys) - count]
        kept = np.flatnonzero(keys >= threshold)
        if len(kept) > count:
            # Equals of the threshold fill up in order of their index.
            equal = np.flatnonzero(keys[kept] == threshold)
            kept = np.delete(kept, equal[len(equal) - (len(kept) - count) :])
    else:
        kept = np.arange(len(keys))
    order: Int64s = kept[np.argsort(-keys[kept], kind="stable")]
    return order


def _sums(pool: Pool, scores: Float64s, logits: Tensor, normalization: Normalization) -> Float64s:
    """Cumulative score of each candidate, float64 [n]; -inf where the model rules it out."""
    gathered = logits.numpy().reshape(-1).take(pool.gather)
    if normalization is Normalization.VALID:
        normalisers = segment_normalisers(gathered, pool.starts[:-1])
    else:
        normalisers = row_normalisers(logits)
    # A row without any possible token: its candidates stay at -inf instead of becoming NaN.
    normalisers = np.where(normalisers == -np.inf, 0.0, normalisers)
    counts = np.diff(pool.starts)
    sums: Float64s = gathered.astype(np.float64)
    sums -= np.repeat(normalisers, counts)
    sums += np.repeat(scores, counts)
    return sums


def _chosen(pool: Pool, kept: Int64s, sums: Float64s, possible: int, impossible: int) -> Beams:
    return Beams(
        nodes=pool.nodes[kept],
        scores=sums,
        parents=np.searchsorted(pool.starts, kept, side="right") - 1,
        codes=pool.codes[kept].astype(np.int64),
        candidates=len(pool.nodes),
        cut=len(kept) < possible,
        impossible=impossible,
    )
