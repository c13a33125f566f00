"""Metrics of a ranked list of items against the items of a request: recall and NDCG at cut-offs."""

from __future__ import annotations

import numpy as np

from relaygr.data.dataset import Int64s

CUTS = (10, 50)
SID_METRICS = tuple(f"{name}@{k}" for k in CUTS for name in ("recall", "ndcg"))
LONGEST = max(CUTS)


def list_metrics(items: Int64s, wanted: Int64s) -> tuple[float, ...]:
    """Values in the order of `SID_METRICS`.

    Recall@k is the share of the wanted items among the first k, out of at most k; NDCG@k is binary.

    Args:
        items: distinct, best first; fewer than k count as misses behind their end.
        wanted: distinct, at least one.
    """
    hits = np.isin(items, wanted)
    gains = 1 / np.log2(np.arange(2, LONGEST + 2))
    values: list[float] = []
    for k in CUTS:
        best = min(k, len(wanted))
        top = hits[:k]
        values.append(float(top.sum()) / best)
        values.append(float(gains[: len(top)][top].sum() / gains[:best].sum()))
    return tuple(values)
