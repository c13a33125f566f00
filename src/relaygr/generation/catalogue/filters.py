"""Which nodes and items a request may reach: allow and deny lists, named filters, withdrawn items.

All of it is decided on items, never on nodes: two filters may each leave an item under a node, but not the
same one. A node that is alive therefore always leads to an item, and a beam never runs into a dead end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from relaygr.generation.catalogue.index import Bools, CatalogueIndex, Int32s, ItemId, Whole
from relaygr.generation.catalogue.named import NamedFilters

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one request asks to be filtered.

    Attributes:
        allow: only these items; None is all items, an empty list is none.
        deny: not these items.
        filters: names of filters that an item must pass, every one of them.
    """

    allow: Sequence[ItemId] | None = None
    deny: Sequence[ItemId] = ()
    filters: Sequence[str] = ()


class Filter(Protocol):
    """The filters of one request over one catalogue version; immutable, of use to one request."""

    @property
    def everything(self) -> bool:
        """Whether all nodes are alive, so that nobody needs to ask."""
        ...

    def alive(self, level: int, nodes: Whole) -> Bools:
        """Whether an allowed item is left under each of `nodes`, which are nodes of `level`. [n]"""
        ...

    def passes(self, positions: Whole) -> Bools:
        """Whether the item at each position is allowed. [n]"""
        ...

    def allowed_items(self, leaf: int) -> Int32s:
        """Positions of the allowed items of `leaf`, best first; never empty if the leaf is alive."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AllowFilter:
    """Some items only: `chosen` are their positions, ascending and distinct."""

    index: CatalogueIndex
    chosen: Int32s

    @property
    def everything(self) -> bool:
        return len(self.chosen) == self.index.n_items

    def alive(self, level: int, nodes: Whole) -> Bools:
        low, high = self.index.item_range(level, nodes)
        found: Bools = np.searchsorted(self.chosen, low) < np.searchsorted(self.chosen, high)
        return found

    def passes(self, positions: Whole) -> Bools:
        return _contains(self.chosen, positions)

    def allowed_items(self, leaf: int) -> Int32s:
        low, high = np.searchsorted(self.chosen, self.index.item_ptr[leaf : leaf + 2])
        return self.chosen[low:high]


@dataclass(frozen=True, slots=True, eq=False)
class DenyFilter:
    """All items of `base` but some: `dropped` are their positions, ascending, distinct and all within `base`.

    `base` counts the items before each position that pass the named filters, int32 [n + 1]; None is all.
    """

    index: CatalogueIndex
    base: Int32s | None
    dropped: Int32s

    @property
    def everything(self) -> bool:
        return self.base is None and not len(self.dropped)

    def alive(self, level: int, nodes: Whole) -> Bools:
        low, high = self.index.item_range(level, nodes)
        left = high - low if self.base is None else self.base[high] - self.base[low]
        if not len(self.dropped):
            return left > 0
        # Only nodes with no more items than are dropped can be empty, and those are few in the upper levels.
        alive: Bools = left > 0
        doubtful = np.flatnonzero(alive & (left <= len(self.dropped)))
        hits = np.searchsorted(self.dropped, high[doubtful]) - np.searchsorted(self.dropped, low[doubtful])
        alive[doubtful] = left[doubtful] > hits
        return alive

    def passes(self, positions: Whole) -> Bools:
        left = ~_contains(self.dropped, positions)
        if self.base is not None:
            left &= self.base[positions + 1] > self.base[positions]
        return left

    def allowed_items(self, leaf: int) -> Int32s:
        low, high = self.index.item_ptr[leaf : leaf + 2]
        positions = np.arange(low, high, dtype=np.int32)
        return positions[self.passes(positions)]


def make_filter(
    index: CatalogueIndex,
    wanted: Wanted,
    *,
    version: int = 0,
    named: NamedFilters | None = None,
    withdrawn: Int32s = _NONE,
) -> Filter:
    """The filter of one request.

    Ids that the catalogue does not hold are no error: there is nothing to deny, and nothing to allow.

    Args:
        index: the pinned catalogue.
        wanted: the request's lists.
        version: a number that stands for `index`, under which named filters are remembered.
        named: what `wanted.filters` name.
        withdrawn: positions that are denied to everybody, ascending and distinct.

    Raises:
        RequestError: an id of another kind than the catalogue's, or a filter that does not exist.
        FilterError: a named filter failed; the request must fail as well.
    """
    base = None
    if wanted.filters:
        named = named if named is not None else NamedFilters()
        base = named.passing(version, index, wanted.filters)
    dropped = withdrawn
    if len(wanted.deny):
        denied = index.positions_of("deny", wanted.deny)
        dropped = np.union1d(dropped, denied) if len(dropped) else denied
    if wanted.allow is None:
        if base is not None:
            dropped = dropped[base[dropped + 1] > base[dropped]]
        return DenyFilter(index, base, dropped)
    chosen = index.positions_of("allow", wanted.allow)
    return AllowFilter(index, chosen[DenyFilter(index, base, dropped).passes(chosen)])


def _contains(ascending: Int32s, members: Whole) -> Bools:
    """Whether each of `members` is in `ascending`. [n]"""
    if not len(ascending):
        return np.zeros(len(members), np.bool_)
    members = members.astype(np.int32, copy=False)
    place = np.minimum(np.searchsorted(ascending, members), len(ascending) - 1)
    found: Bools = ascending[place] == members
    return found
