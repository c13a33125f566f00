"""Envoy before instances, run for real: one instance a user, no ranking lost, nothing done twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from envoy_processes import envoy
from gateway_processes import family, until
from lap_load import Laps, Load
from stub_instance import Stub, stubs
from test_gateway_processes import cached, peers_of

from relaygr.bench.envoy_process import healthy
from relaygr.core.ids import session_key
from relaygr.core.units import MIB
from relaygr.serving.app import OPERATIONS
from relaygr.serving.laps import kind_of

NAMES = "abc"
USERS = 300


def apart(laps: Laps) -> int:
    return sum(count for (first, second, _), count in laps.items() if first != second)


def missed(laps: Laps) -> int:
    return sum(count for (*_, path), count in laps.items() if path != "hit")


def settled(load: Load, name: str, there: bool) -> bool:
    """Whether an instance ranks, or does not, by the next few answers."""
    return (name in {second for _, second, _ in load.more(24)}) is there


def owners(url: str) -> dict[int, str]:
    """Who ranks each of many users."""
    found = {}
    with httpx.Client(base_url=url, timeout=30) as client:
        for number in range(USERS):
            headers = {"x-session-id": session_key("default", f"someone-{number}")}
            answer = client.post("/v1/rank", json={"user": f"someone-{number}"}, headers=headers)
            assert answer.status_code == 200, answer.text
            found[number] = answer.json()["by"]
            assert answer.headers["x-relay-owner"] == found[number]
    return found


def test_killing_an_instance_loses_no_ranking_and_moves_only_its_users(tmp_path: Path) -> None:
    with family(tmp_path) as children:
        instances = {name: children.stub(name) for name in NAMES}
        with envoy(tmp_path, {name: one.url for name, one in instances.items()}) as (url, admin):
            until(lambda: all_rank(url, NAMES))
            before = owners(url)
            shares = Counter(before.values())
            assert all(0.2 < shares[name] / USERS < 0.5 for name in NAMES), shares
            with Load(url, sessions=True) as load:
                laps = load.more(100)
                assert (apart(laps), missed(laps)) == (0, 0)
                instances["b"].end(signal.SIGKILL)
                load.more(100)
                until(lambda: healthy(admin) == len(NAMES) - 1)
                until(lambda: settled(load, "b", False))
                laps = load.more(100)
                assert (apart(laps), missed(laps)) == (0, 0)
                assert {second for _, second, _ in laps} == {"a", "c"}
                away = owners(url)
                moved = {user for user in before if before[user] != away[user]}
                assert {user for user in before if before[user] == "b"} <= moved
                assert (len(moved) - shares["b"]) / USERS < 0.04
                children.stub("b", instances["b"].port)
                until(lambda: healthy(admin) == len(NAMES))
                until(lambda: settled(load, "b", True))
                laps = load.more(100)
                assert (apart(laps), missed(laps)) == (0, 0)
                assert {second for _, second, _ in laps} == set(NAMES)
            assert load.failures == []
            assert owners(url) == before
            # What came back is what had left: about one in three.
            assert 0.2 < len(moved) / USERS < 0.5


def test_an_instance_that_hangs_costs_time_and_no_ranking(tmp_path: Path) -> None:
    with family(tmp_path) as children:
        instances = {name: children.stub(name) for name in "ab"}
        with envoy(tmp_path, {name: one.url for name, one in instances.items()}) as (url, admin):
            until(lambda: all_rank(url, "ab"))
            with Load(url, sessions=True) as load:
                load.more(40)
                os.kill(instances["a"].process.pid, signal.SIGSTOP)
                until(lambda: healthy(admin) == 1)
                until(lambda: settled(load, "a", False))
                laps = load.more(40)
                assert set(laps) == {("b", "b", "hit")}
            assert load.failures == []


def test_whatever_hangs_is_tried_elsewhere_before_its_client_has_left(tmp_path: Path) -> None:
    """Health checks go on answering here, so that nothing but the time of a try ends the wait."""
    asked: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("GET", "/v1/users/u/state", {}),
        ("PUT", "/v1/users/u/profile", {}),
        ("POST", "/v1/events", {"idempotency-key": "e1"}),
        ("DELETE", "/v1/users/u", {}),
        ("POST", "/v1/generate", {}),
        ("POST", "/v1/events", {}),
    )
    with background_stubs("a", "b") as found, before(found, tmp_path) as (client, _):
        client.headers["x-session-id"] = "k"
        client.timeout = httpx.Timeout(50)
        owner = client.post("/v1/rank", json={"user": "u"}).json()["by"]
        [first, second] = sorted(found, key=lambda one: one.name != owner)
        first.mode = "hang"
        with ThreadPoolExecutor(len(asked)) as pool:
            sent = [
                pool.submit(client.request, *one[:2], json={"user": "u"}, headers=one[2]) for one in asked
            ]
            statuses = [one.result().status_code for one in sent]
        assert statuses == [200] * (len(asked) - 1) + [504]
        for method, path, headers in asked[:-1]:
            assert method in {one.method for one in second.to(path)}, path
            assert headers.items() <= second.to(path)[0].headers.items()
        assert [len(one.to("/v1/events")) for one in (first, second)] == [2, 1]


def test_what_may_be_done_twice_is_tried_elsewhere_and_nothing_else_is(tmp_path: Path) -> None:
    pushy = {"x-envoy-retry-on": "5xx,reset", "x-envoy-max-retries": "5", "x-session-id": "k"}
    with background_stubs("a", "b") as found, before(found, tmp_path) as (client, _):
        for method, path, headers, arrived in (
            ("POST", "/v1/events", pushy, [0, 1]),
            ("POST", "/v1/events", {"idempotency-key": "e1"}, [1, 1]),
            ("POST", "/v1/rank", {"x-session-id": "k"}, [1, 1]),
            ("POST", "/v2/models/m/infer", {"x-session-id": "k"}, [1, 1]),
            ("POST", "/v1/generate", {"x-session-id": "k"}, [1, 1]),
            ("DELETE", "/v1/users/u", {}, [1, 1]),
            ("PUT", "/v1/users/u/profile", {}, [1, 1]),
            ("POST", "/v1/whatever", {}, [0, 1]),
        ):
            both_answer(client, found)
            set_mode(found, "cut")
            answer = client.request(method, path, json={"user": "u"}, headers=headers)
            set_mode(found, "ok")
            assert answer.status_code == 503, path
            assert sorted(len(one.to(path)) for one in found) == arrived, (method, path)


def test_a_busy_or_a_failed_answer_is_an_answer(tmp_path: Path) -> None:
    with background_stubs("a", "b") as found, before(found, tmp_path) as (client, _):
        both_answer(client, found)
        set_mode(found, "not_ready")
        answer = client.post("/v1/rank", json={"user": "u"}, headers={"x-session-id": "k"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert sorted(len(one.to("/v1/rank")) for one in found) == [0, 1]


def test_an_instance_that_says_no_gets_nothing_and_without_any_there_is_no_readiness(tmp_path: Path) -> None:
    with background_stubs("a", "b") as found, before(found, tmp_path) as (client, admin):
        found[0].status = "draining"
        until(lambda: healthy(admin) == 1 and set(who(client, 20)) == {"b"})
        assert client.get("/readyz").status_code == 200
        found[0].sent.clear()
        assert set(who(client, 100)) == {"b"}
        assert found[0].to("/v1/rank") == []
        found[1].status = "draining"
        until(lambda: client.get("/readyz").status_code == 503)
        until(lambda: client.post("/v1/rank", json={"user": "u"}).status_code == 503)
        assert client.get("/healthz").status_code == 200


def test_headers_paths_and_limits(tmp_path: Path) -> None:
    with background_stubs("a") as [stub], before([stub], tmp_path) as (client, _):
        told = {"x-relay-hop": "1", "x-relay-moved": "1", "x-request-id": "r-1"}
        client.post("/v1/rank", json={"user": "u"}, headers={**told, "x-session-id": "k"})
        client.post("/v1/rank", json={"user": "u"}, headers=told)
        client.request("DELETE", "/v1/users/a%2Fb//%2E%2E", headers={**told, "x-session-id": "k"})
        named, unnamed, deletion = [one for one in stub.sent if one.target != "/readyz"]
        assert (named.headers["x-relay-hop"], named.headers["x-session-id"]) == ("k", "k")
        assert named.headers["x-request-id"] == "r-1"
        assert "x-relay-moved" not in named.headers
        # Peers route what names no user, and tell each other of deletions.
        assert "x-relay-hop" not in unnamed.headers
        assert "x-relay-hop" not in deletion.headers
        assert deletion.target == "/v1/users/a%2Fb//%2E%2E"
        large = client.post("/v1/events", content=b" " * (8 * MIB + 1))
        assert large.status_code == 413


def test_what_is_of_one_instance_or_of_all_is_refused(tmp_path: Path) -> None:
    """What the gateway sends everywhere, or answers itself, must not reach any one instance."""
    with background_stubs("a") as [stub], before([stub], tmp_path) as (client, _):
        own = ("/", "/metrics", "/v1/status", "/v1/relay/feedback", "/v1/members", "/v1/members/a/drain")
        everyone = [
            one.path
            for one in OPERATIONS
            if kind_of(one.method, one.path).everyone and one.path != "/v1/users/{user:name}"
        ]
        assert "/v1/models/reload" in everyone
        for path in (*own, *everyone):
            answer = client.request("GET" if path in own else "POST", path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
            assert stub.to(path) == [], path


def test_real_instances_keep_both_laps_and_forget_together(tmp_path: Path) -> None:
    with family(tmp_path) as children:
        # Without a session the laps come through different peers, each of which counts load by itself: a
        # prefix whose ranking went through the other one stays load here, and turns away who is new here.
        instances, _ = peers_of(children, tmp_path, "router.load_factor=100")
        urls = {name: one.url for name, one in instances.items()}
        with envoy(tmp_path, urls, budget_ms=20_000) as (url, admin):
            until(lambda: healthy(admin) == 2)
            with httpx.Client(base_url=url, timeout=30) as client:
                computed = {name: tokens(one.url) for name, one in instances.items()}
                for number in range(8):
                    two_laps(client, f"user-{number}", {"x-session-id": session_key("default", str(number))})
                    two_laps(client, f"plain-{number}", {})
                assert all(tokens(one.url) > computed[name] for name, one in instances.items())
                # Without a session anybody is asked, and says who of the peers answered.
                body = {"user": "plain-3", "candidates": [1, 2, 3]}
                said = {client.post("/v1/rank", json=body).headers["x-relay-owner"] for _ in range(8)}
                assert len(said) == 1
                for user in ("user-3", "plain-3"):
                    assert client.delete(f"/v1/users/{user}").json()["events"] == 100
                    for one in instances.values():
                        hop = {"x-relay-hop": "1"}
                        state = httpx.get(f"{one.url}/v1/users/{user}/state", headers=hop, timeout=30)
                        assert (state.json()["events"], state.json()["cached"]) == (0, 0)


def two_laps(client: httpx.Client, user: str, headers: dict[str, str]) -> None:
    """Events, signal and ranking of a user; the ranking finds the prefix where the signal went."""
    client.headers = httpx.Headers(headers)
    events = {"user": user, "items": list(range(1, 101)), "timestamps": list(range(1, 101))}
    assert client.post("/v1/events", json=events).status_code == 200
    assert client.post("/v1/prefix", json={"user": user}).status_code == 200
    until(lambda: cached(client, user))
    answer = client.post("/v1/rank", json={"user": user, "candidates": [1, 2, 3]})
    assert (answer.status_code, answer.json()["path"]) == (200, "hit")


def tokens(url: str) -> float:
    """History tokens that an instance has computed ahead."""
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    found = [line for line in lines if line.startswith("relaygr_preinfer_chunks_total{")]
    return sum(float(line.split()[-1]) for line in found)


@contextlib.contextmanager
def background_stubs(*names: str) -> Iterator[list[Stub]]:
    """Stubs on an event loop of their own thread."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        manager = stubs(*names)
        found = pool.submit(runner.run, manager.__aenter__()).result(30)
        ended = asyncio.Event()
        serving = pool.submit(runner.run, _wait(ended))
        try:
            yield found
        finally:
            runner.get_loop().call_soon_threadsafe(ended.set)
            serving.result(30)
            pool.submit(runner.run, manager.__aexit__(None, None, None)).result(30)


async def _wait(ended: asyncio.Event) -> None:
    await ended.wait()


@contextlib.contextmanager
def before(found: list[Stub], folder: Path) -> Iterator[tuple[httpx.Client, str]]:
    """A client of an Envoy before stubs, and the URL of Envoy's own pages."""
    with envoy(folder, {one.name: one.url for one in found}) as (url, admin):
        until(lambda: all_rank(url, [one.name for one in found]))
        for one in found:
            one.sent.clear()
        with httpx.Client(base_url=url, timeout=30) as client:
            yield client, admin


def both_answer(client: httpx.Client, found: list[Stub]) -> None:
    """All have answered since the last failure, so that none is put out for its failures; they forget it."""
    assert set(who(client, 40)) == {one.name for one in found}
    for one in found:
        one.sent.clear()


def all_rank(url: str, names: Iterable[str]) -> bool:
    """Whether every instance has its users: Envoy hears of health before it sends by it."""
    with httpx.Client(base_url=url, timeout=30) as client:
        return set(who(client, 40)) == set(names)


def who(client: httpx.Client, count: int) -> list[str]:
    """Who ranks the first users."""
    sent = [{"x-session-id": session_key("default", f"user-{number}")} for number in range(count)]
    answers = [client.post("/v1/rank", json={"user": "u"}, headers=one).json() for one in sent]
    return [answer.get("by", "") for answer in answers]


def set_mode(found: list[Stub], mode: str) -> None:
    for one in found:
        one.mode = mode
