"""A soak's workers notice a server that forgets, repeats, miscounts or takes what it must refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from serve_stub import json

from relaygr.bench.serve_wire import Wire
from relaygr.bench.soak_people import Person
from relaygr.bench.soak_work import Findings, Worker

Kind = Callable[[Worker, Person], Awaitable[None]]


class Forgetful:
    """Keeps counts of events by user; each fault is one way to be wrong."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.events: dict[str, int] = {}
        self.keys: set[str] = set()
        self.asked = 0

    async def append(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        self.asked += 1
        if not body.get("key"):
            return self._refused(422)
        if body["key"] not in self.keys or self.fault == "twice":
            self.events[body["user"]] = self.events.get(body["user"], 0) + len(body["items"])
        self.keys.add(body["key"])
        if self.fault == "slow" and self.asked == 1:
            await asyncio.sleep(0.3)
        lost = 1 if self.fault == "lost" else 0
        return json({"sequence": self.events[body["user"]] - lost})

    async def rank(self, request: web.Request) -> web.Response:
        try:
            body: dict[str, Any] = msgspec.json.decode(await request.read())
        except msgspec.DecodeError:
            return self._refused(400)
        bad = "unknown" in body if isinstance(body, dict) else True
        if bad and self.fault != "lax":
            return self._refused(422)
        count = len(body["candidates"]) - (self.fault == "short")
        answer = {"scores": [[0.5]] * count, "model": "m", "path": "hit", "served_tokens": 0}
        return json(answer, 500 if self.fault == "broken" else 200)

    async def other(self, request: web.Request) -> web.Response:
        user = request.match_info["user"]
        count = self.events.get(user, 0)
        if request.method == "DELETE" and self.fault != "kept":
            self.events[user] = 0
        return json({"events": count})

    def _refused(self, status: int) -> web.Response:
        return json({"error": {"code": "request"}}, status)


def work(fault: str, *kinds: Kind) -> Findings:
    async def run() -> Findings:
        server, found = Forgetful(fault), Findings()
        app = web.Application()
        app.router.add_post("/v1/events", server.append)
        app.router.add_post("/v1/rank", server.rank)
        app.router.add_delete("/v1/users/{user}", server.other)
        app.router.add_get("/v1/users/{user}/state", server.other)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with Wire(url, 4, 10_000) as wire:
                person = Person("ann")
                worker = Worker(wire, url, [person], found, 1.0, seed=3)
                for kind in kinds:
                    await kind(worker, person)
        finally:
            await runner.cleanup()
        return found

    return asyncio.run(run())


def test_a_good_server_is_found_good() -> None:
    kinds = (Worker.append, Worker.cancel_append, Worker.state, Worker.delete, Worker.append, Worker.state)
    found = work("", *kinds, Worker.rank, Worker.rank_inline, Worker.cancel_rank, Worker.disconnect)
    assert (found.failed, found.wrong, found.problems) == (0, 0, [])
    assert 2 <= len(found.samples) <= 3
    assert found.samples[0].items == found.samples[0].items[: found.samples[0].events]


def test_an_append_that_is_given_up_counts_once() -> None:
    found = work("slow", Worker.cancel_append, Worker.state)
    assert (found.failed, found.wrong) == (0, 0)


def test_an_append_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(self: Worker, path: str, body: msgspec.Struct) -> None:
        """The request arrives, its answer does not."""
        assert (await self._post(path, body)).ok

    monkeypatch.setattr(Worker, "_given_up", lost)
    assert work("", Worker.cancel_append).wrong == 0
    assert work("twice", Worker.cancel_append).wrong == 1


@pytest.mark.parametrize(
    ("fault", "kinds", "words"),
    [
        ("lost", (Worker.append,), "acknowledged"),
        ("kept", (Worker.append, Worker.delete, Worker.state), "state: the server knows"),
        ("short", (Worker.rank,), "scores for"),
    ],
)
def test_what_is_wrong_is_found(fault: str, kinds: tuple[Kind, ...], words: str) -> None:
    found = work(fault, *kinds)
    assert (found.failed, found.wrong) == (0, 1)
    assert words in found.problems[0]


def test_a_server_that_fails_is_found() -> None:
    found = work("broken", Worker.rank)
    assert (found.failed, found.wrong) == (1, 0)
    assert found.problems[0].startswith("rank: 500")


def test_a_server_that_takes_anything_is_found() -> None:
    found = work("lax", *[Worker.bad_body] * 60)
    assert found.wrong > 0
    assert any("unknown" in line and "200, not 422" in line for line in found.problems)


def test_findings_are_bounded() -> None:
    found = Findings()
    for number in range(1000):
        found.mistake(str(number))
    assert (found.wrong, len(found.problems)) == (1000, 50)
