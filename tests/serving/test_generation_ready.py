"""A service with a generator is ready when the generator is warm, and not before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from generation_apps import SIZES, generating
from serving_apps import error_of

from patience import PATIENCE_S
from relaygr.core.errors import BackendError
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.interface import Step
from relaygr.engine.generation.seats import GenerateSeat
from relaygr.serving.app import build_app
from relaygr.serving.service import Service


class Scheduled:
    """Rounds that a scheduler computes, which are those of the warm-up first: they stop at their beginning.

    A catalogue that is loaded was tried before, without a scheduler.
    """

    def __init__(self, patch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.rounds, self._error, self._round = 0, error, Generator.round
        patch.setattr(Generator, "round", lambda generator, seats: self._held(generator, seats))

    def _held(self, generator: Generator, seats: Sequence[GenerateSeat]) -> Step:
        if threading.current_thread().name == "relaygr-generator":
            self.entered.set()
            assert self.go.wait(PATIENCE_S)
            self.rounds += 1
            if self._error is not None:
                raise self._error
        return self._round(generator, seats)


def test_a_service_is_not_ready_while_its_generator_warms_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warming, asked = Scheduled(monkeypatch), {"history": [1, 2], "beam_width": 4}
    service = Service(generating(tmp_path))

    async def run() -> None:
        transport = httpx.ASGITransport(app=build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            starting = asyncio.create_task(service.start())
            try:
                assert await asyncio.to_thread(warming.entered.wait, PATIENCE_S)
                error_of(await client.get("/readyz"), 503, "not_ready")
                assert (await client.get("/healthz")).json() == {"status": "starting"}
                error_of(await client.post("/v1/generate", json=asked), 503, "not_ready")
                assert (await client.get("/v1/status")).json()["state"] == "starting"
                assert not starting.done()
            finally:
                warming.go.set()
                await starting
            rounds = warming.rounds
            assert (await client.get("/readyz")).json() == {"status": "ready"}
            # It has generated, for short and for long prompts, and counts none of it as anybody's.
            assert rounds >= 2 * len(SIZES)
            assert "relaygr_generate_requests_total{" not in (await client.get("/metrics")).text
            assert (await client.post("/v1/generate", json=asked)).status_code == 200
            assert await service.drain(PATIENCE_S)
            error_of(await client.get("/readyz"), 503, "not_ready")

    asyncio.run(run())


def test_a_generator_that_does_not_warm_up_never_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scheduled(monkeypatch, RuntimeError("no such device")).go.set()
    service = Service(generating(tmp_path))

    async def run() -> None:
        transport = httpx.ASGITransport(app=build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            with pytest.raises(BackendError, match="no such device"):
                await service.start()
            error_of(await client.get("/readyz"), 503, "not_ready")
            await service.drain(PATIENCE_S)

    asyncio.run(run())
