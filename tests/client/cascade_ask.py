"""One way to ask both kinds of cascade, and clients that tell when a signal has ended."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from cascade_server import FOUND, StubServer, run

from relaygr.client import (
    Admission,
    AsyncClient,
    Cascade,
    Client,
    Door,
    PrefixSignal,
    Recommendation,
    SyncCascade,
)


class Noting(Client):
    """A client whose `after_signal` is a retrieval that ends when the signal is known to the cascade."""

    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self.ended = threading.Event()

    def prefix(self, *arguments: Any, **options: Any) -> PrefixSignal:
        try:
            return super().prefix(*arguments, **options)
        finally:
            self.ended.set()

    def after_signal(self, user: str, request: Any) -> list[int]:
        assert self.ended.wait(30)
        time.sleep(0.1)  # until its thread has told the cascade
        return FOUND


class AsyncNoting(AsyncClient):
    """As `Noting`."""

    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self.ended = threading.Event()

    async def prefix(self, *arguments: Any, **options: Any) -> PrefixSignal:
        try:
            return await super().prefix(*arguments, **options)
        finally:
            self.ended.set()

    def after_signal(self, user: str, request: Any) -> list[int]:
        assert self.ended.wait(30)
        return FOUND


def after_signal(user: str, request: Any) -> list[int]:
    """Stands for the client's own `after_signal`."""
    raise NotImplementedError


@dataclass
class Both:
    """One way to ask for recommendations: `SyncCascade`, or `Cascade` in a loop of its own."""

    asynchronous: bool

    def __call__(
        self, server: StubServer, *asked: tuple[str, Any], door: Door | None = None, **options: Any
    ) -> list[Recommendation]:
        return self.counted(server, *asked, door=door, **options)[0]

    def counted(
        self,
        server: StubServer,
        *asked: tuple[str, Any],
        door: Door | None = None,
        call: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[list[Recommendation], dict[Admission, int]]:
        door = door or Door(server.url)
        if not self.asynchronous:
            with Noting(door) as client, SyncCascade(client, **_own(client, options)) as cascade:
                return [cascade.recommend(*one, **call or {}) for one in asked], cascade.signals

        async def main() -> tuple[list[Recommendation], dict[Admission, int]]:
            async with AsyncNoting(door) as client:
                cascade = Cascade(client, **_own(client, options))
                return [await cascade.recommend(*one, **call or {}) for one in asked], cascade.signals

        return run(main)


def _own(client: Noting | AsyncNoting, options: dict[str, Any]) -> dict[str, Any]:
    if options.get("retrieve") is after_signal:
        return {**options, "retrieve": client.after_signal}
    return options


def found(user: str, request: Any) -> list[int]:
    return FOUND
