"""Entries of any size: memory and dead letters are bounded by bytes, and no read is too large for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from stream_places import RedisPlace

from relaygr.core.errors import OverloadError
from relaygr.data.streams.redis import RedisStream

STEP = 1 << 64


@pytest.fixture
def place(empty_redis: str) -> Iterator[RedisPlace]:
    there = RedisPlace(["s"], empty_redis)
    yield there
    there.close()


def opened(place: RedisPlace, **settings: Any) -> RedisStream:
    stream = place.open("one", batch=8, **settings)
    assert isinstance(stream, RedisStream)
    place.do(stream.assigned())
    return stream


def read(place: RedisPlace, stream: RedisStream) -> list[int]:
    """What a read gives, which is acknowledged."""
    entries = place.do(stream.read("s"))
    place.do(stream.acknowledge("s", [entry.offset for entry in entries]))
    return [entry.offset // STEP for entry in entries]


def test_a_read_has_no_more_bytes_than_it_may(place: RedisPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaygr.data.streams.redis._READ_BYTES", 1000)
    for at, size in enumerate((10, 400, 500, 5000, 10, 300, 300, 300, 300, *(1,) * 40), 1):
        place.add("s", at * STEP, {"n": b"x" * size})
    stream = opened(place)
    assert [len(place.do(stream.read("s"))) for _ in range(2)] == [3, 3]  # not acknowledged: once more
    got = []
    while found := read(place, stream) or read(place, stream):
        got.append(found)
    assert got[:2] == [[1, 2, 3], [4]]
    assert [one for found in got for one in found] == list(range(1, 50))
    assert max(map(len, got)) == 8  # it grew again
    assert place.client.xpending("s", "relaygr")["pending"] == 0


def test_a_read_that_takes_too_long_is_a_smaller_one_next(
    place: RedisPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(1, 30):
        place.add("s", at * STEP, {"n": b"1"})
    stream = opened(place)
    slow, tried = [True], []
    call = stream._call

    async def late(name: str, *arguments: Any) -> Any:
        answer = await call(name, *arguments)
        if isinstance(answer, list) and answer[:1] == [b"entries"]:
            tried.append(len(answer[1]))
            if slow[0] and tried[-1] > 1:
                raise redis.exceptions.TimeoutError("too long")
        return answer

    monkeypatch.setattr(stream, "_call", late)
    for _ in range(3):
        with pytest.raises(OverloadError):
            place.do(stream.read("s"))
    assert read(place, stream) == [1]
    assert tried == [8, 4, 2, 1]
    slow[0] = False
    got = [found for _ in range(20) if (found := read(place, stream))]
    assert [one for found in got for one in found] == list(range(2, 30))
    assert max(map(len, got)) == 8


def test_dead_letters_are_bounded_by_bytes(place: RedisPlace) -> None:
    stream = opened(place)
    place.add("s", 1 * STEP, {"user": b"u", "item": b"9" * 1_000_000, "n" * 5000: b"1"})
    place.add("s", 2 * STEP, {f"f{at}": b"v" * 2000 for at in range(50)})
    for entry in place.do(stream.read("s")):
        place.do(stream.reject(entry, "why" * 10_000))
    (_, first), (_, second) = place.client.xrange("relaygr:dead")
    assert (first[b"dead.bytes"], first[b"dead.fields"]) == (b"1005010", b"3")
    assert (first[b"user"], first[b"item"], first[b"n" * 1024]) == (b"u", b"9" * 1024, b"1")
    for letter in (first, second):
        assert len(letter[b"dead.error"]) == 1024
        assert sum(len(name) + len(value) for name, value in letter.items()) < 8192 + 1024 + 200
