"""Members that hang behind a gateway: requests end by their own deadlines, and slow members keep them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_app import play, stage
from serving_apps import error_of
from starlette.datastructures import Headers

from relaygr.relay.membership import State
from relaygr.serving.laps import asked_ms, kind_of

# Nothing but a request's own deadline ends the wait: polls neither come nor fail.
BLIND = {"poll_s": 60.0, "feedback_max_age_s": 60.0}
INFER = "/v2/models/ranker/infer"


@pytest.mark.parametrize("path", ["/v1/rank", "/v1/slate", "/v1/generate"])
def test_what_hangs_is_left_in_time_for_another(path: str) -> None:
    async def scenario() -> None:
        async with stage("a", "b", **BLIND) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "hang"
            answer = await there.post(path, {"user": user, "deadline_ms": 2000})
            assert (answer.status_code, answer.json()["by"]) == (200, "b")
            assert there.instances["b"].sent[-1].headers["x-relay-moved"] == "1"
            assert there.spills() == {"refused": 1}
            # It may only have been slow: so soon after its last word this is no sign that it is down.
            assert there.state("a") is State.ACTIVE

    play(scenario)


def test_an_inference_names_its_deadline_too() -> None:
    async def scenario() -> None:
        async with stage("a", "b", **BLIND) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "hang"
            tensor = {"name": "user", "shape": [1], "datatype": "BYTES", "data": [user]}
            answer = await there.post(INFER, {"inputs": [tensor], "parameters": {"timeout": 2_000_000}})
            assert (answer.status_code, answer.headers["x-relay-owner"]) == (200, "b")

    play(scenario)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_at_the_deadline_there_is_an_answer_though_everybody_hangs(names: str) -> None:
    async def scenario() -> None:
        async with stage(*names, **BLIND) as there:
            for stub in there.instances.values():
                stub.mode = "hang"
            error_of(await there.post("/v1/rank", {"user": "u", "deadline_ms": 200}), 504, "deadline")
            assert there.gateway.fleet.router.inflight("a") == 0

    play(scenario)


def test_who_is_slow_and_lives_keeps_the_request() -> None:
    async def scenario() -> None:
        async with stage("a", "b", **BLIND) as there:
            user = await there.user_of("a")
            there.instances["a"].delay_s = 3.0
            answer = await there.post("/v1/rank", {"user": user, "deadline_ms": 4000})
            assert (answer.status_code, answer.json()["by"]) == (200, "a")
            assert there.spills() == {}
            # Until the deadline, no longer.
            there.instances["a"].delay_s = 30.0
            error_of(await there.post("/v1/rank", {"user": user, "deadline_ms": 500}), 504, "deadline")
            assert there.state("a") is State.ACTIVE

    play(scenario)


def test_a_signal_to_who_hangs_goes_nowhere_else() -> None:
    async def scenario() -> None:
        async with stage("a", "b", **BLIND) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "hang"
            answer = await there.post("/v1/prefix", {"user": user, "deadline_ms": 500})
            said = answer.json()
            assert (answer.status_code, said["admission"], said["reason"]) == (200, "rejected", "no_instance")
            assert there.instances["b"].sent == []
            assert there.gateway.fleet.router.inflight("a") == 0

    play(scenario)


def test_requests_that_wait_in_vain_put_a_silent_member_down() -> None:
    """Before its polls have failed, which takes longer."""

    async def scenario() -> None:
        async with stage("a", "b", poll_s=60.0, feedback_max_age_s=0.4, down_after=2) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "hang"
            await asyncio.sleep(0.5)
            for _ in range(2):
                # With its hint, so that it is not simply placed elsewhere.
                answer = await there.post("/v1/rank", {"user": user, "deadline_ms": 1600}, x_relay_owner="a")
                assert answer.status_code == 200
            assert there.state("a") is State.DOWN

    play(scenario)


def test_events_without_a_key_end_when_their_member_is_down() -> None:
    """They may be stored, so the answer must not say that nothing was lost."""

    async def scenario() -> None:
        async with stage("a", "b", down_after=2) as there:
            user = await there.user_of("a")
            there.instances["a"].mode = "hang"
            body = {"user": user, "items": [1], "timestamps": [1]}
            error_of(await there.post("/v1/events", body), 502, "instance_lost")
            assert there.instances["b"].sent == []
            there.instances["a"].mode = "ok"

    play(scenario)


def test_events_that_take_too_long_may_be_stored() -> None:
    async def scenario() -> None:
        async with stage("a", **BLIND) as there:
            there.instances["a"].mode = "hang"
            there.gateway._intake._timeout_s = lambda *_: 0.2  # type: ignore[method-assign]
            body = {"user": "u", "items": [1], "timestamps": [1]}
            error_of(await there.post("/v1/events", body), 502, "instance_lost")
            error_of(await there.post("/v1/events", {**body, "key": "k"}), 504, "deadline")

    play(scenario)


@pytest.mark.parametrize(
    ("path", "headers", "body", "found"),
    [
        ("/v1/rank", {}, b'{"user": "u", "deadline_ms": 250}', 250.0),
        ("/v1/generate", {}, b'{"deadline_ms": 2.5, "history": [{}]}', 2.5),
        ("/v1/rank", {}, b'{"user": "u"}', None),
        ("/v1/rank", {}, b'{"user": "deadline_ms", "deadline_ms": null}', None),
        ("/v1/rank", {}, b'{"deadline_ms": "soon"}', None),
        ("/v1/rank", {}, b'{"deadline_ms": 1e999}', None),
        ("/v1/rank", {}, b'{"deadline_ms": 5', None),
        ("/v1/rank", {}, b'[' * 100_000 + b'"deadline_ms"', None),
        ("/v1/events", {}, b'{"deadline_ms": 5}', None),
        (INFER, {}, b'{"parameters": {"timeout": 1500}}', 1.5),
        (INFER, {}, b'{"parameters": {"timeout": 1e400}}', None),
        (INFER, {}, b'{"parameters": {"timeout": true}}', None),
        (INFER, {"inference-header-content-length": "33"}, b'{"parameters": {"timeout": 1500}}\xff', 1.5),
        (INFER, {"inference-header-content-length": "x"}, b'{"parameters": {"timeout": 1500}}', None),
    ],
)  # fmt: skip
def test_the_deadline_that_a_request_names(path: str, headers: Any, body: bytes, found: float | None) -> None:
    assert asked_ms(kind_of("POST", path), Headers(headers), body) == found


@pytest.mark.parametrize("asked", [-1, 0, 1e9, "x"])
def test_a_deadline_that_is_none_is_for_the_member_to_refuse(asked: Any) -> None:
    async def scenario() -> None:
        async with stage("a", **BLIND) as there:
            answer = await there.post("/v1/rank", {"user": "u", "deadline_ms": asked})
            assert (answer.status_code, answer.json()["by"]) == (200, "a")

    play(scenario)
