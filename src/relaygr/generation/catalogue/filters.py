"""Which nodes and items a request may reach: allow and deny lists, named filters, what was seen or withdrawn.

All of it is decided on items, never on nodes: two filters may each leave an item under a node, but not the
same one. A node that is alive therefore always leads to an item, and a beam never runs into a dead end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from relaygr.generation.catalogue.index import Bools, CatalogueIndex, Int32s, Int64s, ItemId, Whole
from relaygr.generation.catalogue.named import NamedFilters

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one request asks to be filtered.

    Attributes:
        allow: only these items; None is all items, an empty list is none.
        deny: not these items.
        seen: nor these, which the history holds; errors call them that.
        filters: names of filters that an item must pass, every one of them.
    """

    allow: Sequence[ItemId] | None = None
    deny: Sequence[ItemId] = ()
    seen: Sequence[ItemId] | Int64s = ()
    filters: Sequence[str] = ()

    @property
    def anything(self) -> bool:
        """Whether there is anything to filter."""
        lists = (self.deny, self.seen, self.filters)
        return self.allow is not None or any(len(one) > 0 for one in lists)


class Filter(Protocol):
    """The filters of one request over one catalogue version; immutable, of use to one request."""

    @property
    def index(self) -> CatalogueIndex:
        """What it is about."""
        ...

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
    _living: dict[int, Int32s] = field(default_factory=dict)  # by level, found when first asked for

    @property
    def everything(self) -> bool:
        return len(self.chosen) == self.index.n_items

    def alive(self, level: int, nodes: Whole) -> Bools:
        living = self._living.get(level)
        if living is None:
            living = np.unique(self.index.nodes_of(level, self.chosen)).astype(np.int32)
            self._living[level] = living
        return _contains(living, nodes)

    def passes(self, positions: Whole) -> Bools:
        return _contains(self.chosen, positions)

    def allowed_items(self, leaf: int) -> Int32s:
        low, high = np.searchsorted(self.chosen, self.index.item_ptr[leaf : leaf + 2])
        return self.chosen[low:high]


@dataclass(frozen=True, slots=True, eq=False)
class DenyFilter:
    """All items but some: `dropped` are their positions, ascending and distinct."""

    index: CatalogueIndex
    dropped: Int32s
    _dead: dict[int, Int32s] = field(default_factory=dict)  # by level, found when first asked for

    @property
    def everything(self) -> bool:
        return not len(self.dropped)

    def alive(self, level: int, nodes: Whole) -> Bools:
        dead = self._dead.get(level)
        if dead is None:
            above, hits = np.unique(self.index.nodes_of(level, self.dropped), return_counts=True)
            low, high = self.index.item_range(level, above)
            dead = above[hits == high - low].astype(np.int32)
            self._dead[level] = dead
        return ~_contains(dead, nodes)

    def passes(self, positions: Whole) -> Bools:
        return ~_contains(self.dropped, positions)

    def allowed_items(self, leaf: int) -> Int32s:
        return _passing(self, leaf)


@dataclass(frozen=True, slots=True, eq=False)
class NamedFilter:
    """The items that pass named filters, but some.

    `base` counts the items before each position that pass, int32 [n + 1]; `dropped` are positions of items
    that pass, ascending and distinct.
    """

    index: CatalogueIndex
    base: Int32s
    dropped: Int32s

    @property
    def everything(self) -> bool:
        return int(self.base[-1]) - len(self.dropped) == self.index.n_items

    def alive(self, level: int, nodes: Whole) -> Bools:
        low, high = self.index.item_range(level, nodes)
        left = self.base[high] - self.base[low]
        alive: Bools = left > 0
        if len(self.dropped):
            # Only nodes with no more items than are dropped can be empty.
            doubtful = np.flatnonzero(alive & (left <= len(self.dropped)))
            ends = np.searchsorted(self.dropped, high[doubtful])
            hits = ends - np.searchsorted(self.dropped, low[doubtful])
            alive[doubtful] = left[doubtful] > hits
        return alive

    def passes(self, positions: Whole) -> Bools:
        passing: Bools = self.base[positions + 1] > self.base[positions]
        return passing & ~_contains(self.dropped, positions)

    def allowed_items(self, leaf: int) -> Int32s:
        return _passing(self, leaf)


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
    dropped = withdrawn
    denied: tuple[tuple[str, Sequence[ItemId] | Int64s], ...] = (
        ("deny", wanted.deny),
        ("history", wanted.seen),
    )
    for name, ids in denied:
        if len(ids):
            more = index.positions_of(name, ids)
            dropped = np.union1d(dropped, more) if len(dropped) else more
    found: DenyFilter | NamedFilter = DenyFilter(index, dropped)
    if wanted.filters:
        named = named if named is not None else NamedFilters()
        base = named.passing(version, index, wanted.filters)
        found = NamedFilter(index, base, dropped[base[dropped + 1] > base[dropped]])
    if wanted.allow is None:
        return found
    chosen = index.positions_of("allow", wanted.allow)
    return AllowFilter(index, chosen[found.passes(chosen)])


def _passing(found: Filter, leaf: int) -> Int32s:
    low, high = found.index.item_ptr[leaf : leaf + 2]
    positions = np.arange(low, high, dtype=np.int32)
    return positions[found.passes(positions)]


def _contains(ascending: Int32s, members: Whole) -> Bools:
    """Whether each of `members` is in `ascending`. [n]"""
    if not len(ascending):
        return np.zeros(len(members), np.bool_)
    members = members.astype(np.int32, copy=False)
    place = np.minimum(np.searchsorted(ascending, members), len(ascending) - 1)
    found: Bools = ascending[place] == members
    return found
