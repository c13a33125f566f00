"""Brute force: every valid child of every beam, one full sort a round. Slow and obvious; for tests.

It knows no tree and no arrays of it, only the list of semantic ids that may be found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from relaygr.generation.normalise import Normalization

Sid = tuple[int, ...]
Row = npt.NDArray[np.floating]


def log_sum_exp(values: Row) -> float:
    """log(sum(exp)) in float64."""
    wide = [float(value) for value in values]
    top = max(wide)
    return top + math.log(math.fsum(math.exp(value - top) for value in wide))


def brute_force(
    sids: Sequence[Sid],
    logits_of: Callable[[Sid], Row],
    tables: Sequence[Sequence[int]],
    widths: Sequence[int],
    normalization: Normalization,
    normaliser: Callable[[Row], float] = log_sum_exp,
) -> list[tuple[Sid, float]]:
    """The rows of a beam search over `sids`, best first, with their scores.

    Args:
        sids: the distinct semantic ids that may be found: of the catalogue, after filters.
        logits_of: the model's logits over its whole vocabulary after a prefix of codes.
        tables: per level, the token of each code.
        widths: beams kept by each round.
        normaliser: log of the sum of exponentials; tests of exact ties hand in the one under test.
    """
    beams: list[tuple[Sid, float]] = [((), 0.0)]
    if not sids:
        return []
    for level, width in enumerate(widths, start=1):
        table = tables[level - 1]
        candidates: list[tuple[float, int, int, Sid]] = []
        for rank, (prefix, score) in enumerate(beams):
            logits = logits_of(prefix)
            children = sorted({sid[level - 1] for sid in sids if sid[: level - 1] == prefix})
            over: Sequence[int] = {
                Normalization.FULL: range(len(logits)),
                Normalization.LEVEL: table,
                Normalization.VALID: [table[code] for code in children],
            }[normalization]
            total = normaliser(logits[list(over)])
            for code in children:
                logprob = float(logits[table[code]]) - total
                candidates.append((-(score + logprob), rank, code, (*prefix, code)))
        candidates.sort()
        beams = [(prefix, -negative) for negative, _, _, prefix in candidates[:width]]
    return beams
