"""What models promised for the lists that were returned, against what those turned out to be worth."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

REMEMBERED = 10_000  # lists whose outcome may still come
WINDOW = 1_000  # outcomes of a group that count
LEAST = 100  # outcomes below which a ratio alarms nobody
ALARM = 1.05  # of what lists were worth
GROUPS = 256
_CLASSES = ((1, "1"), (2, "2"), (3, "3-4"), (5, "5-8"), (9, "9+"))


class ListName(NamedTuple):
    """Whose list, of which request: an outcome that another tenant tells is not of it."""

    tenant: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Group:
    """Lists that are watched together.

    Attributes:
        model: of the ranker.
        generator: that proposed the list; a beam's name has its width.
        lists: how many competed, as `lists_class` says it.
        explored: drawn at random, and chosen by nobody.
    """

    model: str
    generator: str
    lists: str
    explored: bool = False


@dataclass(frozen=True, slots=True)
class Inflation:
    """Of the last outcomes of some lists: the sums of what was promised and of what it was worth."""

    outcomes: int
    predicted: float
    realised: float

    @property
    def ratio(self) -> float | None:
        """Promised by realised; None where the lists were worth nothing, or less."""
        return self.predicted / self.realised if self.realised > 0 else None

    @property
    def alarm(self) -> bool:
        """Whether enough lists were worth less than was promised by clearly more than a small share of it.

        Of positive worth that is a ratio above `ALARM`; worth of 0 and below has no ratio to go by.
        """
        return self.outcomes >= LEAST and self.predicted - self.realised > (ALARM - 1.0) * abs(self.realised)


class InflationWatch:
    """Remembers promises until their outcome comes, and the last outcomes; may be told from any thread.

    Holds the last `REMEMBERED` promises, and `WINDOW` outcomes of each of the last `GROUPS` groups.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promised: OrderedDict[ListName, tuple[Group, float, int]] = OrderedDict()
        self._outcomes: OrderedDict[Group, deque[tuple[float, float]]] = OrderedDict()

    def promise(self, name: ListName, group: Group, predicted: float, positions: int) -> None:
        """A list of so many positions was returned; a later one of the same name takes its place.

        `predicted` is what an outcome can be compared with: without the prices of soft rules.
        """
        with self._lock:
            self._promised[name] = group, predicted, positions
            self._promised.move_to_end(name)
            while len(self._promised) > REMEMBERED:
                self._promised.popitem(last=False)

    def positions(self, name: ListName) -> int | None:
        """How long a list was that is remembered; None if it is not."""
        with self._lock:
            found = self._promised.get(name)
        return None if found is None else found[2]

    def outcome(self, name: ListName, realised: float) -> tuple[Group, float] | None:
        """What was promised for a list of this worth; None if it is not remembered, or was told before."""
        with self._lock:
            found = self._promised.pop(name, None)
            if found is None:
                return None
            group, predicted, _ = found
            told = self._outcomes.setdefault(group, deque(maxlen=WINDOW))
            self._outcomes.move_to_end(group)
            told.append((predicted, realised))
            while len(self._outcomes) > GROUPS:
                self._outcomes.popitem(last=False)
            return group, predicted

    def forget(self, name: ListName) -> bool:
        """A list was settled, and nobody knows what it was worth; False as `outcome` returns None."""
        with self._lock:
            return self._promised.pop(name, None) is not None

    def groups(self) -> dict[Group, Inflation]:
        """Of each group."""
        with self._lock:
            told = {group: tuple(pairs) for group, pairs in self._outcomes.items()}
        return {group: _summed(pairs) for group, pairs in told.items()}

    def overall(self, model: str) -> Inflation:
        """Of all lists that were chosen by one model's scores: choosing is what inflates promises."""
        groups = [one for group, one in self.groups().items() if group.model == model and not group.explored]
        return Inflation(
            sum(one.outcomes for one in groups),
            sum(one.predicted for one in groups),
            sum(one.realised for one in groups),
        )


def lists_class(lists: int) -> str:
    """How many lists competed, by class: 1, 2, 3-4, 5-8, 9+."""
    return _CLASSES[bisect_right([least for least, _ in _CLASSES], max(lists, 1)) - 1][1]


def _summed(pairs: Iterable[tuple[float, float]]) -> Inflation:
    listed = list(pairs)
    return Inflation(len(listed), sum(one for one, _ in listed), sum(other for _, other in listed))
