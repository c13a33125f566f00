"""Values that cross the contract of history stores are checked when they are built."""

from __future__ import annotations

import numpy as np
import pytest
from store_backends import batch, numbered

from relaygr.core.errors import RequestError
from relaygr.data.stores import EventBatch, Profile
from relaygr.data.stores.interface import MAX_BATCH_EVENTS, MAX_CONTEXTUAL

ONE = np.ones(1, np.int64)


@pytest.mark.parametrize("column", ["items", "timestamps", "actions"])
@pytest.mark.parametrize("wrong", [np.ones(1), np.ones(1, np.int32), np.ones((1, 1), np.int64), [1], None])
def test_columns_are_int64_arrays(column: str, wrong: object) -> None:
    columns = {"items": ONE, "timestamps": ONE, "actions": ONE, column: wrong}
    with pytest.raises(RequestError, match=f"{column}: must be a one-dimensional int64 array, is "):
        EventBatch(**columns)


@pytest.mark.parametrize("column", ["timestamps", "actions"])
def test_columns_have_one_length(column: str) -> None:
    columns = {"items": ONE, "timestamps": ONE, "actions": ONE, column: np.ones(2, np.int64)}
    with pytest.raises(RequestError, match=f"{column}: has 2 values for 1 items"):
        EventBatch(**columns)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, -1, 1), r"timestamps: -1 is outside \[0, 99999999999\]"),
        ((1, 10**11, 1), r"timestamps: 100000000000 is outside"),
        ((1, 1, -5), r"actions: -5 is outside"),
    ],
)
def test_ranges(row: tuple[int, int, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        batch((1, 1, 1), row)


def test_a_batch_has_a_limit() -> None:
    assert len(numbered(0, MAX_BATCH_EVENTS)) == MAX_BATCH_EVENTS
    with pytest.raises(RequestError, match="items: 65537 events in one batch, limit 65536"):
        numbered(0, MAX_BATCH_EVENTS + 1)


@pytest.mark.parametrize(
    ("slots", "offset_s", "message"),
    [
        (np.ones(MAX_CONTEXTUAL + 1, np.int64), 0, "contextual: has 1025 values, limit 1024"),
        (np.ones(1), 0, "contextual: must be a one-dimensional int64 array, is float64"),
        (ONE, 86_401, "utc_offset_s: 86401 is outside"),
        (ONE, -86_401, "utc_offset_s: -86401 is outside"),
        (ONE, 1.5, "utc_offset_s: 1.5 must be a whole number"),
    ],
)
def test_profiles_have_limits(slots: np.ndarray, offset_s: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Profile(slots, offset_s)
