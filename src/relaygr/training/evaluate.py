"""Replay requests after a split and compare a ranker with popularity and recency, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import EvalRequest
from relaygr.training.baselines import RecentItems, popularity_scores
from relaygr.training.bootstrap import Floats, Resampled, interval, resample
from relaygr.training.candidates import CandidateSource
from relaygr.training.metrics import METRICS, request_metrics
from relaygr.training.scoring import RankerScorer, UserEvents

SCORERS = ("model", "popularity", "recency")

Observe = Callable[[int], None]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with the central 95 % of its bootstrap over users; `minus` names a baseline for a difference."""

    scorer: str
    minus: str
    metric: str
    over: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Metrics of each ranked request.

    Attributes:
        values: [requests, scorers, metrics], in the order of `SCORERS` and `METRICS`.
        users: [requests].
        left_out: positives that were not among the candidates.
        unrankable: requests without a positive or without a negative among the candidates; not in `values`.
    """

    values: Floats
    users: Int64s
    left_out: int
    unrankable: int

    def mean(self, scorer: str, metric: str) -> float:
        """Mean over requests."""
        return float(self.values[:, SCORERS.index(scorer), METRICS.index(metric)].mean())


def replay(
    events: Events,
    requests: Sequence[EvalRequest],
    source: CandidateSource,
    scorer: RankerScorer,
    observe: Observe | None = None,
) -> Outcome:
    """Rank every request with the model and the baselines.

    Args:
        requests: ordered by (user, second).
        observe: called with the number of requests done, once a user.

    Raises:
        ConfigError: no request can be ranked.
    """
    values: list[list[tuple[float, float, float]]] = []
    users: list[int] = []
    left_out = unrankable = done = 0
    for user, group in groupby(requests, key=lambda request: request.user):
        history = events.history(user)
        items, times, _ = history
        mine = list(group)
        sets = [source.candidates(request, items) for request in mine]
        left_out += sum(each.left_out for each in sets)
        pairs = [pair for pair in zip(mine, sets, strict=True) if pair[1].rankable]
        unrankable += len(mine) - len(pairs)
        scores = scorer.score(
            UserEvents.of(history), [request for request, _ in pairs], [each.items for _, each in pairs]
        )
        recent = RecentItems()
        for (request, each), model_scores in zip(pairs, scores, strict=True):
            popularity = popularity_scores(source.catalogue, each.items)
            recent.advance(items, times, request.history_end)
            three = (model_scores, popularity, recent.scores(each.items, popularity))
            values.append([request_metrics(one, each.positive) for one in three])
            users.append(user)
        done += len(mine)
        if observe is not None:
            observe(done)
    if not values:
        raise ConfigError("requests", f"none of {len(requests)} has both a positive and a negative to rank")
    return Outcome(np.array(values), np.array(users, dtype=np.int64), left_out, unrankable)


def estimates(outcome: Outcome, seed: int) -> tuple[Estimate, ...]:
    """All means, and the differences model minus baseline, over requests and over users."""
    found: list[Estimate] = []
    flat = outcome.values.reshape(len(outcome.values), -1)
    for over in ("requests", "users"):
        sampled = resample(flat, outcome.users, over == "users", seed)
        for m, metric in enumerate(METRICS):
            columns = {name: s * len(METRICS) + m for s, name in enumerate(SCORERS)}
            for name, column in columns.items():
                found.append(_estimate(sampled, column, None, name, "", metric, over))
            found.extend(
                _estimate(sampled, columns["model"], columns[name], "model", name, metric, over)
                for name in SCORERS[1:]
            )
    return tuple(found)


def _estimate(
    sampled: Resampled, column: int, other: int | None, scorer: str, minus: str, metric: str, over: str
) -> Estimate:
    mean, draws = float(sampled.observed[column]), sampled.draws[:, column]
    if other is not None:
        mean, draws = mean - float(sampled.observed[other]), draws - sampled.draws[:, other]
    low, high = interval(draws)
    return Estimate(scorer=scorer, minus=minus, metric=metric, over=over, mean=mean, low=low, high=high)
