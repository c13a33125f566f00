"""What the contract of event streams says, in memory and on a Redis server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from stream_places import BATCH, MemoryPlace, Place, RedisPlace

from relaygr.core.errors import RequestError
from relaygr.data.streams import Entry, EventStream, StreamLostError, shard_of
from relaygr.data.streams.interface import format_offset, parse_offset

Opener = Callable[..., Place]
STEP = 1 << 64


@pytest.fixture(params=["memory", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[Opener]:
    made: list[Place] = []

    def make(*streams: str) -> Place:
        if request.param == "memory":
            made.append(MemoryPlace(streams))
        else:
            made.append(RedisPlace(streams, request.getfixturevalue("empty_redis")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fill(place: Place, stream: str, first: int, stop: int) -> None:
    for at in range(first, stop):
        place.add(stream, at * STEP, {"n": str(at).encode()})


def numbers(entries: Sequence[Entry]) -> list[int]:
    assert all(entry.offset == int(entry.fields["n"]) * STEP for entry in entries)
    return [int(entry.fields["n"]) for entry in entries]


def reader(place: Place, name: str = "one") -> EventStream:
    stream = place.open(name)
    place.do(stream.assigned())
    return stream


def test_entries_come_in_order_and_no_more_than_a_batch(place: Opener) -> None:
    there = place("s")
    fill(there, "s", 1, 8)
    stream = reader(there)
    for wanted in ([1, 2, 3], [4, 5, 6], [7], []):
        entries = there.do(stream.read("s"))
        assert numbers(entries) == wanted
        there.do(stream.acknowledge("s", [entry.offset for entry in entries]))


def test_what_is_not_acknowledged_comes_again_before_anything_else(place: Opener) -> None:
    there = place("s")
    fill(there, "s", 1, 6)
    stream = reader(there)
    assert numbers(there.do(stream.read("s"))) == [1, 2, 3]
    assert numbers(there.do(stream.read("s"))) == [1, 2, 3]
    there.do(stream.acknowledge("s", [2 * STEP]))
    # A server gives what was read before by itself.
    assert numbers(there.do(stream.read("s"))) in ([1, 3], [1, 3, 4])
    there.do(stream.acknowledge("s", [1 * STEP, 3 * STEP]))
    assert numbers(there.do(stream.read("s"))) == [4, 5]


def test_a_rejected_entry_is_kept_with_its_reason_and_done(place: Opener) -> None:
    there = place("s")
    fill(there, "s", 1, 3)
    stream = reader(there)
    bad, good = there.do(stream.read("s"))
    there.do(stream.reject(bad, "item: what is this?"))
    there.do(stream.acknowledge("s", [good.offset]))
    assert there.do(stream.read("s")) in ([], ())
    assert there.dead() == [("s", STEP, "item: what is this?")]


def test_streams_are_shared_evenly_and_each_is_ones(place: Opener) -> None:
    there = place("a", "b", "c")
    one, two = there.open("one"), there.open("two")
    assert there.do(one.assigned()) == {"a", "b", "c"}
    assert there.do(two.assigned()) == frozenset()
    kept = there.do(one.assigned())  # now it knows of the other
    assert len(kept) == 2
    (given,) = {"a", "b", "c"} - kept
    assert there.do(two.assigned()) == frozenset()  # not before it is released
    there.do(one.release(given))
    assert there.do(two.assigned()) == {given}
    with pytest.raises(StreamLostError):
        there.do(one.read(given))
    there.do(two.release(min(kept)))  # not its own: nothing happens
    assert there.do(one.assigned()) == kept


def test_who_takes_over_is_given_what_the_dead_one_had_read(place: Opener) -> None:
    there = place("s")
    fill(there, "s", 1, 6)
    one = reader(there, "one")
    entries = there.do(one.read("s"))
    there.do(one.acknowledge("s", [entries[0].offset]))
    two = there.open("two")
    assert there.do(two.assigned()) == frozenset()
    with pytest.raises(StreamLostError):
        there.do(two.read("s"))
    there.expire("one")
    assert there.do(two.assigned()) == {"s"}
    again = there.do(two.read("s"))
    assert numbers(again)[:2] == [2, 3]
    # The first was only paused: it reads nothing more, and what it acknowledges is done.
    with pytest.raises(StreamLostError):
        there.do(one.read("s"))
    there.do(one.acknowledge("s", [entries[1].offset, entries[2].offset]))
    there.do(two.acknowledge("s", [entry.offset for entry in again]))
    rest = numbers(there.do(two.read("s")))
    assert [*numbers(again)[2:], *rest] == [4, 5]


def test_lag_counts_what_is_not_acknowledged(place: Opener) -> None:
    there = place("a", "b")
    fill(there, "a", 1, 6)
    stream = reader(there)
    (first, second) = there.do(stream.lag())
    assert (first.stream, first.entries, second.stream, second.entries) == ("a", 5, "b", 0)
    assert second.seconds == 0.0
    entries = there.do(stream.read("a"))
    assert there.do(stream.lag())[0].entries == 5
    there.do(stream.acknowledge("a", [entry.offset for entry in entries]))
    assert there.do(stream.lag())[0].entries == 2
    assert there.do(stream.lag())[0].trimmed == 0


def test_a_closed_consumer_leaves_everything_at_once(place: Opener) -> None:
    there = place("s")
    one, two = reader(there, "one"), there.open("two")
    there.do(one.close())
    there.do(one.close())
    assert there.do(two.assigned()) == {"s"}


class Machine(RuleBasedStateMachine):
    """Two consumers in both places do the same; whatever happens, both say the same."""

    url: str
    names = st.sampled_from(["one", "two"])
    streams = st.sampled_from(["a", "b"])

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = [MemoryPlace(["a", "b"]), RedisPlace(["a", "b"], self.url)]
        self.consumers = {name: [place.open(name) for place in self.places] for name in ("one", "two")}
        self.next = 1
        self.got: dict[tuple[str, str], list[Entry]] = {}
        self.done: set[int] = set()

    def teardown(self) -> None:
        for place in self.places:
            place.close()

    def both(self, name: str, call: Callable[[EventStream], Any]) -> list[Any]:
        return [place.do(call(one)) for place, one in zip(self.places, self.consumers[name], strict=True)]

    @rule(stream=streams, count=st.integers(1, 5))
    def add(self, stream: str, count: int) -> None:
        for place in self.places:
            fill(place, stream, self.next, self.next + count)
        self.next += count

    @rule(name=names)
    def assigned(self, name: str) -> None:
        ours, theirs = self.both(name, lambda one: one.assigned())
        assert ours == theirs

    @rule(name=names, stream=streams)
    def release(self, name: str, stream: str) -> None:
        self.both(name, lambda one: one.release(stream))

    @rule(name=names)
    def expire(self, name: str) -> None:
        for place in self.places:
            place.expire(name)

    @rule(name=names, stream=streams)
    def read(self, name: str, stream: str) -> None:
        """The server may stop in front of what was never read; what it gives is the same."""
        found: list[list[int] | None] = []
        for place, one in zip(self.places, self.consumers[name], strict=True):
            found.append(None)
            with suppress(StreamLostError):
                entries = place.do(one.read(stream))
                found[-1] = numbers(entries)
                self.got[name, stream] = list(entries)
        memory, server = found
        if memory is None or server is None:
            assert memory == server
        else:
            assert server == memory[: len(server)]
            assert bool(server) == bool(memory)

    @rule(name=names, stream=streams, some=st.sets(st.integers(0, BATCH - 1)))
    def acknowledge(self, name: str, stream: str, some: set[int]) -> None:
        """Also by one whose stream is another's by now."""
        entries = self.got.get((name, stream), [])
        offsets = [entries[at].offset for at in some if at < len(entries)]
        self.both(name, lambda one: one.acknowledge(stream, offsets))

    @rule(name=names, stream=streams)
    def reject(self, name: str, stream: str) -> None:
        entries = self.got.get((name, stream), [])
        if entries and entries[0].offset not in self.done:
            self.done.add(entries[0].offset)
            self.both(name, lambda one: one.reject(entries[0], "no"))
            assert self.places[0].dead() == self.places[1].dead()

    @rule()
    def lag(self) -> None:
        memory, server = self.both("one", lambda one: one.lag())
        assert [one.entries for one in memory] == [one.entries for one in server]


def test_random_lives(empty_redis: str) -> None:
    class Random(Machine):
        url = empty_redis

    run_state_machine_as_test(
        Random,
        settings=settings(
            max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_offsets_as_text() -> None:
    for offset in (0, 1, STEP, 17 * STEP + 3, (1 << 128) - 1):
        assert parse_offset(format_offset(offset)) == offset
    assert parse_offset("7") == 7 * STEP
    for text in ("", "-", "1-", "-1", "1-2-3", "a", "٣", str(1 << 64), "1" * 21):
        with pytest.raises(RequestError, match="offsets"):
            parse_offset(text)


def test_a_users_shard_is_always_the_same() -> None:
    streams = [f"events:{at}" for at in range(4)]
    assert [shard_of(f"u{at}", streams) for at in range(6)] == [
        shard_of(f"u{at}", streams) for at in range(6)
    ]
    spread = [sum(shard_of(f"u{at}", streams) == one for at in range(4000)) for one in streams]
    assert min(spread) > 800


def test_closing_is_part_of_the_places() -> None:
    with closing(MemoryPlace(["s"])) as there:
        assert there.do(there.open("one").assigned()) == {"s"}
