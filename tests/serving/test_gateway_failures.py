"""Members that start, stop, break and hang behind a gateway: no ranking is lost, nothing is done twice."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from gateway_app import Stage, play, settings, stage
from msgspec.structs import replace
from serving_apps import error_of
from stub_instance import stubs

from relaygr.config.settings import BudgetConfig
from relaygr.relay.membership import State
from relaygr.serving.gateway import Gateway


async def rank(there: Stage, user: str, **headers: str) -> httpx.Response:
    return await there.post("/v1/rank", {"user": user, "candidates": [1]}, **headers)


def test_a_refused_connection_puts_a_member_down_at_once() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c", poll_s=60.0) as there:
            user = await there.user_of("a")
            await there.instances["a"].stop()
            answer = await rank(there, user, x_relay_owner="a")
            assert (answer.status_code, answer.json()["path"]) == (200, "full")
            second = answer.headers["x-relay-owner"]
            assert second != "a"
            assert there.state("a") is State.DOWN
            assert answer.headers["x-relay-epoch"] == "2"
            assert there.instances[second].sent[-1].headers["x-relay-moved"] == "1"
            # It stays there.
            assert (await rank(there, user)).headers["x-relay-owner"] == second
            assert there.spills() == {"down": 1}

    play(scenario)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/rank"])
def test_members_that_are_not_ready_are_passed_over(path: str) -> None:
    async def scenario() -> None:
        async with stage("a", "b", poll_s=60.0) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "not_ready"
            answer = await there.post(path, {"user": user})
            assert (answer.status_code, answer.json()["by"]) == (200, "b")
            assert there.spills() == {"refused": 1}
            # When nobody is left, the answer says so.
            there.instances["b"].mode = "not_ready"
            error = error_of(await there.post(path, {"user": user}), 503, "not_ready")
            assert error["retry_after_ms"] > 0

    play(scenario)


def test_a_prefix_signal_that_finds_nobody_is_rejected() -> None:
    async def scenario() -> None:
        async with stage("a", "b", poll_s=60.0, feedback_max_age_s=60.0) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "not_ready"
            signal = await there.post("/v1/prefix", {"user": user})
            there.instances["a"].mode = "ok"
            await there.instances["a"].stop()
            another = await there.post("/v1/prefix", {"user": user})
            for answer in (signal, another):
                assert answer.status_code == 200
                said = answer.json()
                assert (said["admission"], said["reason"]) == ("rejected", "no_instance")
                assert "x-relay-owner" not in answer.headers
            assert there.instances["b"].to("/v1/prefix") == []
            assert (await rank(there, user)).headers["x-relay-owner"] == "b"

    play(scenario)


def test_a_broken_connection_is_tried_again_once() -> None:
    """A kept connection may end just as it is used; that is no fault of the member."""

    async def scenario() -> None:
        async with stage("a", poll_s=60.0) as there:
            await rank(there, "u1")
            port = there.instances["a"].port
            await there.instances["a"].stop()
            there.instances["a"].port = port
            await there.instances["a"].start()
            answer = await rank(there, "u1")
            assert answer.status_code == 200
            assert there.state("a") is State.ACTIVE
            assert there.spills() == {}

    play(scenario)


def test_a_ranking_that_breaks_members_stops_at_the_second() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c", poll_s=60.0) as there:
            for stub in there.instances.values():
                stub.mode = "cut"
            error_of(await rank(there, "u1"), 502, "instance_lost")
            tried = [name for name, stub in there.instances.items() if stub.sent]
            assert len(tried) == 2
            assert [len(there.instances[name].sent) for name in tried] == [2, 2]

    play(scenario)


def test_events_are_repeated_only_with_a_key() -> None:
    async def scenario() -> None:
        async with stage("a", "b", poll_s=60.0) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "cut"
            body = {"user": user, "items": [1], "timestamps": [1]}
            error_of(await there.post("/v1/events", body), 502, "instance_lost")
            assert [len(stub.sent) for stub in there.instances.values()] == [1, 0]
            answer = await there.post("/v1/events", {**body, "key": "k1"})
            assert answer.json()["by"] == "b"
            there.instances["b"].mode = "cut"
            there.instances["a"].mode = "ok"
            await there.gateway.fleet.poll("a")
            answer = await there.post("/v1/events", body, idempotency_key="k2")
            assert answer.json()["by"] == "a"
            # Nothing was sent: to do it elsewhere is to do it once.
            await there.instances["a"].stop()
            there.instances["b"].mode = "ok"
            await there.gateway.fleet.poll("b")
            answer = await there.post("/v1/events", body)
            assert answer.json()["by"] == "b"

    play(scenario)


def test_a_ranking_leaves_a_member_that_hangs() -> None:
    async def scenario() -> None:
        async with stage("a", "b", down_after=2) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "hang"
            answer = await rank(there, user)
            assert (answer.status_code, answer.headers["x-relay-owner"]) == (200, "b")
            await there.until(lambda: there.state("a") is State.DOWN)
            await there.until(lambda: there.instances["a"].given_up >= 1)
            there.instances["a"].mode = "ok"
            await there.until(lambda: there.state("a") is State.JOINING)

    play(scenario)


def test_a_client_that_goes_away_ends_its_request() -> None:
    async def scenario() -> None:
        async with stage("a") as there:
            there.instances["a"].delay_s = 30.0
            sent: list[dict[str, object]] = []
            leave = asyncio.Event()
            body = [{"type": "http.request", "body": b'{"user": "u1"}', "more_body": False}]

            async def receive() -> dict[str, object]:
                if body:
                    return dict(body.pop())
                await leave.wait()
                return {"type": "http.disconnect"}

            async def send(message: dict[str, object]) -> None:
                sent.append(message)

            scope = {
                "type": "http", "method": "POST", "path": "/v1/rank", "raw_path": b"/v1/rank",
                "query_string": b"", "headers": [], "http_version": "1.1",
            }  # fmt: skip
            running = asyncio.create_task(there.gateway(scope, receive, send))  # type: ignore[arg-type]
            await there.until(lambda: bool(there.instances["a"].sent))
            leave.set()
            await running
            assert sent[0]["status"] == 409
            await there.until(lambda: there.instances["a"].given_up == 1)
            assert there.gateway.fleet.router.inflight("a") == 0

    play(scenario)


def test_members_without_feedback_are_asked_for_their_health() -> None:
    async def scenario() -> None:
        async with stubs("a", "b") as instances:
            for stub in instances:
                stub.feedback = None
            config = settings(instances)
            gateway = Gateway(replace(config, budgets=BudgetConfig(t_life_ms=100.0, drain_ms=100.0)))
            await gateway.start()
            members = gateway.fleet.router.members
            assert [one.state for one in members] == [State.ACTIVE] * 2
            instances[0].status = "draining"
            while members["a"].state in (State.ACTIVE, State.DRAINING):
                await asyncio.sleep(0.01)
            assert members["a"].state is State.LEFT
            await gateway.drain(1.0)

    play(scenario)


def test_a_member_that_drains_keeps_its_rankings_and_gets_no_prefix() -> None:
    async def scenario() -> None:
        async with stage("a", "b") as there:
            user = await there.user_of("a")
            there.instances["a"].feedback = {
                "ready": False,
                "draining": True,
                "build": "b1",
                "page_tokens": 32,
            }
            await there.until(lambda: there.state("a") is State.DRAINING)
            assert (await rank(there, user, x_relay_owner="a")).headers["x-relay-owner"] == "a"
            assert (await there.post("/v1/prefix", {"user": user})).headers["x-relay-owner"] == "b"

    play(scenario)


def test_a_member_with_another_build_gets_nobody() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c") as there:
            user = await there.user_of("a")
            there.instances["a"].feedback = {"ready": True, "build": "b2", "page_tokens": 32}
            await there.until(lambda: there.gateway.fleet.router.members["a"].mismatched)
            assert (await rank(there, user, x_relay_owner="a")).headers["x-relay-owner"] != "a"
            assert there.spills() == {"mismatch": 1}

    play(scenario)


@pytest.mark.parametrize("word", [b"[]", b"{", b'{"ready": 1}'])
def test_a_word_that_makes_no_sense_is_none(word: bytes) -> None:
    from relaygr.serving.links import Answer, AwayError
    from relaygr.serving.polls import _decoded, _said

    with pytest.raises(AwayError, match="its word is not one"):
        _decoded(_said, "a", Answer(200, [], word))


def test_a_gateway_is_ready_when_somebody_is() -> None:
    async def scenario() -> None:
        async with stage("a", "b", ramp_s=0.0) as there:
            assert (await there.client.get("/readyz")).json() == {"status": "ready"}
            ports = [stub.port for stub in there.instances.values()]
            for stub in there.instances.values():
                await stub.stop()
            await there.until(lambda: not there.gateway.fleet.ready)
            error_of(await there.client.get("/readyz"), 503, "not_ready")
            error_of(await rank(there, "u1"), 503, "not_ready")
            error_of(await there.client.get("/v1/models"), 503, "not_ready")
            answer = await there.client.post("/v2/models/ranker/infer", content=b"{}")
            assert (answer.status_code, answer.json()) == (503, {"error": "no instance is ready"})
            assert (await there.client.get("/healthz")).json() == {"status": "ready"}
            for stub, port in zip(there.instances.values(), ports, strict=True):
                stub.port = port
                await stub.start()
            await there.until(lambda: there.gateway.fleet.ready)
            assert (await rank(there, "u1")).status_code == 200

    play(scenario)


def test_a_gateway_that_stops_finishes_what_it_has() -> None:
    async def scenario() -> None:
        async with stage("a", serving={"drain_delay_s": 0.2, "drain_s": 5.0}) as there:
            there.instances["a"].delay_s = 0.6
            running = asyncio.create_task(rank(there, "u1"))
            await there.until(lambda: bool(there.instances["a"].sent))
            stopping = asyncio.create_task(there.gateway.drain(5.0))
            await asyncio.sleep(0.05)
            ready = await there.client.get("/readyz")
            error_of(ready, 503, "not_ready")
            assert ready.headers["connection"] == "close"
            await asyncio.sleep(0.3)
            error_of(await rank(there, "u2"), 503, "not_ready")
            assert (await running).status_code == 200
            assert await stopping is True

    play(scenario)


def test_no_request_before_the_members_were_asked() -> None:
    async def scenario() -> None:
        async with stubs("a") as instances:
            gateway = Gateway(settings(instances))
            transport = httpx.ASGITransport(app=gateway)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                error_of(await client.get("/readyz"), 503, "not_ready")
                error_of(await client.post("/v1/rank", json={"user": "u"}), 503, "not_ready")

    play(scenario)
