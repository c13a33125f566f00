"""Items that are not served any more but still stand in users' histories, and so keep their codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.generation.catalogue.errors import Reject, RowError
from relaygr.generation.catalogue.index import Int32s, Int64s
from relaygr.generation.catalogue.rows import CheckedRows


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Items [h] in ascending order, their codes [h, L], and how many rows repeated another one."""

    items: Int64s
    codes: Int32s
    duplicates: int

    @classmethod
    def none(cls, levels: int) -> Hidden:
        return cls(np.zeros(0, np.int64), np.zeros((0, levels), np.int32), 0)


def hidden_rows(
    given: CheckedRows,
    kept: npt.NDArray[np.intp],
    by_id: Int64s,
    order: Int32s,
    allow_multi_sid: bool,
) -> Hidden:
    """The rows that are not servable; `kept` are those that are, `by_id` and `order` their index by item.

    Raises:
        RowError: an item under two semantic ids, or both servable and not under the same one.
    """
    assert given.servable is not None
    rows = np.flatnonzero(~given.servable)
    codes = given.codes[rows]
    found = np.lexsort((rows, *codes.T[::-1], given.items[rows]))
    rows, codes = rows[found], codes[found]
    items = given.items[rows]
    same_item = items[1:] == items[:-1]
    same_sid = (codes[1:] == codes[:-1]).all(axis=1)
    other = np.flatnonzero(same_item & ~same_sid)
    if len(other) and not allow_multi_sid:
        _refuse(given, int(rows[other[0]]), int(rows[other[0] + 1]))
    _check_served(given, rows, kept, by_id, order, allow_multi_sid)
    fresh = np.ones(len(rows), np.bool_)
    fresh[1:] = ~(same_item & same_sid)
    return Hidden(items[fresh], codes[fresh].astype(np.int32), len(rows) - int(fresh.sum()))


def _check_served(
    given: CheckedRows,
    rows: npt.NDArray[np.intp],
    kept: npt.NDArray[np.intp],
    by_id: Int64s,
    order: Int32s,
    allow_multi_sid: bool,
) -> None:
    items = given.items[rows]
    low = np.searchsorted(by_id, items, side="left")
    high = np.searchsorted(by_id, items, side="right")
    for place in np.flatnonzero(high > low).tolist():
        for at in range(int(low[place]), int(high[place])):
            row, served = int(rows[place]), int(kept[order[at]])
            if given.sid(row) == given.sid(served) or not allow_multi_sid:
                _refuse(given, row, served)


def _refuse(given: CheckedRows, one: int, two: int) -> None:
    before, row = sorted((one, two))
    if given.sid(before) != given.sid(row):
        raise RowError(
            Reject.MULTI_SID,
            row,
            "codes",
            f"item {given.shown(row)} has {given.sid(row)}, but {given.sid(before)} in row {before}",
        )
    raise RowError(
        Reject.CONFLICT,
        row,
        "servable",
        f"item {given.shown(row)} under {given.sid(row)} is the opposite in row {before}",
    )
