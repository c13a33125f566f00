"""GreedyDual: what it would cost to be without an entry, for each byte it takes, on top of an age.

The age A is the key of the last that left, so an entry that is not visited is overtaken in time by what comes
(Cao and Irani 1997, "Cost-aware WWW proxy caching algorithms"; with frequency, Cherkasova 1998).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from relaygr.cache.policies.order import Ordered
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policies.visits import Visits
from relaygr.cache.policy import K, Victim, Weight
from relaygr.core.units import MIB

# Keys are whole numbers of this part of one ms (or visit) per MiB: A grows for months and loses no digit,
# where a float would have to be set back now and then.
_STEPS = 1 << 32
_LARGEST = 1e15


class Greedy(Ordered[K]):
    """Key = A + value(visits, weight), made anew with the A of the moment when an entry comes or is visited.

    `remembers` is whether visits count beyond an entry's leaving.
    """

    remembers = True

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._settings = settings
        self._weights: dict[K, tuple[Weight, int]] = {}  # and the A of the last visit
        self._visits: Visits[K] = Visits(
            settings.ghost_entries if self.remembers else 0, settings.ghost_halve_ops
        )
        self._age = 0

    @abstractmethod
    def value(self, visits: int, weight: Weight) -> float:
        """What is lost without the entry, per MiB."""

    @property
    def age(self) -> float:
        """A."""
        return self._age / _STEPS

    def key_of(self, key: K) -> float:
        """Its place; the least leaves first. Raises KeyError for a key that is not here."""
        return self._order.rank(key) / _STEPS

    def insert(self, key: K, weight: Weight) -> None:
        before = self._weights.get(key)
        if before is None:
            self._place(key, self._visits.came(key), weight, self._age)
        elif before[0] != weight:
            self._place(key, self._visits.count(key), weight, before[1])

    def touch(self, key: K) -> None:
        visits = self._visits.add(key)
        entry = self._weights.get(key)
        if entry is not None:
            self._place(key, visits, entry[0], self._age)

    def remove(self, key: K) -> None:
        self._order.remove(key)
        del self._weights[key]
        self._visits.left(key)

    def remembered(self) -> Iterator[K]:
        return self._visits.gone()

    def forget(self, key: K) -> None:
        if key in self._order:
            self.remove(key)
        self._visits.forget(key)

    def evict(self) -> Victim[K] | None:
        key = self._order.first()
        if key is None:
            return None
        self._age = max(self._age, self._order.rank(key))
        self.remove(key)
        return Victim(key)

    def _place(self, key: K, visits: int, weight: Weight, age: int) -> None:
        self._weights[key] = (weight, age)
        self._order.place(key, age + int(min(self.value(visits, weight), _LARGEST) * _STEPS))


class Gdsf(Greedy[K]):
    """Visits per byte: an entry is worth a hit, whatever it costs to compute."""

    remembers = False

    def value(self, visits: int, weight: Weight) -> float:
        return visits / _mib(weight)


class GdsfCost(Greedy[K]):
    """Visits, each worth the time to compute the entry."""

    remembers = False

    def value(self, visits: int, weight: Weight) -> float:
        return visits * max(0.0, weight.rec_ms) / _mib(weight)


class GdCost(Greedy[K]):
    """Visits up to a cap, each worth the time that having the entry saves.

    The first visit counts less: most entries that were visited once are not visited again, and one pass over
    many of them must not push out what is.
    """

    def value(self, visits: int, weight: Weight) -> float:
        counted = self._settings.first_touch_weight if visits < 2 else min(visits, self._settings.freq_cap)
        return counted * max(0.0, weight.rec_ms - weight.load_ms) / _mib(weight)


def _mib(weight: Weight) -> float:
    return max(1, weight.nbytes) / MIB
