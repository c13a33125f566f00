"""The scores of the re-rankers from their formulas, made anew for every candidate: slow and obvious.

Each takes the picks so far (indices into similarities or vectors, of shown items as well) and candidate i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relaygr.listwise.arrays import Float64


def mmr(trade: float, rel: float, sim: Float64, picks: Sequence[int], i: int) -> float:
    """trade * rel_i - (1 - trade) * max over picks of sim_ij; the maximum of nothing is 0."""
    return trade * rel - (1.0 - trade) * max((float(sim[i, j]) for j in picks), default=0.0)


def dpp(strength: float, rel: Float64, sim: Float64, picks: Sequence[int], i: int) -> float:
    """det K[picks + i] / det K[picks] with K_ij = exp(strength * rel_i) * sim_ij * exp(strength * rel_j)."""
    scale = np.exp(strength * rel)
    kernel = scale[:, None] * sim * scale
    more = [*picks, i]
    whole = float(np.linalg.det(kernel[np.ix_(more, more)]))
    return whole / float(np.linalg.det(kernel[np.ix_(picks, picks)])) if picks else whole


def ssd(strength: float, rel: float, vectors: Float64, picks: Sequence[int], i: int) -> float:
    """rel_i + strength * distance of vector i to the span of the picks' vectors, by least squares."""
    target = vectors[i]
    if picks:
        basis = vectors[list(picks)].T
        weights, *_ = np.linalg.lstsq(basis, target, rcond=None)
        target = target - basis @ weights
    return rel + strength * float(np.linalg.norm(target))


def demotion(
    factors: Mapping[str, Sequence[float]],
    rel: float,
    attributes: Mapping[str, Sequence[int]],
    picks: Sequence[int],
    i: int,
) -> float:
    """rel_i * product over attributes of factor[min(picks of the same value, last)]; -1 equals nothing."""
    score = rel
    for name, row in factors.items():
        value = attributes[name][i]
        same = sum(attributes[name][j] == value for j in picks) if value != -1 else 0
        score *= row[min(same, len(row) - 1)]
    return score
