"""Scores to probabilities by Platt scaling, and normalised entropy: how far they beat a base rate.

Every request counts once, however many candidates it has: a candidate of m has the weight 1/m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.training.metrics import Bools, Floats

# Negatives of one request that a fit keeps; of more, a uniform sample stands for all.
MOST_NEGATIVES = 16384
_MOST_STEPS = 100
_MOST_HALVINGS = 40
_DONE = 1e-13  # Newton decrement at which a fit ends; the loss is of the order of 1e-4 to 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """P(positive) = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float

    def cross_entropy(self, scores: Floats, positive: Bools) -> float:
        """Mean over the candidates [m] of one request, in nats."""
        logits = self.slope * scores + self.intercept
        return float(np.mean(np.logaddexp(0, logits) - np.where(positive, logits, 0.0)))


def entropy(share: Floats) -> Floats:
    """Cross entropy of always predicting the share of positives, in nats; shares are inside (0, 1)."""
    found: Floats = -share * np.log(share) - (1 - share) * np.log1p(-share)
    return found


class PlattFit:
    """Collects scored requests and fits the two numbers of a `Calibration` to them.

    Source: Platt 1999, with his smoothed targets: a finite optimum even where scores separate positives
    from negatives. Found by Newton's method with halved steps, as Lin, Lin and Weng 2007 advise.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._scores: list[Floats] = []
        self._positive: list[Bools] = []
        self._weights: list[Floats] = []

    @property
    def requests(self) -> int:
        return len(self._scores)

    def add(self, scores: Floats, positive: Bools) -> None:
        """Take one request, [m] each.

        Raises:
            ValueError: a score is not finite, or there is no candidate.
        """
        if not scores.size:
            raise ValueError("scores: 0 candidates, need at least 1")
        if not np.isfinite(scores).all():
            raise ValueError(f"scores: {int((~np.isfinite(scores)).sum())} of {scores.size} are not finite")
        weights = np.full(scores.size, 1 / scores.size)
        negatives = np.flatnonzero(~positive)
        if len(negatives) > MOST_NEGATIVES:
            drawn = self._rng.choice(negatives, size=MOST_NEGATIVES, replace=False)
            weights[drawn] *= len(negatives) / MOST_NEGATIVES
            kept = np.concatenate([np.flatnonzero(positive), np.sort(drawn)])
            scores, positive, weights = scores[kept], positive[kept], weights[kept]
        self._scores.append(scores)
        self._positive.append(positive)
        self._weights.append(weights)

    def fit(self) -> Calibration:
        """The best slope and intercept; the slope is 0 where all scores are equal.

        Raises:
            ValueError: nothing was added.
        """
        if not self._scores:
            raise ValueError("requests: 0 were added, need at least 1")
        scores, positive = np.concatenate(self._scores), np.concatenate(self._positive)
        weights = np.concatenate(self._weights)
        ones = int(positive.sum())
        target = np.where(positive, (ones + 1) / (ones + 2), 1 / (positive.size - ones + 2))
        weights = weights / weights.sum()
        centre = float(weights @ scores)
        spread = float(np.sqrt(weights @ (scores - centre) ** 2))
        rate = float(weights @ target)
        level = float(np.log(rate) - np.log1p(-rate))
        # Below this the spread is rounding, and a slope would be noise.
        if spread <= 1e-9 * max(1.0, abs(centre)):
            return Calibration(0.0, level)
        slope, offset = _newton((scores - centre) / spread, target, weights, level)
        return Calibration(slope / spread, offset - slope * centre / spread)


def _newton(x: Floats, target: Floats, weights: Floats, level: float) -> tuple[float, float]:
    """The (slope, offset) of least weighted cross entropy against `target`, all of it [candidates]."""
    at = np.array([0.0, level])
    loss = _loss(at, x, target, weights)
    for _ in range(_MOST_STEPS):
        probability = 0.5 * (1 + np.tanh(0.5 * (at[0] * x + at[1])))
        error = weights * (probability - target)
        curve = weights * probability * (1 - probability)
        gradient = np.array([error @ x, error.sum()])
        hessian = np.array([[curve @ (x * x), curve @ x], [curve @ x, curve.sum()]])
        # Where almost all probabilities are 0 or 1 the curvature may round to nothing.
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        decrement = float(gradient @ step)
        if decrement <= _DONE * max(loss, _DONE):
            break
        size = 1.0
        for _ in range(_MOST_HALVINGS):
            tried = _loss(at - size * step, x, target, weights)
            if tried <= loss - 1e-4 * size * decrement:
                break
            size /= 2
        else:
            break
        at, loss = at - size * step, tried
    return float(at[0]), float(at[1])


def _loss(at: Floats, x: Floats, target: Floats, weights: Floats) -> float:
    logits = at[0] * x + at[1]
    return float(weights @ (np.logaddexp(0, logits) - target * logits))
