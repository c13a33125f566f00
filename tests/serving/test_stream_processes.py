"""Servers as processes that share streams: events reach the instance that has the user, also over deaths."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from gateway_processes import _MAIN, Child, Family, family, free_port, ready, until
from stream_sinks import fields

from redis_process import find_redis_server, redis_server
from relaygr.config.settings import StoreConfig
from relaygr.data.stores import open_store

STREAMS = ("e:0", "e:1", "e:2", "e:3")
USERS = 12


def put(client: Any, first: int, stop: int) -> None:
    for number in range(first, stop):
        user = number % USERS
        client.xadd(STREAMS[user % len(STREAMS)], fields(f"u{user}", number))


def settled(client: Any) -> bool:
    groups = [group for stream in STREAMS for group in client.xinfo_groups(stream)]
    return len(groups) == len(STREAMS) and all(not group["pending"] and group["lag"] == 0 for group in groups)


def sets(url: str, *more: str) -> tuple[str, ...]:
    return (
        f"stream.url={url}", f"stream.streams={','.join(STREAMS)}", "stream.claim_idle_ms=400",
        "stream.block_ms=20", "stream.batch=16", "stream.lag_s=0.1", *more,
    )  # fmt: skip


def peer(family: Family, name: str, ports: Sequence[int], url: str) -> Child:
    """One of two members `p0` and `p1` over one store."""
    config = family.folder / f"{name}.toml"
    members = "".join(
        f'[[router.members]]\nid = "p{at}"\nurl = "http://127.0.0.1:{port}"\n'
        for at, port in enumerate(ports)
    )
    config.write_text(f'[router]\nself_id = "{name}"\npoll_s = 0.05\n{members}')
    return family.serve(name, ports[int(name[1:])], *sets(url, f"store.url={url}"), config=config)


def state(at: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{at}/v1/status", timeout=10).json()["stream"]
    return found


def check_histories(url: str, events: int) -> None:
    with closing(open_store(url, StoreConfig())) as store:
        for user in range(USERS):
            got = store.load("default", f"u{user}", 10_000).items.tolist()
            assert got == list(range(user, events, USERS)), user


def test_peers_share_streams_and_outlive_a_kill(tmp_path: Path, empty_redis: str) -> None:
    with family(tmp_path) as found, closing(redis.Redis.from_url(empty_redis)) as client:
        ports = (free_port(), free_port())
        first, second = (peer(found, f"p{at}", ports, empty_redis) for at in range(2))
        until(lambda: ready(first.url) and ready(second.url))
        until(lambda: state(first.url)["streams"] == state(second.url)["streams"] == 2)
        put(client, 0, 240)
        until(lambda: settled(client))
        # Both hold the histories of their users, as fresh as events that were sent to them.
        for user in range(USERS):
            for at in (first, second):
                answer = httpx.get(f"{at.url}/v1/users/u{user}/state", timeout=10).json()
                assert answer["events"] == 20
        put(client, 240, 480)
        assert second.end(signal.SIGKILL) == -signal.SIGKILL
        put(client, 480, 600)
        until(lambda: settled(client))
        until(lambda: state(first.url)["streams"] == 4)
        assert first.end() == 0
        check_histories(empty_redis, 600)


def test_a_gateway_reads_for_its_instances_and_survives_the_streams_server(tmp_path: Path) -> None:
    binary = find_redis_server()
    if binary is None:
        pytest.skip("redis-server is not installed")
    store = f"sqlite:///{tmp_path / 'store'}"
    (tmp_path / "redis").mkdir()
    with family(tmp_path) as found:
        instance = found.serve("i0", 0, f"store.url={store}")
        with redis_server(binary, tmp_path / "redis") as url:
            port = int(url.rsplit(":", 1)[1].partition("/")[0])
            gateway = found.gateway({"i0": instance}, *sets(url))
            until(lambda: ready(instance.url) and ready(gateway.url))
            with closing(redis.Redis.from_url(url)) as client:
                until(lambda: client.exists(*STREAMS) == len(STREAMS))
                put(client, 0, 120)
                until(lambda: settled(client))
        time.sleep(0.05)
        with redis_server(binary, tmp_path / "redis", port), closing(redis.Redis.from_url(url)) as client:
            put(client, 120, 240)
            until(lambda: settled(client))
            text = httpx.get(f"{gateway.url}/metrics", timeout=10).text
            assert 'relaygr_stream_entries_total{result="applied"' in text
            assert gateway.end() == 0
        assert instance.end() == 0
    check_histories(store, 240)


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_a_wrong_stream_ends_the_start(command: str) -> None:
    member = ["--member", "a=http://127.0.0.1:9"] if command == "gateway" else []
    line = [sys.executable, "-c", _MAIN, command, "--port", "0", *member]
    done = subprocess.run(
        [*line, "--set", "stream.url=kafka://:secret@host"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "stream.url: kafka://... is not redis://HOST:PORT/DB" in done.stdout + done.stderr
    assert "secret" not in done.stdout + done.stderr
