"""Policies in their plainest form: lists, searched and sorted in full at each turn."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from relaygr.cache.policy import Victim, Weight
from relaygr.core.units import MIB


@dataclass
class Row:
    """All that any of them wants to know of an entry."""

    weight: Weight
    came: int
    visited: int
    parked: bool = False
    key: Fraction = field(default_factory=Fraction)
    age: Fraction = field(default_factory=Fraction)
    visits: int = 1
    history: int = 0  # tokens, whatever was cut
    marked: bool = False
    protected: bool = False


class Reference:
    """The common part: rows by key, and a clock that ticks at each call."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.rows: dict[str, Row] = {}
        self.now = 0

    def insert(self, key: str, weight: Weight) -> None:
        self.now += 1
        if key in self.rows:
            if self.rows[key].weight != weight:
                self.rows[key].weight = weight
                self.reweighed(self.rows[key])
        else:
            self.rows[key] = Row(weight, self.now, self.now)
            self.came(key, self.rows[key])

    def touch(self, key: str) -> None:
        self.now += 1
        if key in self.rows:
            self.rows[key].visited = self.now
            self.rows[key].visits += 1
        self.visited(key, self.rows.get(key))

    def remove(self, key: str) -> None:
        del self.rows[key]

    def forget(self, key: str) -> None:
        self.rows.pop(key, None)

    def evict(self) -> Victim[str] | None:
        self.now += 1
        free = {key: row for key, row in self.rows.items() if not row.parked}
        if not free:
            return None
        key = self.choose(free)
        del self.rows[key]
        return Victim(key)

    @abstractmethod
    def choose(self, free: dict[str, Row]) -> str: ...

    def came(self, key: str, row: Row) -> None: ...

    def reweighed(self, row: Row) -> None: ...

    def visited(self, key: str, row: Row | None) -> None: ...


class LruReference(Reference):
    def choose(self, free: dict[str, Row]) -> str:
        return min(free, key=lambda key: free[key].visited)


class SlruReference(Reference):
    """Protected up to 80 %; demotion is a move to the young end of probation."""

    def choose(self, free: dict[str, Row]) -> str:
        return min(free, key=lambda key: (free[key].protected, free[key].visited))

    def visited(self, key: str, row: Row | None) -> None:
        if row is None or row.protected:
            return
        row.protected = True
        while 5 * sum(row.weight.nbytes for row in self._protected()) > 4 * self.capacity_bytes:
            free = [row for row in self._protected() if not row.parked]
            if not free:
                return
            oldest = min(free, key=lambda row: row.visited)
            self.now += 1
            oldest.protected, oldest.visited = False, self.now

    def _protected(self) -> list[Row]:
        return [row for row in self.rows.values() if row.protected]


class SieveReference(Reference):
    """`hand` is the coming of the last that it looked at; the next is the first that came after."""

    hand = 0

    def visited(self, key: str, row: Row | None) -> None:
        if row is not None:
            row.marked = True

    def choose(self, free: dict[str, Row]) -> str:
        order = sorted(free, key=lambda key: free[key].came)
        while True:
            key = next((key for key in order if free[key].came > self.hand), order[0])
            self.hand = free[key].came
            if not free[key].marked:
                break
            free[key].marked = False
        if not any(row.came > self.hand for other, row in free.items() if other != key):
            self.hand = 0
        return key


class GreedyReference(Reference):
    """Keys in fractions, which do not round."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.age = Fraction(0)

    def choose(self, free: dict[str, Row]) -> str:
        key = min(free, key=lambda key: (free[key].key, free[key].visited))
        self.age = max(self.age, free[key].key)
        return key

    def came(self, key: str, row: Row) -> None:
        row.age = self.age
        self.reweighed(row)

    def reweighed(self, row: Row) -> None:
        row.visited = self.now  # of equal keys, the one that was given its key first leaves first
        row.key = row.age + self.value(row) * MIB / row.weight.nbytes

    def visited(self, key: str, row: Row | None) -> None:
        if row is not None:
            self.came(key, row)

    @abstractmethod
    def value(self, row: Row) -> Fraction: ...


class GdsfReference(GreedyReference):
    def value(self, row: Row) -> Fraction:
        return Fraction(row.visits)


class GdsfCostReference(GreedyReference):
    def value(self, row: Row) -> Fraction:
        return row.visits * max(Fraction(0), Fraction(row.weight.rec_ms))


class GdCostReference(GreedyReference):
    """`counts` are the visits of all keys ever seen, never halved: for short runs with few keys."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.counts: Counter[str] = Counter()

    def came(self, key: str, row: Row) -> None:
        self.counts[key] = row.visits = max(1, self.counts[key])
        super().came(key, row)

    def visited(self, key: str, row: Row | None) -> None:
        self.counts[key] += 1
        super().visited(key, row)

    def forget(self, key: str) -> None:
        super().forget(key)
        del self.counts[key]

    def value(self, row: Row) -> Fraction:
        counted = Fraction(1, 2) if row.visits < 2 else Fraction(min(row.visits, 4))
        return counted * max(Fraction(0), Fraction(row.weight.rec_ms) - Fraction(row.weight.load_ms))


class TlruReference(LruReference):
    """What a row has beyond `keep` leaves before any row leaves whole."""

    def came(self, key: str, row: Row) -> None:
        self.reweighed(row)

    def reweighed(self, row: Row) -> None:
        row.history = max(row.history, row.weight.tokens)

    def evict(self) -> Victim[str] | None:
        self.now += 1
        cuttable = {
            key: row
            for key, row in self.rows.items()
            if not row.parked and row.weight.tokens > self._keep(row)
        }
        if not cuttable:
            return super().evict()
        key = self.choose(cuttable)
        row = self.rows[key]
        keep = self._keep(row)
        if keep:
            row.weight = Weight(keep, keep, row.weight.rec_ms, row.weight.load_ms)
        else:
            del self.rows[key]
        return Victim(key, keep)

    @staticmethod
    def _keep(row: Row) -> int:
        """19 more tokens come, and 512 can be computed in time."""
        return max(0, row.history + 19 - 512)


REFERENCES: dict[str, type[Reference]] = {
    "lru": LruReference,
    "slru": SlruReference,
    "sieve": SieveReference,
    "gdsf": GdsfReference,
    "gdsf_cost": GdsfCostReference,
    "gd_cost": GdCostReference,
    "tlru": TlruReference,
}
