"""An observer of the scheduler that tells several."""

from __future__ import annotations

from collections.abc import Sequence

from relaygr.core.errors import RelayError
from relaygr.engine import RankResult
from relaygr.engine.jobs import Flight, Observer, RankJob


class Observers:
    """Tells each in turn."""

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
