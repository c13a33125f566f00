"""Build the index of a catalogue from rows in any order, without a loop over them.

One sort brings the semantic ids into lexicographic order; where neighbours begin to differ gives the nodes of
every level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relaygr.generation.catalogue.errors import Reject, RowError
from relaygr.generation.catalogue.hidden import Hidden, hidden_rows
from relaygr.generation.catalogue.index import MAX_NODES, CatalogueIndex, Int32s, Int64s, Whole, code_dtype
from relaygr.generation.catalogue.rows import CheckedRows, Rows, check_rows

Rank: TypeAlias = npt.NDArray[np.intp]  # rows, in some order
Shared: TypeAlias = npt.NDArray[np.uint8]  # how many leading codes a row shares with the row before it


@dataclass(frozen=True, slots=True)
class Built:
    """An index and what became of the rows: `rows` came in, `duplicates` said what another one says."""

    index: CatalogueIndex
    rows: int
    duplicates: int


def build_index(
    rows: Rows,
    sizes: Sequence[int] | None = None,
    *,
    allow_multi_sid: bool = False,
    max_nodes: int = MAX_NODES,
) -> Built:
    """Build the index; see `CatalogueIndex` for the orders.

    Rows that repeat an item and its codes are dropped and counted. Items without strings keep their 64 bits.

    Args:
        rows: items, codes and what is known of them.
        sizes: V_l of each level; by default each level's largest code + 1.
        allow_multi_sid: let an item stand under several semantic ids.
        max_nodes: of a level, and of items.

    Raises:
        RowError: with the row and the reason, see `Reject`.
    """
    given = check_rows(rows, sizes)
    if given.servable is None or bool(given.servable.all()):
        served = None
    else:
        served = np.flatnonzero(given.servable)
        if not len(served):
            raise RowError(
                Reject.EMPTY, None, "servable", f"none of {len(given.items)} rows, limit at least 1"
            )
    rank, shared = _sorted_sids(given.codes if served is None else given.codes[served], given.sizes)
    if served is not None:
        rank = served[rank]
    kept, shared = _order_within(given, rank, shared)
    if len(kept) > max_nodes:
        raise RowError(Reject.NODES, None, "codes", f"{len(kept)} items, limit {max_nodes}")
    by_id, order = _by_id(given, kept, allow_multi_sid)
    hidden = Hidden.none(len(given.sizes))
    if served is not None:
        hidden = hidden_rows(given, kept, by_id, order, allow_multi_sid)
    first = shared < len(given.sizes)
    codes, ptr = _levels(given, kept[first], shared[first])
    index = CatalogueIndex(
        sizes=given.sizes,
        codes=codes,
        ptr=ptr,
        item_ptr=_ends(np.flatnonzero(first), len(kept)),
        items=_fixed(given.items[kept]),
        by_id=_fixed(by_id),
        order=_fixed(order),
        hidden_items=_fixed(hidden.items),
        hidden_codes=_fixed(hidden.codes),
        flags=MappingProxyType({name: _fixed(np.packbits(flag[kept])) for name, flag in given.flags.items()}),
        names=given.names,
    )
    return Built(index, len(given.items), len(rank) - len(kept) + hidden.duplicates)


def _sorted_sids(codes: Whole, sizes: tuple[int, ...]) -> tuple[Rank, Shared]:
    """The rows in lexicographic order of their codes, rows of equal codes in any order. [n], [n]"""
    levels = len(sizes)
    shared = np.zeros(len(codes), np.uint8)
    # A level of one code takes a bit as well, so that no shift is by all 64.
    bits = [max((size - 1).bit_length(), 1) for size in sizes]
    if sum(bits) <= 64:
        keys = np.zeros(len(codes), np.uint64)
        for column, width in zip(codes.T, bits, strict=True):
            keys <<= np.uint64(width)
            keys |= column.astype(np.uint64)
        rank = np.argsort(keys)
        keys = keys[rank]
        differing = keys[1:] ^ keys[:-1]
        below = 64 - (64 - sum(bits))
        for width in bits:
            below -= width
            shared[1:] += differing < np.uint64(1 << below)
        return rank, shared
    rank = np.lexsort(codes.T[::-1])
    same = np.ones(len(codes) - 1, np.bool_)
    for level in range(levels):
        column = codes[rank, level]
        same &= column[1:] == column[:-1]
        shared[1:] += same
    return rank, shared


def _order_within(given: CheckedRows, rank: Rank, shared: Shared) -> tuple[Rank, Shared]:
    """Order the rows of each semantic id by (priority descending, item id), and drop repeated ones."""
    levels = len(given.sizes)
    follows = shared == levels
    tied = follows.copy()
    tied[:-1] |= follows[1:]
    places = np.flatnonzero(tied)
    if not len(places):
        return rank, shared
    rows = rank[places]
    group = np.cumsum(~follows[places])
    found = np.lexsort((rows, given.items[rows], group))
    rows = rows[found]  # groups stay where they are
    repeats = np.zeros(len(rows), np.bool_)
    repeats[1:] = (group[1:] == group[:-1]) & (given.items[rows[1:]] == given.items[rows[:-1]])
    _check_repeats(given, rows, repeats)
    rows, left = rows[~repeats], group[~repeats]
    if given.priority is not None:
        # Ranks, because whole numbers can not always be negated.
        _, importance = np.unique(given.priority[rows], return_inverse=True)
        rows = rows[np.lexsort((given.items[rows], -importance, left))]
    # Each group fills its first places; those of dropped rows, at its end, go.
    starts = places[~follows[places]]
    within = np.arange(len(left)) - np.searchsorted(left, left)
    filled = starts[left - 1] + within
    keep = ~tied
    keep[filled] = True
    rank = rank.copy()
    rank[filled] = rows
    return (rank, shared) if keep.all() else (rank[keep], shared[keep])


def _check_repeats(given: CheckedRows, rows: Rank, repeats: npt.NDArray[np.bool_]) -> None:
    """Rows that repeat the one before them must say the same in everything."""
    again = np.flatnonzero(repeats)
    columns = ({} if given.priority is None else {"priority": given.priority}) | dict(given.flags)
    for name, column in columns.items():
        other = again[column[rows[again]] != column[rows[again - 1]]]
        if len(other):
            row, before = int(rows[other[0]]), int(rows[other[0] - 1])
            raise RowError(
                Reject.CONFLICT,
                row,
                name,
                f"item {given.shown(row)} has {column[row]}, but {column[before]} in row {before}",
            )


def _by_id(given: CheckedRows, kept: Rank, allow_multi_sid: bool) -> tuple[Int64s, Int32s]:
    """Items in ascending order and the position of each. [n], [n]"""
    items = given.items[kept]
    order = np.argsort(items)
    by_id = items[order]
    twice = np.flatnonzero(by_id[1:] == by_id[:-1])
    if len(twice):
        if not allow_multi_sid:
            one, two = sorted(int(kept[order[twice[0] + step]]) for step in (0, 1))
            raise RowError(
                Reject.MULTI_SID,
                two,
                "codes",
                f"item {given.shown(two)} has {given.sid(two)}, but {given.sid(one)} in row {one}",
            )
        order = np.argsort(items, kind="stable")
    return by_id, order.astype(np.int32)


def _levels(
    given: CheckedRows, leaf_rows: Rank, shared: Shared
) -> tuple[tuple[Whole, ...], tuple[Int32s, ...]]:
    """Codes and pointers of each level, from one row of each leaf and what it shares with the leaf before."""
    codes: list[Whole] = []
    ptr: list[Int32s] = []
    for level, size in enumerate(given.sizes, start=1):
        new = shared < level
        codes.append(_fixed(given.codes[leaf_rows[new], level - 1].astype(code_dtype(size))))
        begins = np.flatnonzero(shared[new] < level - 1) if level > 1 else np.zeros(1, np.intp)
        ptr.append(_ends(begins, len(codes[-1])))
    return tuple(codes), tuple(ptr)


def _ends(begins: Rank, end: int) -> Int32s:
    found = np.empty(len(begins) + 1, np.int32)
    found[:-1], found[-1] = begins, end
    return _fixed(found)


def _fixed(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
