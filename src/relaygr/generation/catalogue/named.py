"""Filters with a name, such as freshness: flags of the catalogue, or functions that are registered here."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.core.units import MIB
from relaygr.generation.catalogue.errors import FilterError
from relaygr.generation.catalogue.index import Bools, CatalogueIndex, Int32s

# Given a catalogue, says of each of its positions whether it passes: bool [n_items].
Predicate: TypeAlias = Callable[[CatalogueIndex], Bools]
_Key: TypeAlias = tuple[int, tuple[tuple[str, int], ...]]


class NamedFilters:
    """Which filters there are, and what passes them, remembered for each (catalogue version, set of filters).

    Thread-safe. Remembered sums take 4 bytes an item; the least recently used go when they exceed
    `limit_bytes`, and the newest always stays.
    """

    def __init__(self, limit_bytes: int = 256 * MIB) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._defined: dict[str, tuple[int, Predicate]] = {}
        self._revision = 0
        self._sums: OrderedDict[_Key, Int32s] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are remembered."""
        return self._nbytes

    def define(self, name: str, predicate: Predicate) -> None:
        """Let `name` mean `predicate` from now on, before a flag of the same name in a catalogue.

        It is called once for each catalogue version: define it again when its answer changes.
        """
        with self._lock:
            self._revision += 1
            self._defined[name] = self._revision, predicate
            self._forget(lambda key: name in dict(key[1]))

    def remove(self, name: str) -> None:
        """Forget a definition; a flag of that name in a catalogue counts again. Unknown names are fine."""
        with self._lock:
            self._defined.pop(name, None)
            self._forget(lambda key: name in dict(key[1]))

    def forget_version(self, version: int) -> None:
        """Forget what is remembered of a catalogue version that is gone."""
        with self._lock:
            self._forget(lambda key: key[0] == version)

    def passing(self, version: int, index: CatalogueIndex, names: Sequence[str]) -> Int32s:
        """How many items before each position pass all of `names`. [n_items + 1]

        Raises:
            RequestError: there is no such filter.
            FilterError: one failed, or did not answer with one bool an item.
        """
        with self._lock:
            chosen = {name: self._find(index, place, name) for place, name in enumerate(names)}
            key = version, tuple(sorted((name, revision) for name, (revision, _) in chosen.items()))
            known = self._sums.get(key)
            if known is not None:
                self._sums.move_to_end(key)
                return known
        # Not under the lock: it may take milliseconds, and twice the same work is no harm.
        passing = np.ones(index.n_items, np.bool_)
        for name, (_, predicate) in sorted(chosen.items()):
            passing &= _evaluate(name, predicate, index)
        sums = np.zeros(index.n_items + 1, np.int32)
        np.cumsum(passing, out=sums[1:], dtype=np.int32)
        sums.flags.writeable = False
        with self._lock:
            self._remember(key, sums)
        return sums

    def _find(self, index: CatalogueIndex, place: int, name: str) -> tuple[int, Predicate]:
        found = self._defined.get(name)
        if found is not None:
            return found
        if name not in index.flags:
            known = ", ".join(sorted({*self._defined, *index.flags})) or "none"
            raise RequestError(f"filters[{place}]", f"there is no filter {name!r}; there are: {known}")
        return 0, lambda index: index.flag(name)

    def _remember(self, key: _Key, sums: Int32s) -> None:
        current = all(self._defined.get(name, (0,))[0] == revision for name, revision in key[1])
        if key in self._sums or not current:
            return
        self._sums[key] = sums
        self._nbytes += sums.nbytes
        while self._nbytes > self._limit_bytes and len(self._sums) > 1:
            self._nbytes -= self._sums.popitem(last=False)[1].nbytes

    def _forget(self, which: Callable[[_Key], bool]) -> None:
        for key in [key for key in self._sums if which(key)]:
            self._nbytes -= self._sums.pop(key).nbytes


def _evaluate(name: str, predicate: Predicate, index: CatalogueIndex) -> Bools:
    try:
        passing = predicate(index)
    # Somebody else's code: whatever it raises, the request that asked for it fails with this type.
    except Exception as error:
        raise FilterError(f"filter {name!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(passing, np.ndarray) or passing.dtype != np.bool_ or passing.shape != (index.n_items,):
        got = (
            f"{passing.dtype} {passing.shape}" if isinstance(passing, np.ndarray) else type(passing).__name__
        )
        raise FilterError(f"filter {name!r} answered with {got}, expected bool ({index.n_items},)")
    return passing
