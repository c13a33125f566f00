"""Ranking metrics of one request with several positives: NDCG@k, hit rate@k and AUC."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

METRICS = ("ndcg@10", "hr@10", "auc")
TOP = 10


def request_metrics(scores: Floats, positive: Bools) -> tuple[float, float, float]:
    """(NDCG@10, HR@10, AUC) of one request, in the order of `METRICS`.

    Equal scores keep the order of the arguments, which must therefore say nothing about who is positive.

    Args:
        scores: [m], higher is better.
        positive: [m], at least one true and one false.

    Raises:
        ValueError: a score is not finite, or there is nothing to rank.
    """
    if not np.isfinite(scores).all():
        raise ValueError(f"scores: {int((~np.isfinite(scores)).sum())} of {scores.size} are not finite")
    if not positive.any() or positive.all():
        raise ValueError(f"positive: {int(positive.sum())} of {positive.size} candidates, need both kinds")
    top = positive[top_order(scores, TOP)]
    return ndcg(top, int(positive.sum())), float(top.any()), auc(scores, positive)


def top_order(scores: Floats, k: int) -> npt.NDArray[np.int64]:
    """Indices of the `k` best scores, best first; equal scores in the order of their index."""
    if scores.size > 4 * k:
        # Everything below the k-th best score cannot be among the best; ties with it still can.
        kept = np.flatnonzero(scores >= -np.partition(-scores, k - 1)[k - 1])
        return kept[np.argsort(-scores[kept], kind="stable")][:k]
    return np.argsort(-scores, kind="stable")[:k]


def ndcg(top: Bools, positives: int) -> float:
    """Binary NDCG of a ranked list; the ideal list starts with min(len(top), positives) positives."""
    gains = 1 / np.log2(np.arange(2, len(top) + 2))
    return float(gains[top].sum() / gains[:positives].sum())


def auc(scores: Floats, positive: Bools) -> float:
    """Share of (positive, negative) pairs in the right order; a tie counts one half."""
    negatives = np.sort(scores[~positive])
    mine = scores[positive]
    below = np.searchsorted(negatives, mine, side="left")
    not_above = np.searchsorted(negatives, mine, side="right")
    return float((below + not_above).mean() / (2 * negatives.size))
