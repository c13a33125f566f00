"""A pointwise ranker for small data: biases and factors by alternating least squares, calibrated by Platt.

Source of the fit: Koren, Bell and Volinsky, "Matrix factorization techniques for recommender systems", 2009;
here of likes (0 or 1) instead of stars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int64
from relaygr.training.calibration import PlattFit

_BIAS_SHRINK = 5.0  # ratings that a bias is shrunk by
_SHRINK = 8.0  # of factors
_ROUNDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class FactorRanker:
    """Logits of liking; users and items that were not seen have no bias and no factors.

    Attributes:
        users, items: int64, ascending; known ones.
        mean: share of likes.
        user_bias, item_bias: float64; user_factors, item_factors: float64 [., D].
        slope, intercept: from the fit to logits.
    """

    users: Int64
    items: Int64
    mean: float
    user_bias: Float64
    item_bias: Float64
    user_factors: Float64
    item_factors: Float64
    slope: float = 1.0
    intercept: float = 0.0

    def __call__(self, users: Int64, items: Int64) -> Float32:
        """[n, 1] for users and items int64 [n]."""
        return (self.slope * self.fit(users, items) + self.intercept).astype(np.float32)[:, None]

    def fit(self, users: Int64, items: Int64) -> Float64:
        """Expected likes before calibration. [n]"""
        u, known_u = _places(self.users, users)
        i, known_i = _places(self.items, items)
        match = np.einsum("nd,nd->n", self.user_factors[u], self.item_factors[i])
        found: Float64 = (
            self.mean
            + np.where(known_u, self.user_bias[u], 0.0)
            + np.where(known_i, self.item_bias[i], 0.0)
            + np.where(known_u & known_i, match, 0.0)
        )
        return found


def fit_factors(users: Int64, items: Int64, like: Float64, width: int = 8, seed: int = 0) -> FactorRanker:
    """Fit to ratings [R].

    Raises:
        ConfigError: there are none, or all are alike.
    """
    if not len(users) or like.min() == like.max():
        raise ConfigError("ratings", f"{len(users)}, which must be of both kinds")
    known_users, u = np.unique(users, return_inverse=True)
    known_items, i = np.unique(items, return_inverse=True)
    mean = float(like.mean())
    item_bias = _shrunk(i, like - mean, len(known_items))
    user_bias = _shrunk(u, like - mean - item_bias[i], len(known_users))
    rest = like - mean - item_bias[i] - user_bias[u]
    random = np.random.default_rng(seed)
    item_factors: Float64 = 0.1 * random.standard_normal((len(known_items), width))
    user_factors = np.zeros((len(known_users), width))
    for _ in range(_ROUNDS):
        user_factors = _solve(u, item_factors[i], rest, len(known_users))
        item_factors = _solve(i, user_factors[u], rest, len(known_items))
    return FactorRanker(known_users, known_items, mean, user_bias, item_bias, user_factors, item_factors)


def calibrated(ranker: FactorRanker, users: Int64, items: Int64, like: Float64) -> FactorRanker:
    """With slope and intercept from other ratings [R] than those of the fit."""
    platt = PlattFit()
    platt.add(ranker.fit(users, items), like > 0)
    found = platt.fit()
    return FactorRanker(
        ranker.users,
        ranker.items,
        ranker.mean,
        ranker.user_bias,
        ranker.item_bias,
        ranker.user_factors,
        ranker.item_factors,
        found.slope,
        found.intercept,
    )


def _places(known: Int64, wanted: Int64) -> tuple[Int64, Bool]:
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at, known[at] == wanted


def _shrunk(of: Int64, rest: Float64, number: int) -> Float64:
    sums, counts = np.bincount(of, rest, number), np.bincount(of, minlength=number)
    found: Float64 = sums / (counts + _BIAS_SHRINK)
    return found


def _solve(of: Int64, others: Float64, rest: Float64, number: int) -> Float64:
    """Ridge regressions of `rest` [R] on the others' factors [R, D], one for each of `number`."""
    width = others.shape[1]
    gram = np.zeros((number, width, width))
    np.add.at(gram, of, others[:, :, None] * others[:, None, :])
    target = np.zeros((number, width))
    np.add.at(target, of, others * rest[:, None])
    solved = np.linalg.solve(gram + _SHRINK * np.eye(width), target[..., None])
    return np.asarray(solved[..., 0], dtype=np.float64)
