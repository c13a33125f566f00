"""Replay the same requests with the same candidates for several models and several caps on the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import EvalRequest
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import Ranker
from relaygr.training.baselines import RecentItems, popularity_scores
from relaygr.training.blocks import Block, blocks
from relaygr.training.calibration import Calibration, PlattFit
from relaygr.training.candidates import CandidateSource
from relaygr.training.metrics import METRICS, Floats, request_metrics
from relaygr.training.scoring import RankerScorer

CROSS_ENTROPY = len(METRICS)  # its column in `CapOutcome.values`, behind those of METRICS
BASELINES = ("popularity", "recency")

Observe = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class CapOutcome:
    """Metrics of each ranked request.

    Attributes:
        values: [models, requests, caps, METRICS and cross entropy].
        baselines: [requests, BASELINES, METRICS]; they know the whole history.
        share: [requests], positives among the candidates.
        users, events_before: [requests], the user and how many events it had before.
        left_out: positives that were not among the candidates.
        unrankable: requests without a positive or without a negative among them; in no array.
    """

    values: Floats
    baselines: Floats
    share: Floats
    users: Int64s
    events_before: Int64s
    left_out: int
    unrankable: int


class CapScorers:
    """One model reading exactly the newest `cap` events, for each of some ascending caps."""

    def __init__(self, model: Ranker, kernel: Kernel, caps: Sequence[int], fit: Calibration) -> None:
        self.caps, self.fit = caps, fit
        self._scorers = [RankerScorer(model, kernel, cap, stride=1) for cap in caps]

    def values(self, block: Block) -> Floats:
        """[requests, caps, METRICS and cross entropy] of one block."""
        found = np.empty((len(block.requests), len(self.caps), len(METRICS) + 1))
        for c, scorer in enumerate(self._scorers):
            fresh = list(range(len(block.requests)))
            if c:
                # A history that fits a smaller cap reads the same at this one.
                found[:, c] = found[:, c - 1]
                fresh = [i for i in fresh if block.requests[i].history_end > self.caps[c - 1]]
            sets = [block.sets[i] for i in fresh]
            scored = scorer.score(
                block.history, [block.requests[i] for i in fresh], [each.items for each in sets]
            )
            for i, scores, each in zip(fresh, scored, sets, strict=True):
                ranked = request_metrics(scores, each.positive)
                found[i, c] = (*ranked, self.fit.cross_entropy(scores, each.positive))
        return found


def calibrate(
    events: Events,
    requests: Sequence[EvalRequest],
    source: CandidateSource,
    model: Ranker,
    kernel: Kernel,
    observe: Observe | None = None,
) -> Calibration:
    """Platt scaling of `model` reading all it can.

    Raises:
        ConfigError: no request can be ranked.
    """
    fit, done = PlattFit(source.seed), 0
    scorer = RankerScorer(model, kernel, stride=1)
    for block in blocks(events, requests, source):
        scored = scorer.score(block.history, block.requests, [each.items for each in block.sets])
        for scores, each in zip(scored, block.sets, strict=True):
            fit.add(scores, each.positive)
        done += block.taken
        if observe is not None:
            observe(done)
    if not fit.requests:
        raise ConfigError(
            "calibration_requests", f"none of {len(requests)} has both a positive and a negative to rank"
        )
    return fit.fit()


def replay_caps(
    events: Events,
    requests: Sequence[EvalRequest],
    source: CandidateSource,
    rankers: Sequence[CapScorers],
    observe: Observe | None = None,
) -> CapOutcome:
    """Rank every request with every ranker at every cap, and with the baselines.

    Args:
        requests: ordered by (user, second).
        rankers: of equal caps.
        observe: called with the number of requests done.

    Raises:
        ConfigError: no request can be ranked.
    """
    values: list[Floats] = []
    rows: list[_Rows] = []
    left_out = unrankable = done = 0
    recent, owner = RecentItems(), -1
    for block in blocks(events, requests, source):
        if block.user != owner:
            recent, owner = RecentItems(), block.user
        done += block.taken
        left_out += block.left_out
        unrankable += block.taken - len(block.requests)
        if block.requests:
            values.append(np.stack([ranker.values(block) for ranker in rankers]))
            rows += _rows(block, source, recent)
        if observe is not None:
            observe(done)
    if not rows:
        raise ConfigError("requests", f"none of {len(requests)} has both a positive and a negative to rank")
    return CapOutcome(
        np.concatenate(values, axis=1),
        np.array([row.baselines for row in rows]),
        np.array([row.share for row in rows]),
        np.array([row.user for row in rows], dtype=np.int64),
        np.array([row.events_before for row in rows], dtype=np.int64),
        left_out,
        unrankable,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a request has beside the models' values."""

    user: int
    events_before: int
    share: float
    baselines: tuple[tuple[float, float, float], ...]


def _rows(block: Block, source: CandidateSource, recent: RecentItems) -> list[_Rows]:
    found = []
    for request, each in zip(block.requests, block.sets, strict=True):
        popularity = popularity_scores(source.catalogue, each.items)
        recent.advance(block.items, block.times, request.history_end)
        pair = (popularity, recent.scores(each.items, popularity))
        found.append(
            _Rows(
                block.user,
                request.history_end,
                float(each.positive.mean()),
                tuple(request_metrics(scores, each.positive) for scores in pair),
            )
        )
    return found
