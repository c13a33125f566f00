"""The rows a catalogue is built of, and the checks that each of them must pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue.errors import Reject, RowError
from relaygr.generation.catalogue.index import INT64_MAX, Bools, Int64s, Whole
from relaygr.generation.catalogue.names import Names, make_names

Numbers: TypeAlias = npt.NDArray[np.integer[Any] | np.floating[Any]]

MAX_LEVELS = 64
MAX_SIZE = (1 << 31) - 1  # codes are int32


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rows:
    """One row for each item and semantic id, in any order.

    Attributes:
        item_ids: whole numbers [n] within int64, or strings.
        codes: whole numbers [n, L].
        priority: [n], the larger the earlier within a semantic id; all equal by default.
        servable: bool [n]; a row that is not servable only gives its item codes. All are by default.
        flags: name -> bool [n], for filters that are asked for by name.
    """

    item_ids: Whole | Sequence[str]
    codes: Whole
    priority: Numbers | None = None
    servable: Bools | None = None
    flags: Mapping[str, Bools] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """Rows that may be built of: `items` are ids, or rows of `names`; every code is within `sizes`."""

    items: Int64s  # [n]
    names: Names | None
    codes: Whole  # [n, L]
    sizes: tuple[int, ...]
    priority: Numbers | None
    servable: Bools | None
    flags: Mapping[str, Bools]

    def shown(self, row: int) -> str:
        """The item of a row, for a message."""
        item = int(self.items[row])
        return str(item) if self.names is None else repr(self.names.at([item])[0])

    def sid(self, row: int) -> list[int]:
        """The codes of a row, for a message."""
        return [int(code) for code in self.codes[row]]


def check_rows(rows: Rows, sizes: Sequence[int] | None) -> CheckedRows:
    """Check all about single rows. Without `sizes`, each level is as large as its largest code asks for.

    Raises:
        RowError: the first row that is wrong, and why.
    """
    codes = np.asarray(rows.codes)
    if codes.ndim != 2 or codes.dtype.kind not in "iu":
        raise RowError(
            Reject.SHAPE,
            None,
            "codes",
            f"{codes.dtype} of shape {codes.shape}, expected whole numbers [n, L]",
        )
    n, levels = codes.shape
    if not n:
        raise RowError(Reject.EMPTY, None, "codes", "no rows, limit at least 1")
    if not 1 <= levels <= MAX_LEVELS:
        raise RowError(Reject.DEPTH, None, "codes", f"{levels} levels, limit 1 to {MAX_LEVELS}")
    items, names = _items(rows.item_ids, n)
    for name, array in (("priority", rows.priority), ("servable", rows.servable), *rows.flags.items()):
        if array is not None and np.shape(array) != (n,):
            raise RowError(Reject.SHAPE, None, name, f"shape {np.shape(array)}, expected ({n},) as codes")
    for name, array in (("servable", rows.servable), *rows.flags.items()):
        if array is not None and array.dtype != np.bool_:
            raise RowError(Reject.SHAPE, None, name, f"{array.dtype}, expected bool")
    _check_priority(rows.priority)
    return CheckedRows(
        items,
        names,
        codes,
        _sizes(codes, sizes),
        rows.priority,
        rows.servable,
        dict(sorted(rows.flags.items())),
    )


def _items(item_ids: Whole | Sequence[str], n: int) -> tuple[Int64s, Names | None]:
    if len(item_ids) != n:
        raise RowError(Reject.SHAPE, None, "item_ids", f"{len(item_ids)} items, expected {n} as codes")
    if not isinstance(item_ids, np.ndarray):
        try:
            names, ranks = make_names(item_ids)
        except RequestError as error:
            raise RowError(Reject.ITEM_ID, int(error.field), "item_ids", error.reason) from error
        return ranks, names
    if item_ids.ndim != 1 or item_ids.dtype.kind not in "iu":
        raise RowError(
            Reject.SHAPE, None, "item_ids", f"{item_ids.dtype} of shape {item_ids.shape}, expected int64 [n]"
        )
    if item_ids.dtype == np.uint64 and int(item_ids.max()) > INT64_MAX:
        row = int(np.argmax(item_ids > INT64_MAX))
        raise RowError(Reject.ITEM_ID, row, "item_ids", f"{item_ids[row]} is above {INT64_MAX}")
    return item_ids.astype(np.int64, copy=False), None


def _check_priority(priority: Numbers | None) -> None:
    if priority is None:
        return
    if priority.dtype.kind not in "iuf":
        raise RowError(Reject.SHAPE, None, "priority", f"{priority.dtype}, expected numbers")
    finite = np.isfinite(priority)
    if not finite.all():
        row = int(np.argmin(finite))
        raise RowError(Reject.PRIORITY, row, "priority", f"{priority[row]} is not finite")


def _sizes(codes: Whole, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Check codes against `sizes`, column by column, so that no array as large as `codes` is made."""
    low = [int(column.min()) for column in codes.T]
    high = [int(column.max()) for column in codes.T]
    limits = [one + 1 for one in high] if sizes is None else [int(one) for one in sizes]
    if len(limits) != len(high):
        raise RowError(Reject.DEPTH, 0, "codes", f"{len(high)} codes, expected {len(limits)}, one a level")
    for level, limit in enumerate(() if sizes is None else sizes, start=1):
        if not 1 <= limit <= MAX_SIZE:
            raise RowError(Reject.RANGE, None, "sizes", f"level {level}: {limit}, limit 1 to {MAX_SIZE}")
    if max(high) >= MAX_SIZE:
        level = int(np.argmax(high))
        row = int(np.argmax(codes[:, level]))
        raise RowError(
            Reject.RANGE, row, "codes", f"level {level + 1}: code {high[level]}, limit {MAX_SIZE - 1}"
        )
    if min(low) < 0:
        row = int(np.argmax((codes < 0).any(axis=1)))
        level = int(np.argmax(codes[row] < 0))
        raise RowError(
            Reject.NEGATIVE, row, "codes", f"level {level + 1}: code {codes[row, level]} is negative"
        )
    if any(top >= limit for top, limit in zip(high, limits, strict=True)):
        bad = codes >= np.array(limits)
        row = int(np.argmax(bad.any(axis=1)))
        level = int(np.argmax(bad[row]))
        raise RowError(
            Reject.RANGE,
            row,
            "codes",
            f"level {level + 1}: code {codes[row, level]}, limit {limits[level] - 1} (size {limits[level]})",
        )
    return tuple(limits)
