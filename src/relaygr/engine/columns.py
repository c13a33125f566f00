"""Columns of integers as requests carry them: checked, copied, read-only."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError

Int64 = npt.NDArray[np.int64]
IntColumn = Sequence[int] | npt.NDArray[np.integer]

# Times up to the year 5138; larger values are milliseconds.
MAX_TIME_S = 10**11


def int64_column(field: str, values: IntColumn) -> Int64:
    """`values` as a read-only int64 array [n] of its own.

    Raises:
        RequestError: not one-dimensional, not integers, or out of int64 range.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise RequestError(field, "is a masked array; the mask would be lost")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(field, f"cannot be read as integers: {error}") from error
    if array.ndim != 1:
        raise RequestError(field, f"must be one-dimensional, has shape {array.shape}")
    if array.size == 0:
        return _EMPTY
    if array.dtype == object:  # numpy's type for integers that fit nothing else
        raise RequestError(field, "holds a value that is not an integer or is outside int64")
    if array.dtype.kind not in "iu":
        raise RequestError(field, f"must hold integers, holds {array.dtype}")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise RequestError(field, f"{array.max()} is above the int64 limit {np.iinfo(np.int64).max}")
    column = array.astype(np.int64)
    column.flags.writeable = False
    return column


_EMPTY = np.zeros(0, np.int64)
_EMPTY.flags.writeable = False


def check_time(field: str, seconds: int) -> int:
    """`seconds` as an int; raises RequestError unless it is a whole number from 0 to `MAX_TIME_S`."""
    if not 0 <= (whole := whole_number(field, seconds, -(1 << 64), 1 << 64)) < MAX_TIME_S:
        raise RequestError(field, f"{seconds} is outside [0, {MAX_TIME_S}) seconds; milliseconds?")
    return whole


def whole_number(field: str, value: int, low: int, high: int) -> int:
    """`value` as an int in [low, high]; raises RequestError for anything else, floats included."""
    try:
        whole = operator.index(value)
    except TypeError as error:
        raise RequestError(field, f"{value!r} must be a whole number") from error
    if not low <= whole <= high:
        raise RequestError(field, f"{value} is outside [{low}, {high}]")
    return whole


def time_column(field: str, values: IntColumn, count: int) -> Int64:
    column = int64_column(field, values)
    if len(column) != count:
        raise RequestError(field, f"has {len(column)} values for {count} items")
    if count:
        check_time(field, int(column.min()))
        check_time(field, int(column.max()))
        steps = np.diff(column)
        if len(steps) and steps.min() < 0:
            at = int(np.argmax(steps < 0)) + 1
            raise RequestError(field, f"value {at} ({column[at]}) is before the one in front of it")
    return column


def action_column(values: IntColumn | None, count: int) -> Int64:
    if values is None:
        column = np.ones(count, np.int64)
        column.flags.writeable = False
        return column
    column = int64_column("actions", values)
    if len(column) != count:
        raise RequestError("actions", f"has {len(column)} values for {count} items")
    if count and column.min() < 0:
        raise RequestError("actions", f"{column.min()} is negative; actions are bit sets")
    return column
