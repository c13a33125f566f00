"""What the service tells whoever counts, and telling several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relaygr.core.errors import RelayError
from relaygr.engine import RankResult
from relaygr.engine.jobs import Flight, Observer, PrefixAnswer, RankJob


class Meter(Observer, Protocol):
    """An observer of the scheduler that hears of requests too; must be quick and must not raise."""

    def answered(self, route: str, status: int, seconds: float) -> None:
        """An HTTP request; `route` is one of a fixed number of patterns."""

    def signalled(self, answer: PrefixAnswer) -> None:
        """A prefix signal."""

    def appended(self, accepted: int, late: int) -> None:
        """Events were stored."""

    def disconnected(self, stage: str) -> None:
        """A client went away while it waited."""


class Observers:
    """An observer that tells several."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def ranked(self, job: RankJob, result: RankResult) -> None:
        for observer in self._observers:
            observer.ranked(job, result)

    def stepped(self, flight: Flight, seconds: float) -> None:
        for observer in self._observers:
            observer.stepped(flight, seconds)

    def failed(self, kind: str, error: RelayError) -> None:
        for observer in self._observers:
            observer.failed(kind, error)
