"""Means, differences between caps and their intervals, by segment, over requests and over users."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from relaygr.training.bootstrap import Floats, interval, resample
from relaygr.training.calibration import entropy
from relaygr.training.cap_replay import BASELINES, CROSS_ENTROPY, CapOutcome
from relaygr.training.metrics import METRICS, Bools
from relaygr.training.segments import Segment

NE = "ne"
CAP_METRICS = (*METRICS, NE)
OVERS = ("requests", "users")


class CapEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean over models of one metric, with the central 95 % of its bootstrap over users.

    Attributes:
        scorer: "model", or a baseline, which has no cap (0), no models and no entropy.
        minus: 0, or the cap whose value is subtracted, pair by pair of the same request and model.
        per_model: the value of each model by itself.
    """

    scorer: str
    segment: str
    over: str
    metric: str
    cap: int
    minus: int
    mean: float
    low: float
    high: float
    per_model: tuple[float, ...] = ()


class SegmentSize(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and users of a segment; `share` is the mean share of positives among the candidates."""

    name: str
    requests: int
    users: int
    share: float


def sizes(outcome: CapOutcome, parts: Sequence[Segment]) -> tuple[SegmentSize, ...]:
    """Of every segment that has a request."""
    held = ((part, part.holds(outcome.events_before)) for part in parts)
    return tuple(
        SegmentSize(
            name=part.name,
            requests=int(inside.sum()),
            users=len(np.unique(outcome.users[inside])),
            share=float(outcome.share[inside].mean()),
        )
        for part, inside in held
        if inside.any()
    )


def cap_estimates(
    outcome: CapOutcome, caps: Sequence[int], parts: Sequence[Segment], seed: int
) -> tuple[CapEstimate, ...]:
    """Every mean, and each cap minus the next smaller and minus the smallest one."""
    found: list[CapEstimate] = []
    for part in parts:
        inside = part.holds(outcome.events_before)
        if inside.any():
            for over in OVERS:
                found += _Drawn(outcome, inside, over, seed).estimates(part.name, caps)
    return tuple(found)


class _Drawn:
    """The resampled means of one segment.

    Normalised entropy is a ratio of two means, so both are resampled: cross entropy over the entropy of the
    share of positives.
    """

    def __init__(self, outcome: CapOutcome, inside: Bools, over: str, seed: int) -> None:
        self._over = over
        values = outcome.values[:, inside]
        models, requests, caps, metrics = values.shape
        extra = np.concatenate(
            [outcome.baselines[inside].reshape(requests, -1), outcome.share[inside, None]], axis=1
        )
        users = outcome.users[inside]
        flat = np.concatenate([values.mean(axis=0).reshape(requests, -1), extra], axis=1)
        sampled = resample(flat, users, over == "users", seed)
        cut = caps * metrics
        self._mean = self._normalised(sampled.observed[None, :cut], sampled.observed[None, -1:], caps)[0]
        self._draws = self._normalised(sampled.draws[:, :cut], sampled.draws[:, -1:], caps)
        self._base_mean, self._base_draws = sampled.observed[cut:-1], sampled.draws[:, cut:-1]
        weights = _weights(users, over)
        one = np.einsum("r,mrck->mck", weights, values).reshape(models, -1)
        share = np.full((models, 1), weights @ outcome.share[inside])
        self._models = self._normalised(one, share, caps)

    @staticmethod
    def _normalised(flat: Floats, share: Floats, caps: int) -> Floats:
        """[n, caps * metrics] -> [n, caps, metrics], cross entropy made into normalised entropy."""
        values = flat.reshape(len(flat), caps, -1).copy()
        values[:, :, CROSS_ENTROPY] /= entropy(share)
        return values

    def estimates(self, segment: str, caps: Sequence[int]) -> list[CapEstimate]:
        found: list[CapEstimate] = []
        for m, metric in enumerate(CAP_METRICS):
            for c in range(len(caps)):
                # The next smaller cap and the smallest one are the same for the second cap.
                others = (None, *dict.fromkeys(d for d in (c - 1, 0) if 0 <= d < c))
                found.extend(self._estimate(segment, metric, caps, m, c, other) for other in others)
        for b, name in enumerate(BASELINES):
            for m, metric in enumerate(METRICS):
                at = b * len(METRICS) + m
                low, high = interval(self._base_draws[:, at])
                mean = float(self._base_mean[at])
                found.append(
                    CapEstimate(
                        scorer=name, segment=segment, over=self._over, metric=metric, cap=0, minus=0,
                        mean=mean, low=low, high=high,
                    )
                )  # fmt: skip
        return found

    def _estimate(
        self, segment: str, metric: str, caps: Sequence[int], m: int, c: int, other: int | None
    ) -> CapEstimate:
        mean, draws, models = self._mean[c, m], self._draws[:, c, m], self._models[:, c, m]
        if other is not None:
            mean, draws = mean - self._mean[other, m], draws - self._draws[:, other, m]
            models = models - self._models[:, other, m]
        low, high = interval(draws)
        return CapEstimate(
            scorer="model",
            segment=segment,
            over=self._over,
            metric=metric,
            cap=caps[c],
            minus=0 if other is None else caps[other],
            mean=float(mean),
            low=low,
            high=high,
            per_model=tuple(models.tolist()),
        )


def _weights(users: np.ndarray, over: str) -> Floats:
    """Weight of each request, summing to 1: equal, or equal for every user."""
    _, owner = np.unique(users, return_inverse=True)
    counts = np.bincount(owner)[owner]
    weights: Floats = 1 / counts if over == "users" else np.ones(len(users))
    weights /= weights.sum()
    return weights
