"""What is remembered of keys: of those that are here, and of a bounded number that are not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from relaygr.cache.policy import K

V = TypeVar("V")


class Memory(Generic[K, V]):
    """A value for each key that is here, and for the `entries` others that left or were set last.

    Cost: O(1).
    """

    __slots__ = ("_entries", "_gone", "_here")

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._here: dict[K, V] = {}
        self._gone: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        """Whether it is here."""
        return key in self._here

    @property
    def ghosts(self) -> int:
        """Keys remembered that are not here."""
        return len(self._gone)

    def gone(self) -> Iterator[K]:
        """Keys remembered that are not here."""
        return iter(self._gone)

    def get(self, key: K) -> V | None:
        return self._here[key] if key in self._here else self._gone.get(key)

    def set(self, key: K, value: V) -> None:
        if key in self._here:
            self._here[key] = value
        else:
            self._remember(key, value)

    def came(self, key: K, value: V) -> None:
        self._gone.pop(key, None)
        self._here[key] = value

    def left(self, key: K) -> None:
        """Raises KeyError for a key that is not here."""
        self._remember(key, self._here.pop(key))

    def forget(self, key: K) -> None:
        self._here.pop(key, None)
        self._gone.pop(key, None)

    def _remember(self, key: K, value: V) -> None:
        self._gone[key] = value
        self._gone.move_to_end(key)
        if len(self._gone) > self._entries:
            self._gone.popitem(last=False)
