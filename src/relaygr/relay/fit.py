"""Coefficients from timed passes: least squares of relative errors, none of them negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from relaygr.relay.latency import Coefficients, Pass

_Floats = npt.NDArray[np.float64]

# Different numbers of candidates, and the share of the error that may be left, for coefficients of their own.
_COUNTS, _BETTER = 3, 0.8


@dataclass(frozen=True, slots=True)
class Sample:
    """A pass and the milliseconds it took."""

    shape: Pass
    ms: float


def fit(samples: Sequence[Sample]) -> Coefficients:
    """The coefficients with the least sum of squared relative errors, so that short passes count like long.

    What the samples cannot tell is 0, except that rank passes and chunks lend each other their fixed part,
    and that candidates cost what tokens cost unless the samples say otherwise.

    Raises:
        ValueError: there is no sample, or a time is not positive and finite.
    """
    if not samples:
        raise ValueError("samples: there are none")
    for sample in samples:
        if not 0 < sample.ms < math.inf:
            raise ValueError(f"samples: {sample.ms} ms must be positive and finite")
    times = np.array([sample.ms for sample in samples])
    tokens = np.array([_token_columns(sample.shape) for sample in samples], np.float64)
    scored = np.array([_candidate_columns(sample.shape) for sample in samples], np.float64)
    alike = tokens + np.pad(scored, ((0, 0), (1, 1)))
    found, error = _not_negative(alike / times[:, None])
    t0, t1, t2, t_launch = found.tolist()
    t1c = t2c = None
    # More coefficients always fit better, and mean something only where candidates were varied and it shows.
    if len({sample.shape.candidates for sample in samples} - {0}) >= _COUNTS:
        found, error_apart = _not_negative(np.hstack([tokens, scored]) / times[:, None])
        if error_apart < _BETTER * error:
            t0, t1, t2, t_launch, t1c, t2c = found.tolist()
    if not any(sample.shape.chunk for sample in samples):
        t_launch = t0
    elif all(sample.shape.chunk for sample in samples):
        t0 = t_launch
    return Coefficients(t0_ms=t0, t1_ms=t1, t2_ms=t2, t_launch_ms=t_launch, t1c_ms=t1c, t2c_ms=t2c)


def _token_columns(shape: Pass) -> tuple[float, ...]:
    """What t0, t1, t2 and t_launch count."""
    return not shape.chunk, shape.new_tokens, shape.history_pairs, shape.chunk


def _candidate_columns(shape: Pass) -> tuple[float, ...]:
    """What t1 and t2 count of candidates, or t1c and t2c."""
    return shape.candidates, shape.candidate_pairs


def _not_negative(matrix: _Floats) -> tuple[_Floats, float]:
    """x >= 0 [k] with the least sum of squares of matrix x - 1, and that sum.

    The best x is the plain least-squares solution on the columns where it is not 0. There are few columns,
    so every choice of them is tried.
    """
    count = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    used = [i for i in range(count) if scale[i] > 0]
    best, least = np.zeros(count), math.inf
    for size in range(len(used), 0, -1):
        for chosen in map(list, combinations(used, size)):
            part = matrix[:, chosen] / scale[chosen]
            solution = np.linalg.lstsq(part, np.ones(len(matrix)), rcond=None)[0]
            error = float(np.square(part @ solution - 1).sum())
            if solution.min() >= 0 and error < least:
                best, least = np.zeros(count), error
                best[chosen] = solution / scale[chosen]
    return best, least
