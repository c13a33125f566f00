"""Bootstrap intervals over users: one user's requests are not independent, so whole users are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.data.dataset import Int64s

Floats = npt.NDArray[np.float64]

DRAWS = 1000
_CHUNK = 1 << 22  # weights held at once


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """Means of each column: observed [columns], and of each draw [draws, columns].

    Differences between columns of one draw are paired: every column saw the same users.
    """

    observed: Floats
    draws: Floats


def resample(values: Floats, users: Int64s, per_user: bool, seed: int, draws: int = DRAWS) -> Resampled:
    """Means over requests, or over the means of users, with `draws` resamples of the users.

    Args:
        values: [requests, columns].
        users: [requests], the user of each request.
        per_user: every user counts once, however many requests came.
    """
    _, owner = np.unique(users, return_inverse=True)
    counts: Floats = np.bincount(owner).astype(np.float64)
    sums: Floats = np.stack([np.bincount(owner, column) for column in values.T], axis=1)  # [users, columns]
    if per_user:
        sums, counts = sums / counts[:, None], np.ones(len(counts))
    rng = np.random.default_rng(seed)
    n = len(counts)
    rows = max(_CHUNK // n, 1)
    parts = []
    for first in range(0, draws, rows):
        drawn = rng.multinomial(n, np.full(n, 1 / n), size=min(rows, draws - first))
        parts.append((drawn @ sums) / (drawn @ counts)[:, None])
    return Resampled(sums.sum(0) / counts.sum(), np.concatenate(parts))


def interval(draws: Floats) -> tuple[float, float]:
    """The central 95 % of one column of draws."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
