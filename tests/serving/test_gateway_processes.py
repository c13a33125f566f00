"""A gateway before processes that are killed and come back, under load: every ranking is answered."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
from gateway_processes import HOST, Child, Family, family, free_port, ready, states, until
from lap_load import Load

PEER = ("router.poll_s=0.1", "router.ramp_s=0")


def owners(url: str, count: int) -> dict[str, str]:
    """Where users are ranked."""
    with httpx.Client(base_url=url, timeout=30) as client:
        found = {}
        for number in range(count):
            answer = client.post("/v1/rank", json={"user": f"someone-{number}", "candidates": [1]})
            assert answer.status_code == 200, answer.text
            found[f"someone-{number}"] = answer.headers["x-relay-owner"]
        return found


def test_r26_killing_an_instance_under_load_loses_no_ranking(tmp_path: Path) -> None:
    with family(tmp_path) as children:
        instances = {name: children.stub(name) for name in "abcd"}
        # Placements are short here, so that users go where the members alone would have them; nobody is
        # turned away for load, which would move a few more.
        gateway = children.gateway(
            instances, "router.poll_s=0.1", "router.ramp_s=0", "router.placement_ttl_s=0",
            "budgets.t_life_ms=50", "router.load_factor=100",
        )  # fmt: skip
        until(lambda: ready(gateway.url))
        before = owners(gateway.url, 250)
        assert set(before.values()) == set("abcd")
        with Load(gateway.url) as load:
            until(lambda: sum(load.ranked.values()) > 100)
            instances["b"].end(signal.SIGKILL)
            until(lambda: states(gateway.url)["b"] == "down")
            killed = load.ranked["b"]
            until(lambda: sum(load.ranked.values()) > 300)
            away = owners(gateway.url, 250)
            # R27: only the users of the one that left have moved.
            assert {user for user in before if before[user] != away[user]} == {
                user for user in before if before[user] == "b"
            }
            children.stub("b", instances["b"].port)
            until(lambda: states(gateway.url)["b"] == "active")
            until(lambda: load.ranked["b"] > killed + 20)
        assert load.failures == []
        back = owners(gateway.url, 250)
        assert back == before
        moved = sum(away[user] != back[user] for user in back) / len(back)
        assert 0.15 < moved < 0.35
        text = httpx.get(f"{gateway.url}/metrics", timeout=5).text
        assert "relaygr_router_epoch 3.0" in text
        assert gateway.end() == 0


def test_real_instances(tmp_path: Path) -> None:
    """As peers any of them may be asked; behind a gateway both laps hit one, and a kill fails no ranking."""
    with family(tmp_path) as children:
        instances, config = peers_of(children, tmp_path)
        any_of_them(instances)
        gateway = children.gateway(instances, "router.poll_s=0.1", "router.ramp_s=0")
        until(lambda: ready(gateway.url))
        with httpx.Client(base_url=gateway.url, timeout=30) as client:
            seen = Counter(two_laps(client, f"user-{number}") for number in range(16))
            assert set(seen) == {"a", "b"}
            assert client.delete("/v1/users/user-1").json()["events"] == 200
            misrouted(client)
        with Load(gateway.url) as load:
            until(lambda: sum(load.ranked.values()) > 100)
            instances["a"].end(signal.SIGKILL)
            until(lambda: sum(load.ranked.values()) > 300)
        assert load.failures == []
        children.serve("a", instances["a"].port, *PEER, "router.self_id=a", config=config)
        until(lambda: states(gateway.url)["a"] == "active")
        fresh = Counter(owners(gateway.url, 100).values())
        assert 25 <= fresh["a"] <= 75
        assert gateway.end() == 0


def two_laps(client: httpx.Client, user: str) -> str:
    """Events, signal and ranking of a user; the ranking finds the prefix where the signal went."""
    events = {"user": user, "items": list(range(1, 201)), "timestamps": list(range(1, 201))}
    assert client.post("/v1/events", json=events).status_code == 200
    signal = client.post("/v1/prefix", json={"user": user})
    assert signal.status_code == 200, signal.text
    until(lambda: cached(client, user))
    body = {"user": user, "candidates": [1, 2, 3]}
    answer = client.post("/v1/rank", json=body, headers={"x-relay-owner": signal.headers["x-relay-owner"]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-relay-owner"] == signal.headers["x-relay-owner"]
    assert answer.json()["path"] == "hit", (signal.text, answer.text)
    return str(answer.headers["x-relay-owner"])


def misrouted(client: httpx.Client) -> None:
    """R18: a prefix that another instance has is a miss here, not an error, and nobody fetches it."""
    body = {"user": "misled", "history": {"items": list(range(1, 101)), "timestamps": list(range(1, 101))}}
    owner = client.post("/v1/prefix", json=body).headers["x-relay-owner"]
    other = "b" if owner == "a" else "a"
    rank = {**body, "candidates": [1, 2]}
    there = client.post("/v1/rank", json=rank, headers={"x-relay-owner": owner}).json()
    answer = client.post("/v1/rank", json=rank, headers={"x-relay-owner": other})
    assert answer.headers["x-relay-owner"] == other
    assert (answer.json()["path"], answer.json()["tokens_computed"]) == ("full", 100)
    assert np.allclose(answer.json()["scores"], there["scores"], rtol=0, atol=1e-5)


def cached(client: httpx.Client, user: str) -> bool:
    state = client.get(f"/v1/users/{user}/state").json()
    return bool(state["cached"] == state["tokens"])


def peers_of(children: Family, folder: Path, *settings: str) -> tuple[dict[str, Child], Path]:
    """Two instances with stores of their own that know each other, ready; and their configuration."""
    ports = {name: free_port() for name in "ab"}
    config = folder / "peers.toml"
    config.write_text(
        "".join(f'[[router.members]]\nid = "{name}"\nurl = "{HOST}:{port}"\n' for name, port in ports.items())
    )
    found = {
        name: children.serve(name, port, *PEER, f"router.self_id={name}", *settings, config=config)
        for name, port in ports.items()
    }
    until(lambda: all(ready(one.url) for one in found.values()))
    return found, config


def any_of_them(instances: dict[str, Child]) -> None:
    """Whichever is asked, one answers for a user, and that one has the events."""
    clients = [httpx.Client(base_url=one.url, timeout=30) for one in instances.values()]
    until(lambda: all(active(client) == len(instances) for client in clients))
    seen = set()
    for number in range(12):
        user = f"peer-{number}"
        events = {"user": user, "items": [1, 2, 3], "timestamps": [1, 2, 3]}
        assert clients[0].post("/v1/events", json=events).status_code == 200
        told = {client.get(f"/v1/users/{user}/state").json()["events"] for client in clients}
        assert told == {3}
        body = {"user": user, "candidates": [1]}
        owners = {client.post("/v1/rank", json=body).headers["x-relay-owner"] for client in clients}
        assert len(owners) == 1
        seen |= owners
    assert seen == set(instances)
    for client in clients:
        client.close()


def active(client: httpx.Client) -> float:
    """Members that an instance sees as active."""
    lines = client.get("/metrics").text.splitlines()
    [line] = [line for line in lines if 'router_members{state="active"}' in line]
    return float(line.split()[-1])
