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


@dataclass(frozen=True, slots=True)
class Sample:
    """A pass and the milliseconds it took."""

    shape: Pass
    ms: float


def fit(samples: Sequence[Sample]) -> Coefficients:
    """The coefficients with the least sum of squared relative errors, so that short passes count like long.

    What the samples cannot tell is 0, except that rank passes and chunks lend each other their fixed part.

    Raises:
        ValueError: there is no sample, or a time is not positive and finite.
    """
    if not samples:
        raise ValueError("samples: there are none")
    for sample in samples:
        if not 0 < sample.ms < math.inf:
            raise ValueError(f"samples: {sample.ms} ms must be positive and finite")
    rows = [
        (not s.shape.chunk, s.shape.rows, s.shape.seen, s.shape.chunk)  # of t0, t1, t2, t_launch
        for s in samples
    ]
    times = np.array([sample.ms for sample in samples])
    t0, t1, t2, t_launch = _not_negative(np.array(rows, np.float64) / times[:, None]).tolist()
    if not any(sample.shape.chunk for sample in samples):
        t_launch = t0
    elif all(sample.shape.chunk for sample in samples):
        t0 = t_launch
    return Coefficients(t0_ms=t0, t1_ms=t1, t2_ms=t2, t_launch_ms=t_launch)


def _not_negative(matrix: _Floats) -> _Floats:
    """x >= 0 [k] with the least |matrix x - 1|.

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
    return best
