"""The estimators of `cascade.py`, one list and one position after the other."""

from __future__ import annotations

import math

from relaygr.listwise.arrays import Int64
from relaygr.training.slate.offline.cascade import Steps


def ips(steps: Steps, depth: int) -> float:
    """Mean over lists of sum over t of rho_t y_t."""
    total = 0.0
    for n in range(len(steps.users)):
        rho = 1.0
        for t in range(min(depth, int(steps.consumed[n]))):
            rho *= math.exp(steps.log_target[n, t]) / math.exp(steps.log_logging[n, t])
            total += rho * steps.reward[n, t]
    return total / len(steps.users)


def doubly_robust(steps: Steps, depth: int) -> float:
    """Mean over lists of the sum over t of rho_t (y_t - Q_t) + rho_{t-1} E[Q_t]."""
    total = 0.0
    for n in range(len(steps.users)):
        rho = 1.0
        for t in range(min(depth, int(steps.consumed[n]))):
            before = rho
            rho *= math.exp(steps.log_target[n, t]) / math.exp(steps.log_logging[n, t])
            q, mean = _to_go(steps, n, t, depth)
            total += rho * (steps.reward[n, t] - q) + before * mean
    return total / len(steps.users)


def _to_go(steps: Steps, n: int, t: int, depth: int) -> tuple[float, float]:
    model = steps.model
    assert model is not None
    rest, reached = 0.0, 1.0
    for r in range(t + 1, depth):
        rest += reached * model.rest_value[n, r]
        reached *= model.rest_stay[n, r]
    q = model.value[n, t] + model.stay[n, t] * rest
    return q, model.mean_value[n, t] + model.mean_stay[n, t] * rest


def replay(steps: Steps, matching: Int64, depth: int) -> float:
    """The self-normalised mean over lists that match as far as they were seen."""
    top = bottom = 0.0
    for n in range(len(steps.users)):
        reached = min(depth, int(steps.consumed[n]))
        if matching[n] < reached:
            continue
        weight, utility = 1.0, 0.0
        for t in range(reached):
            weight /= math.exp(steps.log_logging[n, t])
            utility += steps.reward[n, t]
        top, bottom = top + weight * utility, bottom + weight
    return top / bottom


def effective_size(steps: Steps, depth: int) -> float:
    """(sum rho)^2 / sum rho^2 at a depth."""
    found = []
    for n in range(len(steps.users)):
        rho = 1.0
        for t in range(min(depth, int(steps.consumed[n]))):
            rho *= math.exp(steps.log_target[n, t]) / math.exp(steps.log_logging[n, t])
        found.append(rho)
    return sum(found) ** 2 / sum(each**2 for each in found)
