"""What a logit is relative to: three ways to turn logits into log-probabilities."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# Rows whose exponentials are summed at once: 8 x 8,192 floats stay within a core's cache.
_BLOCK_FLOATS = 1 << 16


class Normalization(StrEnum):
    """The set of tokens over which a beam's next-code probabilities sum to one."""

    FULL = "full"  # the whole vocabulary, as Hugging Face's beam search with a prefix constraint
    LEVEL = "level"  # the code range of the level: conditions on the format of ids
    VALID = "valid"  # the codes that may follow this beam, after filters


class NonFiniteError(ArithmeticError):
    """A logit is NaN or +inf, so there is no probability."""


def row_normalisers(logits: Tensor) -> Float64:
    """log(sum(exp)) of every row of float32 [n, columns]; -inf for a row of only -inf.

    Raises:
        NonFiniteError: a logit is NaN or +inf.
    """
    rows = max(1, _BLOCK_FLOATS // max(1, logits.shape[1]))
    parts = [torch.logsumexp(logits[at : at + rows], dim=1) for at in range(0, len(logits), rows)]
    return _checked(torch.cat(parts).double().numpy())


def segment_normalisers(values: Float32, starts: Int64) -> Float64:
    """log(sum(exp)) of each stretch `values[starts[i] : starts[i + 1]]`, none of them empty, in float64.

    A stretch of one value gives exactly that value.

    Raises:
        NonFiniteError: a value is NaN or +inf.
    """
    wide = values.astype(np.float64)
    tops = np.maximum.reduceat(wide, starts)
    _checked(tops)
    shift = np.where(tops == -np.inf, 0.0, tops)  # a stretch of only -inf has no finite top
    counts = np.diff(starts, append=len(values))
    wide -= np.repeat(shift, counts)
    np.exp(wide, out=wide)
    with np.errstate(divide="ignore"):
        sums: Float64 = shift + np.log(np.add.reduceat(wide, starts))
    return sums


def _checked(normalisers: Float64) -> Float64:
    wrong = np.isnan(normalisers) | np.isposinf(normalisers)
    if wrong.any():
        raise NonFiniteError(f"logits of beam {int(np.argmax(wrong))} hold NaN or +inf")
    return normalisers
