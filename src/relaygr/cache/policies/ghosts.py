"""Keys that left and whose coming back means something."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Generic

from relaygr.cache.policy import K


class Ghosts(Generic[K]):
    """What left, in the order of leaving, up to `entries` keys and up to the bytes that `trim` allows.

    A ghost that is visited is no ghost any more but `returning`, until it has come or `entries` others were
    visited since.
    Cost: O(1).
    """

    __slots__ = ("_entries", "_returning", "_sizes", "nbytes")

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._sizes: OrderedDict[K, int] = OrderedDict()
        self._returning: OrderedDict[K, None] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._sizes) + len(self._returning)

    def __iter__(self) -> Iterator[K]:
        return chain(self._sizes, self._returning)

    def add(self, key: K, nbytes: int) -> None:
        self._drop(key)
        self._sizes[key] = nbytes
        self.nbytes += nbytes
        if len(self._sizes) > self._entries:
            self._drop_oldest()

    def trim(self, nbytes: float) -> None:
        """Let the oldest go until no more than so many bytes are left."""
        while self._sizes and self.nbytes > nbytes:
            self._drop_oldest()

    def visit(self, key: K) -> int | None:
        """Its bytes if it is a ghost; it returns."""
        if key not in self._sizes:
            return None
        nbytes = self._drop(key)
        self._returning[key] = None
        if len(self._returning) > self._entries:
            self._returning.popitem(last=False)
        return nbytes

    def came(self, key: K) -> bool:
        """Whether this is a return; it is no ghost from now on."""
        self._drop(key)
        if key not in self._returning:
            return False
        del self._returning[key]
        return True

    def forget(self, key: K) -> None:
        self.came(key)

    def _drop(self, key: K) -> int:
        nbytes = self._sizes.pop(key, 0)
        self.nbytes -= nbytes
        return nbytes

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._sizes)))
