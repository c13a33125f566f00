"""A real service on a real socket in a thread of the tests, small enough to be there in a second."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from relaygr.config.settings import Config, EngineConfig, ServingConfig, StoreConfig
from relaygr.core.units import MIB
from relaygr.serving.app import build_app
from relaygr.serving.service import Service
from relaygr.serving.tracing import Tracing

CONFIG = Config(
    engine=EngineConfig(device_bytes=32 * MIB, dtype="fp32", kernel="reference", threads=1),
    store=StoreConfig(url="sqlite://memory"),
    serving=ServingConfig(calibrate_s=0.0),
)


@dataclass(slots=True)
class Live:
    """A service that answers at `url` until `stop`."""

    url: str
    service: Service
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def live_service(config: Config = CONFIG, port: int = 0, tracing: Tracing | None = None) -> Iterator[Live]:
    """Ready when it is entered, drained and stopped when it is left."""
    listener = socket.create_server(("127.0.0.1", port))
    service = Service(config)
    settings = uvicorn.Config(
        build_app(service, tracing), ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    ready = threading.Event()

    async def run() -> None:
        await service.start()
        ready.set()
        await server.serve([listener])
        await service.drain(5.0)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="live-service")
    thread.start()
    live = Live("http://{}:{}".format(*listener.getsockname()), service, server, thread)
    try:
        assert ready.wait(60), "the service did not start"
        yield live
    finally:
        live.stop()
        listener.close()


def connect(live: Live) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1])), timeout=30)
    found.settimeout(30)
    return found


def answer_of(caller: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    while True:
        try:
            part = caller.recv(65_536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


@dataclass(slots=True)
class Traffic:
    """Users who come back, in a thread: events, a prefix signal, ranking; until `stop`."""

    url: str
    pause_s: float = 0.02
    errors: list[str] = field(default_factory=list)
    rounds: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Traffic:
        self._thread = threading.Thread(target=self._run, name="traffic")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(30)

    def one_round(self, client: httpx.Client, place: int) -> None:
        user, when = f"user-{place % 7}", 1_700_000_000 + 60 * place
        # Every fifth round comes without a signal, every seventh ends in a refused body.
        bodies: list[tuple[str, dict[str, Any], int]] = [
            (
                "events",
                {"user": user, "items": [place % 90 + 1] * 40, "timestamps": [when] * 40, "key": f"k{place}"},
                200,
            )
        ]
        if place % 5:
            bodies.append(("prefix", {"user": user}, 200))
        bodies.append(("rank", {"user": user, "candidates": list(range(1, 33))}, 200))
        if not place % 7:
            bodies.append(("rank", {"user": user, "candidates": ["x"]}, 422))
        for name, body, status in bodies:
            answer = client.post(f"/v1/{name}", json=body)
            if answer.status_code != status:
                self.errors.append(f"{name}: {answer.status_code} {answer.text}")
        client.get("/v1/models")

    def _run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while not self._stop.wait(self.pause_s):
                self.one_round(client, self.rounds)
                self.rounds += 1
