"""Which of the evaluated lists to return: lower bounds, and the fallback where the gain is in doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64

DEFAULT_KAPPA = 1.0
Bucket = tuple[int, str]  # length of the list, generator


@dataclass(frozen=True, slots=True)
class Conformal:
    """Quantiles of calibration residuals, predicted - realised, by (length, generator).

    Attributes:
        quantiles: q_{1 - alpha} of each bucket that has enough residuals.
        pooled: of all residuals together, for the other buckets.
    """

    quantiles: Mapping[Bucket, float]
    pooled: float

    @classmethod
    def fit(cls, residuals: Mapping[Bucket, Sequence[float]], alpha: float = 0.1) -> Conformal:
        """Split-conformal quantiles: the ceil((n + 1)(1 - alpha))-th smallest of n residuals.

        A new residual of the same distribution is at most that with probability 1 - alpha or more.

        Raises:
            ConfigError: alpha is not in (0, 1), or all residuals together are too few for it.
        """
        if not 0 < alpha < 1:
            raise ConfigError("alpha", f"{alpha} is not in (0, 1)")
        every = [each for values in residuals.values() for each in values]
        pooled = _quantile(every, alpha)
        if pooled is None:
            raise ConfigError("residuals", f"{len(every)} are too few for alpha {alpha}")
        found = {bucket: _quantile(values, alpha) for bucket, values in residuals.items()}
        return cls({bucket: q for bucket, q in found.items() if q is not None}, pooled)

    def __call__(self, length: int, generators: Sequence[str]) -> Float64:
        """The quantile of each list. [G]"""
        return np.array([self.quantiles.get((length, each), self.pooled) for each in generators])


def _quantile(residuals: Sequence[float], alpha: float) -> float | None:
    rank = math.ceil((len(residuals) + 1) * (1 - alpha))
    return None if rank > len(residuals) else float(np.sort(np.asarray(residuals))[rank - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How to choose.

    Attributes:
        kappa: lower bound = mean - kappa * standard deviation over the members of an ensemble.
        paired: compare with the fallback member by member, and leave it only if the lower bound of the
            difference is above zero.
        conformal: take these quantiles off the mean instead of kappa standard deviations.
    """

    kappa: float = DEFAULT_KAPPA
    paired: bool = False
    conformal: Conformal | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.kappa < math.inf:
            raise ConfigError("kappa", f"{self.kappa} is not a number from 0 on")
        if self.paired and self.conformal is not None:
            raise ConfigError("paired", "goes with kappa, not with conformal quantiles")

    def lower_bounds(self, utility: Float64, length: int, generators: Sequence[str]) -> Float64:
        """Of lists valued by E members. utility [E, G] -> [G]"""
        if self.conformal is not None:
            doubt = self.conformal(length, generators)
        else:
            doubt = self.kappa * utility.std(0)
        bounds: Float64 = utility.mean(0) - doubt
        return bounds

    def __call__(self, utility: Float64, length: int, generators: Sequence[str], fallback: int = 0) -> int:
        """The list to return, the first of equally good ones. utility [E, G]; `fallback` is one of the G."""
        if not self.paired:
            return int(self.lower_bounds(utility, length, generators).argmax())
        delta = utility - utility[:, fallback : fallback + 1]
        bounds = delta.mean(0) - self.kappa * delta.std(0)
        best = int(bounds.argmax())
        return best if bounds[best] > 0 else fallback
