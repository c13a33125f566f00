"""Streams on a Redis server: what only a server does, and what goes wrong with it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_places import BATCH, RedisPlace

from redis_process import find_redis_server, redis_server
from relaygr.config.stream import StreamConfig
from relaygr.core.errors import BackendError, ConfigError, OverloadError
from relaygr.data.streams import open_stream
from relaygr.data.streams.redis import RedisStream

STEP = 1 << 64


@pytest.fixture
def place(empty_redis: str) -> Iterator[RedisPlace]:
    there = RedisPlace(["s"], empty_redis)
    yield there
    there.close()


def opened(place: RedisPlace, name: str = "one", **settings: Any) -> RedisStream:
    stream = place.open(name, **settings)
    assert isinstance(stream, RedisStream)
    place.do(stream.assigned())
    return stream


def read(place: RedisPlace, stream: RedisStream, acknowledge: bool = False) -> list[int]:
    entries = place.do(stream.read("s"))
    if acknowledge:
        place.do(stream.acknowledge("s", [entry.offset for entry in entries]))
    return [entry.offset // STEP for entry in entries]


def fill(place: RedisPlace, first: int, stop: int) -> None:
    for at in range(first, stop):
        place.add("s", at * STEP, {"n": b"1"})


def test_a_new_group_begins_where_it_is_told(place: RedisPlace) -> None:
    fill(place, 1, 3)
    late = opened(place, group="late", first="newest")
    assert [one.entries for one in place.do(late.lag())] == [0]
    assert read(place, opened(place)) == [1, 2]
    assert read(place, late) == []
    fill(place, 3, 4)
    assert read(place, late) == [3]


def test_an_entry_wakes_who_waits_for_it(place: RedisPlace) -> None:
    stream = opened(place, block_ms=20_000)

    async def both() -> list[int]:
        waiting = asyncio.create_task(stream.read("s"))
        await asyncio.sleep(0.05)
        fill(place, 1, 2)
        assert await asyncio.wait_for(waiting, 10) == ()
        return [entry.offset // STEP for entry in await stream.read("s")]

    assert place.do(both()) == [1]


def test_a_lease_ends_by_itself(place: RedisPlace) -> None:
    one = opened(place, "one", claim_idle_ms=100)
    fill(place, 1, 2)
    assert read(place, one) == [1]
    two, end = place.open("two", claim_idle_ms=100), time.monotonic() + 20
    while not place.do(two.assigned()) and time.monotonic() < end:
        place.do(asyncio.sleep(0.02))
    assert [entry.offset // STEP for entry in place.do(two.read("s"))] == [1]


def test_a_read_that_is_given_up_loses_nothing(place: RedisPlace) -> None:
    stream = opened(place, block_ms=20_000)
    fill(place, 1, 9)

    async def given_up(after_s: float) -> None:
        task = asyncio.create_task(stream.read("s"))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for after_s in (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.01):
        place.do(given_up(after_s))
    got: list[int] = []
    while len(got) < 8:
        got += read(place, stream, acknowledge=True)
    assert got == list(range(1, 9))


def test_a_lost_group_is_made_again_and_reads_everything(place: RedisPlace) -> None:
    fill(place, 1, 3)
    stream = opened(place, first="newest")
    place.client.xgroup_destroy("s", "relaygr")
    assert read(place, stream) == [1, 2]


def test_entries_that_were_trimmed_are_counted(place: RedisPlace) -> None:
    fill(place, 1, 11)
    stream = opened(place)
    assert read(place, stream) == [1, 2, 3]
    place.client.xtrim("s", minid="3", approximate=False)  # two that were read and not acknowledged
    assert read(place, stream) == [3]
    assert place.do(stream.lag())[0].trimmed == 2
    place.do(stream.acknowledge("s", [3 * STEP]))
    place.client.xtrim("s", minid="8", approximate=False)  # 4 to 7, which were not read
    (lag,) = place.do(stream.lag())
    assert (lag.trimmed, lag.entries) == (6, 3)
    got = read(place, stream, acknowledge=True) + read(place, stream, acknowledge=True)
    assert got == [8, 9, 10]
    (lag,) = place.do(stream.lag())
    assert (lag.trimmed, lag.entries, lag.seconds) == (6, 0, 0.0)


def test_lag_in_seconds_is_the_age_of_the_oldest(place: RedisPlace) -> None:
    stream = opened(place)
    seconds, _ = place.client.time()
    place.add("s", (seconds - 100) * 1000 * STEP, {"n": b"1"})
    place.add("s", (seconds - 50) * 1000 * STEP, {"n": b"1"})
    assert place.do(stream.lag())[0].seconds == pytest.approx(100, abs=10)
    (first, _) = place.do(stream.read("s"))
    assert place.do(stream.lag())[0].seconds == pytest.approx(100, abs=10)
    place.do(stream.acknowledge("s", [first.offset]))
    assert place.do(stream.lag())[0].seconds == pytest.approx(50, abs=10)


def test_dead_letters_keep_the_entry_and_are_bounded(place: RedisPlace) -> None:
    stream = opened(place, dead_letter_max=10, batch=500)
    many = {f"f{at}": b"v" for at in range(5000)}
    place.add("s", 1 * STEP, {"user": b"\xff"})
    place.add("s", 2 * STEP, many)
    for entry in place.do(stream.read("s")):
        place.do(stream.reject(entry, "why"))
    (_, first), (_, second) = place.client.xrange("relaygr:dead")
    assert first == {b"dead.stream": b"s", b"dead.id": b"1-0", b"dead.error": b"why", b"user": b"\xff"}
    size = sum(len(name) + 1 for name in many)
    assert (second[b"dead.fields"], second[b"dead.bytes"]) == (b"5000", str(size).encode())
    assert len(second) == 64 + 5
    fill(place, 3, 500)
    for entry in place.do(stream.read("s")):
        place.do(stream.reject(entry, "why"))
    assert 10 <= place.client.xlen("relaygr:dead") <= 200  # whole nodes of a hundred are removed
    assert place.do(stream.lag())[0].entries == 0


def test_names_of_hosts_that_are_gone_do_not_stay(place: RedisPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaygr.data.streams.redis._FORGET_MS", 0)
    fill(place, 1, 2)
    assert read(place, opened(place, "gone"), acknowledge=True) == [1]
    place.expire("gone")
    time.sleep(0.005)
    read(place, opened(place, "here"))
    names = [one["name"] for one in place.client.xinfo_consumers("s", "relaygr")]
    assert names == [b"here"] or names == []


def test_a_server_that_is_away_comes_back_with_everything(tmp_path: Path) -> None:
    binary = find_redis_server()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with redis_server(binary, tmp_path) as url:
        place = RedisPlace(["s"], url)
        stream = opened(place)
        fill(place, 1, 5)
        assert read(place, stream) == [1, 2, 3]
    for call in (stream.read("s"), stream.assigned(), stream.lag(), stream.acknowledge("s", [1])):
        with pytest.raises(OverloadError, match=f"the event stream at {url} cannot be reached"):
            place.do(call)  # type: ignore[arg-type]
    with redis_server(binary, tmp_path, int(url.rsplit(":", 1)[1].partition("/")[0])):
        assert place.do(stream.assigned()) == {"s"}
        assert read(place, stream, acknowledge=True) == [1, 2, 3]
        assert read(place, stream, acknowledge=True) == [4]
        place.close()


def test_a_full_server_is_read_and_loses_nothing(place: RedisPlace) -> None:
    stream = opened(place)
    fill(place, 1, 3)
    place.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(BackendError, match="maxmemory"):
            read(place, opened(place, "one", group="new"))
        assert place.do(stream.assigned()) == {"s"}
        (first, second) = place.do(stream.read("s"))
        with pytest.raises(BackendError, match=r"OOM|maxmemory"):
            place.do(stream.reject(first, "why"))
        place.do(stream.acknowledge("s", [second.offset]))
        assert place.do(stream.lag())[0].entries == 1
        place.do(stream.release("s"))
        other = opened(place, "two")
        assert place.do(other.assigned()) == {"s"}
        assert read(place, other) == [1]
    finally:
        place.client.config_set("maxmemory", "0")
    assert read(place, other) == [1]


def test_a_closed_stream_whose_server_is_gone(tmp_path: Path) -> None:
    binary = find_redis_server()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with redis_server(binary, tmp_path) as url:
        place = RedisPlace(["s"], url)
        stream = opened(place)
    place.do(stream.close())
    place.loop.close()
    place.client.close()


def test_a_key_of_another_kind_is_named_and_stops_no_other(empty_redis: str) -> None:
    place = RedisPlace(["bad", "s"], empty_redis)
    place.client.set("bad", "text")
    fill(place, 1, 2)
    stream = place.open("one", first="newest")
    assert place.do(stream.assigned()) == {"bad", "s"}
    for _ in range(2):
        with pytest.raises(BackendError, match=r"the event stream at redis://.*WRONGTYPE"):
            place.do(stream.read("bad"))
    fill(place, 2, 3)
    (entry,) = place.do(stream.read("s"))
    assert entry.offset == 2 * STEP
    assert [(one.stream, one.entries) for one in place.do(stream.lag())] == [("s", 1)]
    # Mended, it begins where a new group begins.
    place.client.delete("bad")
    place.add("bad", 1 * STEP, {"n": b"1"})
    assert place.do(stream.read("bad")) == ()
    place.add("bad", 2 * STEP, {"n": b"1"})
    assert [one.offset for one in place.do(stream.read("bad"))] == [2 * STEP]
    place.client.delete("bad", "s")
    for name in place.streams:
        place.client.set(name, "text")
    with pytest.raises(BackendError, match="WRONGTYPE"):
        place.do(stream.lag())
    place.close()


def test_an_old_server_is_refused(place: RedisPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaygr.data.streams.redis._LEAST_VERSION", 99)
    with pytest.raises(BackendError, match=r"is of version 7\..*, 99\.0 is needed|is of version"):
        place.do(place.open("one").assigned())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kafka://host:9092", r"kafka://\.\.\. is not redis://"),
        ("secret", r"a text without :// is not redis://"),
        ("redis://:secret@host/1?a=b", r"redis://host:6379/1 must have no options"),
        ("redis://:secret@host/x", r"redis://host:6379/x: the path must be the number of a database"),
        ("redis://:secret@host:port", r"not a URL"),
    ],
)
def test_wrong_urls_are_named_without_their_secrets(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^stream\.url: " + words) as caught:
        open_stream(StreamConfig(url=url))
    assert "secret" not in str(caught.value)


def test_a_password_is_in_no_message(empty_redis: str) -> None:
    url = empty_redis.replace("redis://", "redis://user:secret@")
    place = RedisPlace(["s"], empty_redis)
    stream = place.open("one", url=url)
    with pytest.raises((OverloadError, BackendError)) as caught:
        place.do(stream.assigned())
    assert "secret" not in str(caught.value)
    place.close()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"stream\.url: .*relaygr\[streams\]"):
        open_stream(StreamConfig(url="redis://127.0.0.1"))


def test_no_more_than_a_batch_is_held(place: RedisPlace) -> None:
    fill(place, 1, 100)
    stream = opened(place)
    for _ in range(5):
        assert len(read(place, stream)) == BATCH
    assert place.client.xpending("s", "relaygr")["pending"] == BATCH
