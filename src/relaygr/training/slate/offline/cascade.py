"""Off-policy estimates of a list's utility, position by position, with the effective sample size of each.

With y_t the realised value at position t (0 behind the exit), rho_t = product over r <= t of pi_e / pi_b, and
Q a model of what is still to come,

    cascade IPS          sum over t of rho_t y_t
    doubly robust        sum over t of rho_t (y_t - Q_t) + rho_{t-1} E_{pi_e}[Q_t]
    replay               weighted mean of the utility of lists whose first k picks are those of pi_e

The first is unbiased where propensities are right; the second also where they are wrong and Q is right, as
Q_t counts what follows position t: Q_t = V_t + (1 - e_t) R_{t+1}. R is a number of the request and the
position alone, so that whatever R is, the expectation of the second is that of the first.

Weights stop at the exit: what a user did not see has no influence, and their mean stays 1.

Nothing is estimated below an effective sample size of 200, which would say little. Nor is it where a weight
is above e^300, or where the mean weight is off by a factor of ten: propensities then are not those that lists
were drawn by. In sizes and means weights above e^300 count as that.

Source of the cascade form: Kiyohara et al., "Doubly robust off-policy evaluation for ranking policies under
the cascade behavior model", WSDM 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.training.bootstrap import interval, resample

LEAST_ESS = 200.0  # below it, intervals of weighted means are not to be trusted
LARGEST_LOG_WEIGHT = 300.0  # squares and sums of such weights are finite
FURTHEST_MEAN = 10.0  # by which a mean weight may differ from 1, either way


class Doubt(StrEnum):
    """Why something is not estimable."""

    ESS = "ESS"
    WEIGHTS = "weights too large"
    MEAN = "mean weight"


class Estimator(StrEnum):
    DOUBLY_ROBUST = "doubly robust"
    CASCADE_IPS = "cascade ips"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, eq=False)
class ModelSteps:
    """What a model says behind the logged prefixes; float64 [N, L] each.

    Attributes:
        value, stay: V_t and 1 - e_t of the logged pick.
        mean_value, mean_stay: their expectations under the evaluated policy.
        rest_value, rest_stay: those of a list of the request that does not depend on the logged one.
    """

    value: Float64
    stay: Float64
    mean_value: Float64
    mean_stay: Float64
    rest_value: Float64
    rest_stay: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """N logged lists of up to L positions under a logging and an evaluated policy.

    Attributes:
        users: int64 [N]; intervals are over users.
        consumed: int64 [N], positions that the user got to.
        reward: float64 [N, L], realised values; read where consumed.
        log_logging, log_target: float64 [N, L], log-probability of each logged pick behind those before it;
            the second may be -inf. Read where consumed.
        model: for the doubly robust form; None leaves it out.
    """

    users: Int64
    consumed: Int64
    reward: Float64
    log_logging: Float64
    log_target: Float64
    model: ModelSteps | None = None

    def __post_init__(self) -> None:
        seen = self.seen
        if not len(self.users):
            raise ConfigError("lists", "0 are left to estimate from, at least one is needed")
        if not np.isfinite(self.log_logging[seen]).all():
            raise ConfigError("log_propensity", "is missing at a position that was consumed")
        if not np.isfinite(self.reward[seen]).all():
            raise ConfigError("labels", "one is missing at a position that was consumed")
        if np.isnan(self.log_target[seen]).any():
            raise ConfigError("log_target", "is not a number at a position that was consumed")

    @property
    def seen(self) -> Bool:
        """[N, L]"""
        inside: Bool = np.arange(self.reward.shape[1]) < self.consumed[:, None]
        return inside

    def log_weights(self) -> Float64:
        """log rho_t, unchanged behind the exit. [N, L]"""
        ratio = np.zeros(self.reward.shape)
        seen = self.seen
        ratio[seen] = self.log_target[seen] - self.log_logging[seen]
        return np.cumsum(ratio, axis=1)

    def weights(self) -> Float64:
        """rho_t, at most e^300. [N, L]"""
        return _exp(self.log_weights())


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The utility of the first `depth` positions under a policy.

    Attributes:
        mean, low, high: with a 95 % interval of a bootstrap over users; None where it is not estimable.
        doubt: why it is not; None where it is.
        ess: (sum of rho)^2 / sum of rho^2 of the weights that the estimate needs.
        mean_weight: 1 in expectation if propensities are right.
        lists: with a weight above 0.
    """

    policy: str
    estimator: Estimator
    depth: int
    mean: float | None
    low: float | None
    high: float | None
    ess: float
    mean_weight: float
    lists: int
    doubt: Doubt | None = None

    @property
    def estimable(self) -> bool:
        return self.mean is not None


def _exp(logs: Float64) -> Float64:
    found: Float64 = np.exp(np.minimum(logs, LARGEST_LOG_WEIGHT))
    return found


def effective_size(weights: Float64) -> float:
    """(sum w)^2 / sum w^2 of [N]; 0 if all are 0."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def ips_values(steps: Steps) -> Float64:
    """What each list adds to the mean, by depth 1..L. [N, L]"""
    reward = np.where(steps.seen, steps.reward, 0.0)
    found: Float64 = np.cumsum(steps.weights() * reward, axis=1)
    return found


def doubly_robust_values(steps: Steps) -> Float64:
    """What each list adds to the mean, by depth 1..L. [N, L]"""
    model = steps.model
    if model is None:
        raise ConfigError("model", "the doubly robust form needs one")
    seen, (N, L) = steps.seen, steps.reward.shape
    weights = steps.weights()
    before = np.concatenate([np.ones((N, 1)), weights[:, :-1]], axis=1)
    reward = np.where(seen, steps.reward, 0.0)
    found = np.empty((N, L))
    for depth in range(1, L + 1):
        rest, total = np.zeros(N), np.zeros(N)
        for t in range(depth - 1, -1, -1):
            q = model.value[:, t] + model.stay[:, t] * rest
            mean = model.mean_value[:, t] + model.mean_stay[:, t] * rest
            term = weights[:, t] * (reward[:, t] - q) + before[:, t] * mean
            total += np.where(seen[:, t], term, 0.0)
            rest = model.rest_value[:, t] + model.rest_stay[:, t] * rest
        found[:, depth - 1] = total
    return found


def estimate(policy: str, steps: Steps, depths: Sequence[int] | None = None, seed: int = 0) -> list[Estimate]:
    """Cascade IPS and, with a model, the doubly robust form at each depth (all of 1..L by default)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _estimate(policy, steps, depths, seed)


def _estimate(policy: str, steps: Steps, depths: Sequence[int] | None, seed: int) -> list[Estimate]:
    logs = steps.log_weights()
    depths = depths_of(depths, logs.shape[1])
    forms = [(Estimator.CASCADE_IPS, ips_values(steps))]
    if steps.model is not None:
        forms.insert(0, (Estimator.DOUBLY_ROBUST, doubly_robust_values(steps)))
    made = []
    for form, values in forms:
        drawn = resample(values, steps.users, per_user=False, seed=seed)
        for depth in depths:
            mean, draws = float(drawn.observed[depth - 1]), drawn.draws[:, depth - 1]
            made.append(_made(policy, form, depth, mean, draws, logs[:, depth - 1]))
    return made


def replay(
    policy: str, steps: Steps, matching: Int64, depths: Sequence[int] | None = None, seed: int = 0
) -> list[Estimate]:
    """The self-normalised mean over lists that begin as the evaluated policy's.

    Args:
        matching: int64 [N], how many of the first picks are the policy's. Positions that a user did not get
            to need not match.
    """
    L = steps.reward.shape[1]
    seen = steps.seen
    logs = np.where(seen, -steps.log_logging, 0.0)
    logs = np.cumsum(logs, axis=1)
    utility = np.cumsum(np.where(seen, steps.reward, 0.0), axis=1)
    made = []
    for depth in depths_of(depths, L):
        match = matching >= np.minimum(depth, steps.consumed)
        matched = np.where(match, logs[:, depth - 1], -np.inf)
        if not match.any():
            made.append(_made(policy, Estimator.REPLAY, depth, 0.0, np.zeros(1), matched))
            continue
        weights = _exp(matched)
        columns = np.stack([weights * utility[:, depth - 1], weights], axis=1)
        drawn = resample(columns, steps.users, per_user=False, seed=seed)
        # A draw of users without any match says nothing.
        some = drawn.draws[:, 1] > 0
        draws = drawn.draws[some, 0] / drawn.draws[some, 1]
        mean = float(drawn.observed[0] / drawn.observed[1])
        made.append(_made(policy, Estimator.REPLAY, depth, mean, draws, matched))
    return made


def _made(
    policy: str, form: Estimator, depth: int, mean: float, draws: Float64, log_weights: Float64
) -> Estimate:
    weights = _exp(log_weights)
    ess, weight = effective_size(weights), float(weights.mean())
    low, high = interval(draws)
    doubt = None
    if log_weights.max() > LARGEST_LOG_WEIGHT or not np.isfinite([mean, low, high]).all():
        doubt = Doubt.WEIGHTS
    elif ess < LEAST_ESS:
        doubt = Doubt.ESS
    elif not 1 / FURTHEST_MEAN <= weight <= FURTHEST_MEAN:
        doubt = Doubt.MEAN
    enough = doubt is None
    return Estimate(
        policy=policy,
        estimator=form,
        depth=depth,
        mean=mean if enough else None,
        low=low if enough else None,
        high=high if enough else None,
        ess=ess,
        mean_weight=weight,
        lists=int((weights > 0).sum()),
        doubt=doubt,
    )


def depths_of(depths: Sequence[int] | None, length: int) -> tuple[int, ...]:
    """Checked depths, by default 1..L. Raises ConfigError."""
    if depths is None:
        return tuple(range(1, length + 1))
    for depth in depths:
        if not 1 <= depth <= length:
            raise ConfigError("depths", f"{depth} is not within 1..{length}")
    return tuple(depths)
