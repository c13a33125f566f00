"""Instances that route among themselves: any of them may be asked, one of them answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from gateway_app import play
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from serving_apps import error_of
from starlette.types import Message, Receive, Scope, Send

from relaygr.config.relay import Member, RouterConfig
from relaygr.config.settings import Config, ServingConfig
from relaygr.relay.membership import State
from relaygr.serving.peers import Peers, with_peers
from relaygr.serving.process import Program


@dataclass(slots=True)
class Instance:
    """A fake of an instance's application and program: ready between `start` and `drain`.

    Attributes:
        hangs: answers polls alone.
        deaf: answers nothing.
    """

    name: str
    sent: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    status: str = "starting"
    hangs: bool = False
    deaf: bool = False

    async def start(self) -> None:
        self.status = "ready"

    async def drain(self, timeout_s: float) -> bool:
        self.status = "draining"
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path = scope["path"]
        if self.deaf:
            await asyncio.sleep(60)
        if path == "/healthz":
            await _reply(send, {"status": self.status})
            return
        if path == "/v1/relay/feedback":
            ready = self.status == "ready"
            await _reply(send, {"ready": ready, "build": "b", "page_tokens": 32})
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.hangs:
            await asyncio.sleep(60)
        self.sent.append((path, headers, body))
        if scope["method"] == "DELETE":
            await _reply(send, {"user": "u", "events": 2, "entries": 1})
            return
        try:
            user = msgspec.json.decode(body).get("user", "") if body else ""
        except msgspec.DecodeError:
            await _reply(send, {"by": self.name}, 400)
            return
        if path == "/v1/prefix":
            self.prefixes.add(user)
        await _reply(send, {"by": self.name, "path": "hit" if user in self.prefixes else "full"})


async def _reply(send: Send, value: Any, status: int = 200) -> None:
    body = msgspec.json.encode(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass(slots=True)
class Peer:
    instance: Instance
    peers: Peers
    server: uvicorn.Server
    task: asyncio.Task[None]
    client: httpx.AsyncClient

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body, headers=named)

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.task


@asynccontextmanager
async def peers(*names: str, **serving: Any) -> AsyncIterator[dict[str, Peer]]:
    """Running ones that know one another."""
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    members = tuple(
        Member(id=name, url="http://{}:{}".format(*one.getsockname())) for name, one in listeners.items()
    )
    found: dict[str, Peer] = {}
    for name, listener in listeners.items():
        router = RouterConfig(
            members=members, self_id=name, poll_s=0.05, feedback_max_age_s=0.5, connect_ms=200.0, ramp_s=0.0
        )
        instance = Instance(name)
        one = Peers(instance, instance, Config(router=router, serving=ServingConfig(**serving)))
        server = uvicorn.Server(
            uvicorn.Config(one, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        )
        task = asyncio.create_task(server.serve([listener]))
        url = "http://{}:{}".format(*listener.getsockname())
        found[name] = Peer(instance, one, server, task, httpx.AsyncClient(base_url=url, timeout=30))
    await asyncio.gather(*(peer.peers.start() for peer in found.values()))
    async with asyncio.timeout(10):
        while any(not one.takes for peer in found.values() for one in peer.peers.fleet.router.members):
            await asyncio.sleep(0.01)
    try:
        yield found
    finally:
        for peer in found.values():
            await peer.peers.drain(1.0)
            await peer.client.aclose()
            await peer.stop()


def test_any_peer_may_be_asked() -> None:
    async def scenario() -> None:
        async with peers("a", "b", "c") as found:
            owners = set()
            for number in range(20):
                user = f"u{number}"
                answers = [
                    await found["a"].post("/v1/events", {"user": user}),
                    await found["b"].post("/v1/prefix", {"user": user}),
                    await found["c"].post("/v1/rank", {"user": user}),
                    await found["a"].client.get(f"/v1/users/{user}/state"),
                ]
                [owner] = {answer.json()["by"] for answer in answers}
                assert answers[1].headers["x-relay-owner"] == answers[2].headers["x-relay-owner"] == owner
                assert answers[2].json()["path"] == "hit"
                for asked, answer in zip("abca", answers, strict=True):
                    assert ("x-request-id" in answer.headers) == (asked != owner)
                owners.add(owner)
            assert owners == {"a", "b", "c"}
            # One hop: what came from a peer says so, what came from the client does not.
            for peer in found.values():
                hops = [headers.get("x-relay-hop") for _, headers, _ in peer.instance.sent]
                assert set(hops) == {None, "1"}

    play(scenario)


def test_a_request_that_has_hopped_stays() -> None:
    async def scenario() -> None:
        async with peers("a", "b") as found:
            for name in "ab":
                for number in range(10):
                    answer = await found[name].post("/v1/rank", {"user": f"u{number}"}, x_relay_hop="1")
                    assert answer.json()["by"] == name

    play(scenario)


def test_what_stays_here_is_as_if_from_a_gateway() -> None:
    async def scenario() -> None:
        async with peers("a") as found:
            for moved in ("1", None):
                answer = await found["a"].post("/v1/rank", {"user": "u1"}, x_relay_epoch="99")
                assert answer.headers["x-relay-owner"] == "a"
                _, headers, body = found["a"].instance.sent[-1]
                assert headers.get("x-relay-moved") == moved
                assert headers["x-relay-epoch"] == answer.headers["x-relay-epoch"]
                assert msgspec.json.decode(body) == {"user": "u1"}
            assert found["a"].peers.fleet.router.inflight("a") == 0

    play(scenario)


def test_errors_are_the_instances_own() -> None:
    async def scenario() -> None:
        async with peers("a", "b", body_limit_bytes=1024) as found:
            answer = await found["a"].client.post("/v1/rank", content=b"{")
            assert (answer.status_code, answer.json()) == (400, {"by": "a"})
            answer = await found["a"].client.post("/v1/rank", content=b" " * 2000)
            error_of(answer, 413, "body_size")
            answer = await found["a"].client.post("/v2/models/m/infer", content=b" " * 2000)
            assert list(answer.json()) == ["error"]
            assert (await found["a"].client.get("/v1/models")).json()["by"] == "a"

    play(scenario)


def test_a_deletion_reaches_all_peers() -> None:
    async def scenario() -> None:
        async with peers("a", "b", "c") as found:
            answer = await found["b"].client.delete("/v1/users/u")
            assert answer.json() == {"user": "u", "events": 6, "entries": 3}
            assert all(peer.instance.sent[-1][0] == "/v1/users/u" for peer in found.values())

    play(scenario)


def test_r1_with_every_link_failing_each_peer_serves_alone() -> None:
    """What a peer has cached is used as before; the users of the others are ranked without."""

    async def scenario() -> None:
        async with peers("a", "b", "c") as found:
            mine = [f"u{number}" for number in range(30)]
            owned = []
            for user in mine:
                answer = await found["a"].post("/v1/prefix", {"user": user})
                if answer.headers["x-relay-owner"] == "a":
                    owned.append(user)
            assert 0 < len(owned) < 30
            await found["b"].stop()
            await found["c"].stop()
            for user in mine:
                answer = await found["a"].post("/v1/rank", {"user": user})
                assert answer.status_code == 200
                assert (answer.json()["by"], answer.json()["path"]) == (
                    "a",
                    "hit" if user in owned else "full",
                )
            router = found["a"].peers.fleet.router
            assert [router.members[name].state for name in "abc"] == [State.ACTIVE, State.DOWN, State.DOWN]

    play(scenario)


def test_a_peer_that_is_not_ready_hands_its_users_on() -> None:
    async def scenario() -> None:
        async with peers("a", "b") as found:
            found["a"].instance.status = "starting"
            async with asyncio.timeout(5):
                while found["a"].peers.fleet.router.members["a"].state is not State.DOWN:
                    await asyncio.sleep(0.01)
            for number in range(10):
                assert (await found["a"].post("/v1/rank", {"user": f"u{number}"})).json()["by"] == "b"

    play(scenario)


@pytest.mark.parametrize("here_too", [False, True])
def test_what_hangs_elsewhere_is_done_here_in_time(here_too: bool) -> None:
    async def scenario() -> None:
        async with peers("a", "b") as found:
            for user in (f"u{number}" for number in range(100)):
                if (await found["a"].post("/v1/rank", {"user": user})).json()["by"] == "b":
                    break
            found["b"].instance.deaf, found["a"].instance.hangs = True, here_too
            answer = await found["a"].post("/v1/rank", {"user": user, "deadline_ms": 2000})
            if here_too:
                error_of(answer, 504, "deadline")
            else:
                assert (answer.status_code, answer.json()["by"]) == (200, "a")
            assert found["a"].peers.fleet.router.inflight("a") == 0
            assert found["a"].peers.fleet.router.inflight("b") == 0

    play(scenario)


def test_router_metrics_are_among_the_instances_own() -> None:
    app, registry = Instance("a"), CollectorRegistry()
    config = Config(router=RouterConfig(members=(Member(id="a", url="http://x:1"),), self_id="a"))
    found, program = with_peers(app, app, config, registry)
    assert found is program
    assert isinstance(found, Peers)
    assert b"relaygr_router_epoch 1.0" in generate_latest(registry)


@pytest.mark.parametrize(
    "router", [RouterConfig(), RouterConfig(members=(Member(id="a", url="http://x:1"),))]
)
def test_without_peers_the_application_is_as_it_is(router: RouterConfig) -> None:
    app: Any = Instance("a")
    program: Program = app
    assert with_peers(app, program, replace(Config(), router=router), CollectorRegistry()) == (app, program)


def test_lifespan_messages_pass() -> None:
    async def scenario() -> None:
        seen: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope["type"])

        async def nothing(*_: Message) -> Any:
            return {}

        config = Config(router=RouterConfig(members=(Member(id="a", url="http://x:1"),), self_id="a"))
        await Peers(app, Instance("a"), config)({"type": "lifespan"}, nothing, nothing)
        assert seen == ["lifespan"]

    play(scenario)
