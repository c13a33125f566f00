"""The gateway: every user at one instance, bodies and headers as they came, an instance's own errors."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from gateway_app import Stage, play, stage
from serving_apps import error_of

from relaygr.config.settings import ApiKey, Config
from relaygr.core.errors import ConfigError
from relaygr.core.ids import session_key
from relaygr.serving.gateway import Gateway

RANK = {"user": "u1", "candidates": [1, 2]}
KEYS = (
    ApiKey(key="a-key-of-sixteen-", tenant="shop"),
    ApiKey(key="the-admin-s-own-key", tenant="ops", admin=True),
)


def everything(there: Stage, path: str) -> list[tuple[str, Any]]:
    return [(name, sent) for name, stub in there.instances.items() for sent in stub.to(path)]


def test_imports_no_torch_and_no_engine() -> None:
    code = (
        "import sys, relaygr.serving.gateway, relaygr.cli.main, relaygr.cli.gateway;"
        "print([name for name in sys.modules if name == 'torch' or name.startswith('relaygr.engine')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_everything_of_a_user_goes_to_one_instance() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c") as there:
            owners = set()
            for number in range(30):
                user = f"user {number}/é"
                answers = [
                    await there.post("/v1/events", {"user": user, "items": [1], "timestamps": [1]}),
                    await there.post("/v1/prefix", {"user": user}),
                    await there.post("/v1/rank", {"user": user, "candidates": [1]}),
                ]
                path = f"/v1/users/user%20{number}%2F%C3%A9"
                answers.append(await there.client.get(path + "/state"))
                answers.append(await there.client.put(path + "/profile", json={"contextual": []}))
                assert [answer.status_code for answer in answers] == [200] * 5
                assert len({answer.json()["by"] for answer in answers}) == 1
                owner = answers[1].headers["x-relay-owner"]
                assert owner == answers[2].headers["x-relay-owner"] == answers[2].json()["by"]
                assert answers[1].headers["x-relay-epoch"] == "1"
                assert "x-relay-owner" not in answers[0].headers
                # Both laps on one: the prefix is there.
                assert answers[2].json()["path"] == "hit"
                owners.add(owner)
                key = session_key("default", user)
                sent = there.instances[owner].sent[-5:]
                assert {one.headers["x-session-id"] for one in sent} == {key}
                assert [one.target for one in sent[3:]] == [path + "/state", path + "/profile"]
            assert owners == {"a", "b", "c"}
            assert there.gateway.fleet.router.counts.misses == 0

    play(scenario)


def test_bodies_and_headers_go_on_as_they_came() -> None:
    async def scenario() -> None:
        async with stage("a") as there:
            body = b'{ "user" : "u1",  "candidates":[1 ,2]}'
            answer = await there.client.post(
                "/v1/rank?x=%20y",
                content=body,
                headers={
                    "content-type": "application/json",
                    "x-request-id": "mine-1",
                    "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
                    "authorization": "Bearer some key",
                    "x-tenant": "Löwe".encode(),
                    "x-relay-deadline-ms": "40",
                    "x-relay-moved": "1",
                    "connection": "x-gone",
                    "accept": "application/json",
                },
            )
            assert answer.headers["x-request-id"] == "mine-1"
            assert answer.headers["content-type"].startswith("application/json")
            assert "gateway;dur=" in answer.headers["server-timing"]
            [sent] = there.instances["a"].to("/v1/rank")
            assert (sent.body, sent.target) == (body, "/v1/rank?x=%20y")
            for name, value in {
                "x-request-id": "mine-1", "authorization": "Bearer some key", "x-relay-owner": "a",
                "x-relay-epoch": "1", "x-relay-hop": "1", "x-relay-deadline-ms": "40",
                "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "accept": "application/json",
            }.items():  # fmt: skip
                assert sent.headers[name] == value
            # The first word of the user here: the instance may have an old one.
            assert sent.headers["x-relay-moved"] == "1"
            assert sent.headers["x-session-id"] == session_key("Löwe".encode().decode("latin-1"), "u1")
            await there.client.post("/v1/rank", content=body, headers={"x-tenant": "Löwe".encode()})
            assert "x-relay-moved" not in there.instances["a"].sent[-1].headers

    play(scenario)


def test_a_given_session_id_decides() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c", "d") as there:
            for number in range(20):
                session = session_key("elsewhere", f"u{number}")
                names = {
                    (
                        await there.post("/v1/rank", {"user": "x", "candidates": []}, x_session_id=session)
                    ).json()["by"],
                    (await there.post("/v1/prefix", {"user": "x"}, x_session_id=session)).json()["by"],
                }
                assert len(names) == 1
                name = names.pop()
                assert there.instances[name].sent[-1].headers["x-session-id"] == session
            assert sum(bool(stub.sent) for stub in there.instances.values()) > 1

    play(scenario)


def test_a_hint_is_followed() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c") as there:
            for name in "abc":
                answer = await there.post("/v1/rank", RANK, x_relay_owner=name, x_relay_epoch="77")
                assert answer.json()["by"] == answer.headers["x-relay-owner"] == name
            answer = await there.post("/v1/rank", RANK, x_relay_owner="nobody")
            assert answer.json()["by"] == "c"

    play(scenario)


def infer_json(user: Any) -> bytes:
    inputs = [
        {"name": "candidates", "datatype": "INT64", "shape": [1], "data": [7]},
        {"name": "user", "datatype": "BYTES", "shape": [1], "data": user},
    ]
    return msgspec.json.encode({"inputs": inputs})


def infer_binary(user: bytes) -> tuple[bytes, int]:
    inputs = [
        {"name": "candidates", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
        {
            "name": "user",
            "datatype": "BYTES",
            "shape": [1],
            "parameters": {"binary_data_size": 4 + len(user)},
        },
    ]
    head = msgspec.json.encode({"inputs": inputs})
    return head + bytes(8) + struct.pack("<I", len(user)) + user, len(head)


def test_inference_requests_go_where_their_user_is() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c", "d") as there:
            for number in range(12):
                user = f"user-{number}"
                owner = (await there.post("/v1/prefix", {"user": user})).headers["x-relay-owner"]
                path = "/v2/models/ranker/infer"
                for data in ([user], [[user], ["another"]]):
                    answer = await there.client.post(path, content=infer_json(data))
                    assert answer.headers["x-relay-owner"] == owner
                body, length = infer_binary(user.encode())
                answer = await there.client.post(
                    path, content=body, headers={"inference-header-content-length": str(length)}
                )
                assert answer.headers["x-relay-owner"] == owner
                assert there.instances[owner].sent[-1].body == body

    play(scenario)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rank", b"{"),
        ("/v1/rank", b"\xff"),
        ("/v1/rank", b'{"candidates": []}'),
        ("/v1/prefix", b'{"user": 3}'),
        ("/v1/events", b"[" * 5000),
        ("/v2/models/ranker/infer", b'{"inputs": [{"name": "user"}]}'),
        (
            "/v2/models/ranker/infer",
            b'{"inputs": [{"name": "user", "parameters": {"binary_data_size": -1}}]}',
        ),
        ("/v1/models/ranker", b"x"),
    ],
)
def test_what_names_no_user_is_answered_by_any_instance(path: str, body: bytes) -> None:
    async def scenario() -> None:
        async with stage("a") as there:
            await there.client.post(path, content=body)
            [sent] = there.instances["a"].sent
            assert sent.body == body
            assert there.gateway.fleet.router.placements == 0

    play(scenario)


def test_requests_of_no_user_are_spread() -> None:
    async def scenario() -> None:
        async with stage("a", "b") as there:
            for _ in range(4):
                assert (await there.client.get("/v1/models")).status_code == 200
            assert (await there.client.get("/openapi.json")).status_code == 200
            assert len(everything(there, "/v1/models")) == 4
            for path in ("/", "/v1/status"):
                error_of(await there.client.get(path), 404, "not_found")

    play(scenario)


def test_limits_and_keys_are_those_of_an_instance() -> None:
    async def scenario() -> None:
        async with stage("a", serving={"body_limit_bytes": 2048, "keys": KEYS}) as there:
            key = {"authorization": f"Bearer {KEYS[0].key}"}
            large = b'{"user": "u1", "candidates": [' + b"1," * 2000 + b"1]}"
            answer = await there.client.post("/v1/rank", content=large, headers=key)
            assert error_of(answer, 413, "body_size")["limit"] == 2048
            bad = await there.client.get("/v1/users/%ff/state", headers=key)
            error_of(bad, 400, "path")
            assert there.instances["a"].sent == []
            # Who has no key is refused by an instance.
            await there.client.post("/v1/rank", json=RANK)
            assert "x-session-id" not in there.instances["a"].sent[-1].headers
            await there.client.post("/v1/rank", json=RANK, headers=key)
            sent = there.instances["a"].sent[-1].headers
            assert sent["x-session-id"] == session_key("shop", "u1")
            assert sent["authorization"] == key["authorization"]

    play(scenario)


def test_a_header_that_cannot_go_on_is_refused() -> None:
    async def scenario() -> None:
        async with stage("a") as there:
            answer = await there.client.post("/v1/rank", json=RANK, headers={"x-tenant": b"\xe9t\xe9"})
            error_of(answer, 400, "header", "x-tenant")

    play(scenario)


def test_too_many_requests_at_once() -> None:
    async def scenario() -> None:
        async with stage("a", serving={"requests_max": 1}) as there:
            there.instances["a"].delay_s = 0.3
            first = there.client.build_request("POST", "/v1/rank", json=RANK)
            running = asyncio.create_task(there.client.send(first))
            await there.until(lambda: bool(there.instances["a"].sent))
            error_of(await there.post("/v1/rank", RANK), 503, "overload")
            assert (await running).status_code == 200

    play(scenario)


def test_a_deletion_reaches_every_instance() -> None:
    async def scenario() -> None:
        async with stage("a", "b", "c") as there:
            answer = await there.client.delete("/v1/users/u1")
            assert answer.json() == {"user": "u", "events": 9, "entries": 3}
            assert {name for name, _ in everything(there, "/v1/users/u1")} == {"a", "b", "c"}
            # One that is gone has nothing left to delete; one that breaks may have.
            await there.instances["a"].stop()
            assert (await there.client.delete("/v1/users/u1")).json()["events"] == 6
            there.instances["b"].mode = "cut"
            error_of(await there.client.delete("/v1/users/u1"), 502, "instance_lost")

    play(scenario)


def test_a_reload_reaches_every_instance() -> None:
    async def scenario() -> None:
        async with stage("a", "b") as there:
            assert (await there.client.post("/v1/models/reload")).status_code == 200
            assert {name for name, _ in everything(there, "/v1/models/reload")} == {"a", "b"}

    play(scenario)


def test_members_are_shown_drained_and_activated() -> None:
    async def scenario() -> None:
        async with stage("a", "b", serving={"keys": KEYS}) as there:
            admin = {"x-api-key": KEYS[1].key}
            error_of(await there.client.get("/v1/members"), 401, "key_missing")
            error_of(await there.client.get("/v1/members", headers={"x-api-key": KEYS[0].key}), 403, "admin")
            shown = (await there.client.get("/v1/members", headers=admin)).json()
            assert [(one["id"], one["state"], one["build"]) for one in shown["members"]] == [
                ("a", "active", "b1"),
                ("b", "active", "b1"),
            ]
            drained = await there.client.post("/v1/members/a/drain", headers=admin)
            assert (drained.json()["epoch"], drained.json()["members"][0]["state"]) == (2, "draining")
            await there.client.post("/v1/members/a/activate", headers=admin)
            assert there.state("a") == "active"
            for path in ("/v1/members/zzz/drain", "/v1/members/a/kill"):
                error_of(await there.client.post(path, headers=admin), 404, "not_found")
            error_of(await there.client.get("/v1/members/a", headers=admin), 404, "not_found")

    play(scenario)


def test_metrics() -> None:
    async def scenario() -> None:
        async with stage("a", "b") as there:
            await there.post("/v1/prefix", {"user": "u1"})
            await there.post("/v1/rank", RANK)
            await asyncio.sleep(0.01)  # a request is counted when its answer is on its way
            text = (await there.client.get("/metrics")).text
            [owner] = {name for name, _ in everything(there, "/v1/rank")}
            for line in (
                f'relaygr_router_requests_total{{lap="prefix",member="{owner}"}} 1.0',
                f'relaygr_router_requests_total{{lap="rank",member="{owner}"}} 1.0',
                "relaygr_router_affinity_miss_total 0.0",
                "relaygr_router_epoch 1.0",
                "relaygr_router_keys_moved_ratio 0.0",
                "relaygr_router_load_max_over_mean 2.0",
                "relaygr_router_placements 1.0",
                'relaygr_router_hits_total{kind="estimated"} 1.0',
                'relaygr_router_hits_total{kind="actual"} 1.0',
                'relaygr_router_members{state="active"} 2.0',
                'relaygr_http_requests_total{route="/v1/rank",status="200"} 1.0',
            ):
                assert line in text.splitlines(), line
            await there.instances[owner].stop()
            await there.post("/v1/rank", RANK)
            text = (await there.client.get("/metrics")).text
            assert 'relaygr_router_spills_total{reason="down"} 1.0' in text
            assert "relaygr_router_affinity_miss_total 1.0" in text

    play(scenario)


def test_no_prefix_where_the_load_is_at_its_limit() -> None:
    async def scenario() -> None:
        async with stage("a") as there:
            there.instances["a"].feedback = {"ready": True, "build": "b1", "page_tokens": 32, "load": 500}
            await there.until(lambda: there.gateway.fleet.router.members["a"].feedback.load == 500)
            answer = await there.post("/v1/prefix", {"user": "u1"})
            assert answer.json() == {
                "user": "u1", "admission": "rejected", "reason": "load", "tokens": 0, "cached": 0,
                "model": "",
                "request_id": answer.headers["x-request-id"],
            }  # fmt: skip
            assert (await there.post("/v1/rank", RANK)).status_code == 200

    play(scenario)


def test_users_that_need_no_prefix_are_ranked_in_the_other_pool() -> None:
    async def scenario() -> None:
        async with stage("a", "b", special_share=0.5) as there:
            there.instances["a"].reason = "not_at_risk"
            assert (await there.post("/v1/prefix", {"user": "u1"})).headers["x-relay-owner"] == "a"
            assert (await there.post("/v1/rank", RANK)).headers["x-relay-owner"] == "b"
            there.instances["a"].reason = ""
            assert (await there.post("/v1/prefix", {"user": "u1"})).headers["x-relay-owner"] == "a"
            assert (await there.post("/v1/rank", RANK)).headers["x-relay-owner"] == "a"

    play(scenario)


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match=r"router\.members: is empty"):
        Gateway(Config())
