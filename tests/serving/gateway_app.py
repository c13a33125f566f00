"""A gateway in this process before stub instances on loopback, and a client of it, all on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from stub_instance import Stub, stubs

from relaygr.config.relay import Member, RouterConfig
from relaygr.config.settings import Config, ServingConfig
from relaygr.relay.membership import State
from relaygr.serving.gateway import Gateway


def settings(instances: list[Stub], *, serving: dict[str, Any] | None = None, **router: Any) -> Config:
    members = tuple(Member(id=stub.name, url=stub.url) for stub in instances)
    quick: dict[str, Any] = {"poll_s": 0.05, "feedback_max_age_s": 0.5, "connect_ms": 200.0}
    return Config(
        router=RouterConfig(members=members, **quick | router),
        serving=ServingConfig(**{"port": 0, "drain_s": 1.0} | (serving or {})),
    )


@dataclass(slots=True)
class Stage:
    """What a test plays on."""

    gateway: Gateway
    instances: dict[str, Stub]
    client: httpx.AsyncClient

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body, headers=named)

    async def owner(self, user: str) -> str:
        """Where a user is."""
        answer = await self.post("/v1/rank", {"user": user, "candidates": []})
        assert answer.status_code == 200, answer.text
        return answer.headers["x-relay-owner"]

    async def user_of(self, name: str) -> str:
        """A user of this instance; nothing of the search is left in what it was sent."""
        for number in range(1000):
            if await self.owner(f"user-{number}") == name:
                for stub in self.instances.values():
                    stub.sent.clear()
                return f"user-{number}"
        raise AssertionError(f"{name} has no user")

    def state(self, name: str) -> State:
        return self.gateway.fleet.router.members[name].state

    async def until(self, done: Callable[[], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not done():
                await asyncio.sleep(0.005)

    def spills(self) -> dict[str, int]:
        return {str(reason): count for reason, count in self.gateway.fleet.router.counts.spills.items()}


@asynccontextmanager
async def stage(*names: str, serving: dict[str, Any] | None = None, **router: Any) -> AsyncIterator[Stage]:
    """Instances of these names, and a started gateway."""
    async with stubs(*names) as instances:
        gateway = Gateway(settings(instances, serving=serving, **router))
        await gateway.start()
        transport = httpx.ASGITransport(app=gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30) as client:
            try:
                yield Stage(gateway, {stub.name: stub for stub in instances}, client)
            finally:
                await gateway.drain(1.0)


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))
