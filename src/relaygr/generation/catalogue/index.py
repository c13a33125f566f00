"""The catalogue index: all semantic ids as one prefix tree in flat arrays, level after level.

A node's id is its edge position in its level, so there are no child pointers: children of node x of level
l - 1 are the nodes `ptr_l[x] .. ptr_l[x + 1] - 1` of level l, in ascending order of their codes. Leaves under
a node, and hence its items, are contiguous. Levels are 1-based, as in text; the root is node 0 of level 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue.names import Names

ItemId: TypeAlias = int | str
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Whole: TypeAlias = npt.NDArray[np.integer[Any]]

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
# Node ids and item positions are int32.
MAX_NODES = (1 << 31) - 1


def code_dtype(size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """What holds the codes of a level of `size` codes."""
    return np.dtype(np.uint16) if size <= 1 << 16 else np.dtype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class CatalogueIndex:
    """Immutable; all arrays are read-only and may be memory-mapped.

    A *position* is an index into `items`; items of one leaf stand best first (priority descending, then id
    ascending), leaves in lexicographic order of their codes.

    Attributes:
        sizes: V_l, codes of each level.
        codes: per level uint16 or int32 [n_l], the last code of each prefix.
        ptr: per level int32 [n_{l-1} + 1], where the children of each node of the level above begin.
        item_ptr: int32 [n_L + 1], where the items of each leaf begin.
        items: int64 [n], item ids or, with `names`, rows of `names`.
        by_id: int64 [n], `items` in ascending order.
        order: int32 [n], the position of each of `by_id`; equal ids in ascending order of position.
        hidden_items: int64 [h] ascending; items that are not served and only have codes.
        hidden_codes: int32 [h, L], their codes.
        flags: name -> packed bits [ceil(n / 8)] over positions, first position in the highest bit.
        names: the strings, if item ids are strings.
    """

    sizes: tuple[int, ...]
    codes: tuple[Whole, ...]
    ptr: tuple[Int32s, ...]
    item_ptr: Int32s
    items: Int64s
    by_id: Int64s
    order: Int32s
    hidden_items: Int64s
    hidden_codes: Int32s
    flags: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=lambda: MappingProxyType({}))
    names: Names | None = None

    @property
    def levels(self) -> int:
        """L."""
        return len(self.sizes)

    @property
    def n_sids(self) -> int:
        """Distinct semantic ids, which are the leaves."""
        return len(self.item_ptr) - 1

    @property
    def n_items(self) -> int:
        """Positions; an item under several semantic ids counts once for each."""
        return len(self.items)

    def nodes(self, level: int) -> int:
        """n_l; 1 for level 0."""
        return len(self.codes[level - 1]) if level else 1

    @property
    def trie_nbytes(self) -> int:
        """Bytes of codes and pointers, without items."""
        return sum(one.nbytes for one in self.codes) + sum(one.nbytes for one in self.ptr)

    @property
    def bytes_per_sid(self) -> float:
        """Bytes of the tree for each semantic id, without items."""
        return self.trie_nbytes / self.n_sids

    @property
    def nbytes(self) -> int:
        """Bytes of everything."""
        arrays = (self.item_ptr, self.items, self.by_id, self.order)
        hidden = self.hidden_items.nbytes + self.hidden_codes.nbytes
        flags = sum(one.nbytes for one in self.flags.values())
        strings = self.names.nbytes if self.names is not None else 0
        return self.trie_nbytes + sum(one.nbytes for one in arrays) + hidden + flags + strings

    def children(self, level: int, nodes: Whole) -> tuple[Int64s, Int64s]:
        """Ranges [start, end) of nodes of `level` under `nodes`, which are of the level above. [n], [n]"""
        ptr = self.ptr[level - 1]
        return ptr[nodes].astype(np.int64), ptr[nodes + 1].astype(np.int64)

    def item_range(self, level: int, nodes: Whole) -> tuple[Int32s, Int32s]:
        """Ranges [low, high) of item positions under `nodes` of level `level`. [n], [n]"""
        low, high = nodes, nodes + 1
        for ptr in self.ptr[level:]:
            low, high = ptr[low], ptr[high]
        return self.item_ptr[low], self.item_ptr[high]

    def sids(self, leaves: Whole) -> Int64s:
        """The codes of each leaf. [n, L]"""
        found = np.empty((len(leaves), self.levels), np.int64)
        nodes = np.asarray(leaves, np.int64)
        for level in range(self.levels, 0, -1):
            found[:, level - 1] = self.codes[level - 1][nodes]
            nodes = self.parents(level, nodes)
        return found

    def parents(self, level: int, nodes: Whole) -> Int64s:
        """The node above each of `nodes`, which are nodes of `level`. [n]"""
        # Exact, because no node is without children.
        return _owners(self.ptr[level - 1], nodes)

    def leaves_of(self, positions: Whole) -> Int64s:
        """The leaf that each position belongs to. [n]"""
        return _owners(self.item_ptr, positions)

    def nodes_of(self, level: int, positions: Whole) -> Int64s:
        """The node of `level` that each position is under. [n]"""
        nodes = self.leaves_of(positions)
        for below in range(self.levels, level, -1):
            nodes = self.parents(below, nodes)
        return nodes

    def find_leaf(self, codes: Sequence[int]) -> int | None:
        """The leaf of one whole semantic id, None if there is no such leaf."""
        node = 0
        for level, code in enumerate(codes, start=1):
            low, high = int(self.ptr[level - 1][node]), int(self.ptr[level - 1][node + 1])
            node = low + int(np.searchsorted(self.codes[level - 1][low:high], code))
            if node >= high or int(self.codes[level - 1][node]) != code:
                return None
        return node if len(codes) == self.levels else None

    def item_ids(self, leaf: int) -> list[ItemId]:
        """Items of `leaf`, best first."""
        return self.ids_at(np.arange(self.item_ptr[leaf], self.item_ptr[leaf + 1]))

    def ids_at(self, positions: Whole) -> list[ItemId]:
        """The item id at each position."""
        return self.ids_of(self.items[positions])

    def ids_of(self, items: Int64s) -> list[ItemId]:
        """Entries of `items` or `hidden_items` as ids: themselves, or their strings."""
        rows: list[int] = items.tolist()
        return list(rows) if self.names is None else list(self.names.at(rows))

    def internal(self, field: str, ids: Sequence[ItemId] | Int64s) -> tuple[Int64s, Bools]:
        """(entries as in `items`, whether it can be one at all). [n], [n]

        Raises:
            RequestError: naming `field` and the place; an id is of another kind than the catalogue's ids, or
                a number beyond int64.
        """
        if isinstance(ids, np.ndarray):
            if self.names is None:
                return ids, np.ones(len(ids), np.bool_)
            ids = ids.tolist()
        if self.names is None:
            # A million ids at the speed of C: a loop would keep everybody else from the interpreter.
            if set(map(type, ids)) <= {int}:
                try:
                    return np.array(ids, np.int64), np.ones(len(ids), np.bool_)
                except OverflowError:
                    pass  # one of those below
            for place, one in enumerate(ids):
                if isinstance(one, bool) or not isinstance(one, int):
                    raise RequestError(
                        f"{field}[{place}]", f"must be a whole number, got {type(one).__name__}"
                    )
                if not INT64_MIN <= one <= INT64_MAX:
                    raise RequestError(f"{field}[{place}]", f"{one} is beyond 64 bits with sign")
            return np.array(ids, np.int64), np.ones(len(ids), np.bool_)
        sound = set(map(type, ids)) <= {str}
        for place, one in enumerate(() if sound else ids):
            if not isinstance(one, str):
                raise RequestError(f"{field}[{place}]", f"must be a string, got {type(one).__name__}")
        rows = self.names.find([str(one) for one in ids])
        return rows, rows >= 0

    def positions_of(self, field: str, ids: Sequence[ItemId] | Int64s) -> Int32s:
        """Ascending positions of all of `ids` that are served, each once; unknown ids are left out.

        Raises:
            RequestError: as `internal`.
        """
        entries, possible = self.internal(field, ids)
        return self.places(entries[possible])

    def places(self, entries: Int64s) -> Int32s:
        """Ascending positions of `entries`, each once."""
        wanted = np.unique(entries)
        low = np.searchsorted(self.by_id, wanted, side="left")
        high = np.searchsorted(self.by_id, wanted, side="right")
        counts = high - low
        total = int(counts.sum())
        # The ranges [low, high) written out one behind the other.
        flat = np.arange(total) + np.repeat(low - np.cumsum(counts) + counts, counts)
        return np.sort(self.order[flat])

    def flag(self, name: str) -> Bools:
        """The flag `name` of every position. [n]

        Raises:
            KeyError: there is no such flag.
        """
        return np.unpackbits(self.flags[name], count=self.n_items).view(np.bool_)


def _owners(starts: Int32s, members: Whole) -> Int64s:
    """Which of the consecutive, non-empty ranges that begin at `starts` each member is in. [n]"""
    # Of the type of `starts`: numpy would rather copy all of `starts` to another type than the few members.
    return np.searchsorted(starts, members.astype(np.int32), side="right").astype(np.int64) - 1
