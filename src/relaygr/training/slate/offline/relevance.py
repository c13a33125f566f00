"""Metrics of logged labels in another order: how relevant items are, whatever stands around them.

Moving a label to another position assumes that the user would have done the same there, behind other items.
That is the very thing a list model denies, so these figures say nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.listwise.pool import Head
from relaygr.training.bootstrap import interval, resample
from relaygr.training.metrics import ndcg
from relaygr.training.slate.logs import LoggedLists

NDCG, MAP = "ndcg", "map"
RELABELLING = (NDCG, MAP)


class Relevance(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of one metric over lists with both kinds of labels, with a 95 % interval over users."""

    method: str
    metric: str
    mean: float
    low: float
    high: float
    lists: int


def relevance(
    logs: LoggedLists, head: str, scores: Mapping[str, Float64], seed: int = 0
) -> tuple[Relevance, ...]:
    """NDCG and MAP of the consumed items of each list, ordered by scores float64 [N, L], higher first.

    Raises:
        ConfigError: the head is none of the logs'.
    """
    check_head(logs.heads, head)
    names = [each.name for each in logs.heads]
    labels = logs.labels[..., names.index(head)] > 0
    kept = np.flatnonzero([_mixed(labels[n, : logs.consumed[n]]) for n in range(len(logs))])
    made = []
    for method, values in scores.items():
        if not len(kept):
            break
        found = np.array([_metrics(labels[n, : logs.consumed[n]], values[n]) for n in kept])
        drawn = resample(found, logs.users[kept], per_user=False, seed=seed)
        for at, metric in enumerate(RELABELLING):
            low, high = interval(drawn.draws[:, at])
            mean = float(drawn.observed[at])
            made.append(
                Relevance(method=method, metric=metric, mean=mean, low=low, high=high, lists=len(kept))
            )
    return tuple(made)


def check_head(heads: Sequence[Head], head: str) -> None:
    """Raise ConfigError where the head is none of those."""
    names = [each.name for each in heads]
    if head not in names:
        raise ConfigError("relevance", f"head {excerpt(repr(head))} is none of {', '.join(names)}")


def _mixed(labels: Bool) -> bool:
    return bool(labels.any()) and not labels.all()


def _metrics(labels: Bool, scores: Float64) -> tuple[float, float]:
    order: Int64 = np.argsort(-scores[: len(labels)], kind="stable")
    ranked = labels[order]
    hits = np.flatnonzero(ranked)
    precision = np.arange(1, len(hits) + 1) / (hits + 1)
    return ndcg(ranked, int(labels.sum())), float(precision.mean())
