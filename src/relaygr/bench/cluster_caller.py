"""What `bench cluster` needs of a client; the typed one is passed in by the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class LapError(Exception):
    """A lap failed for good: the client has done all its retries. Its text is the kind of failure."""


class Signal(Protocol):
    """What the first lap said: who has the prefix, and what brings the second one there."""

    @property
    def owner(self) -> str | None: ...

    @property
    def hint(self) -> Any: ...


class Ranking(Protocol):
    """What the second lap said."""

    @property
    def owner(self) -> str | None: ...

    @property
    def model(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def served_tokens(self) -> int: ...

    @property
    def scores(self) -> Any: ...


class Caller(Protocol):
    """A client with its own policy of retries, at one address. All raise LapError."""

    async def prefix(self, user: str, items: list[int], times: list[int], deadline_ms: float) -> Signal: ...

    async def rank(
        self,
        user: str,
        items: list[int],
        times: list[int],
        candidates: list[int],
        deadline_ms: float,
        signal: Signal,
    ) -> Ranking: ...

    async def reload(self, model: str) -> None: ...

    async def close(self) -> None: ...


Connect = Callable[[str], Caller]
"""Makes a client of a URL; it names users so that any of the shapes can tell them apart."""
