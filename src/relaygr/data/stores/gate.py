"""Counts the calls in progress, so that a store closes behind the last of them."""

from __future__ import annotations

import threading
from types import TracebackType

from relaygr.core.errors import NotReadyError


class Gate:
    """A context manager around each call; any number of threads may be inside until it closes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise NotReadyError(f"{self._name} is closed")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Let nobody in from now on and wait until all are out; False if it was closed before."""
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.wait_for(lambda: not self._inside)
            return first
