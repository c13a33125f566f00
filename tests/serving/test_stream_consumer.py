"""The consumer over streams in memory: order, refusals, pauses, and what is shown of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from stream_running import SETTINGS, Running, Waiting, running
from stream_sinks import ListSink, fields

from relaygr.config.stream import StreamConfig
from relaygr.core.errors import BackendError, DeadlineError, NotReadyError, OverloadError
from relaygr.serving.errors import HttpError
from relaygr.serving.stream.apply import Applier, pause_s
from relaygr.serving.stream.consumer import Consumer
from relaygr.serving.stream.counts import Counts, StreamMetrics


def test_each_users_events_are_appended_in_order() -> None:
    async def run() -> None:
        async with running() as there:
            for number in range(200):
                user = f"u{number % 7}"
                there.broker.add("a" if number % 7 < 4 else "b", fields(user, number))
            await there.settled()
            for at in range(7):
                assert there.sink.of(f"u{at}") == list(range(at, 200, 7))
            assert there.counts.status().applied == 200
            assert there.sink.most_busy <= 2 * SETTINGS.appends_max
            assert max(map(len, there.sink.appends)) > 1  # what comes together is one append

    asyncio.run(run())


def test_what_is_wrong_is_put_aside_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running(ListSink(refuses=[3])) as there:
            there.broker.add("a", {"user": b"u", "item": b"secret"})
            for number in range(1, 6):
                there.broker.add("a", fields("u", number))
            there.broker.add("a", fields("v", 9, timestamp=b"never"))
            await there.settled()
            assert there.sink.of("u") == [1, 2, 4, 5]
            reasons = [reason for _, reason in there.broker.dead]
            assert sorted(reasons) == [
                "stream a, entry 0-1: timestamp: is missing",
                "stream a, entry 0-4: items: 3 is nothing",
                "stream a, entry 0-7: timestamp: 'never' is no whole number of 64 bits",
            ]
            status = there.counts.status()
            assert (status.dead, status.applied) == (3, 4)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "stream a, entry 0-4: field items is wrong, see relaygr:dead" in caplog.text
    assert "secret" not in caplog.text
    assert "never" not in caplog.text


def test_only_tenants_with_a_key_where_there_are_keys() -> None:
    async def run() -> None:
        async with running(tenants=frozenset(["shop"])) as there:
            there.broker.add("a", fields("u", 1))
            there.broker.add("a", fields("u", 2, tenant=b"shop"))
            await there.settled()
            assert there.sink.taken == [("shop", "u", 2)]
            assert there.broker.dead[0][1].endswith("tenant: 'default' has no key in serving.keys")

    asyncio.run(run())


def test_an_event_with_a_key_is_an_append_of_its_own() -> None:
    async def run() -> None:
        there = Running(ListSink())
        for number in range(6):
            more = {"key": b"k%d" % number} if number in (2, 3) else {}
            there.broker.add("a", fields("u", number, **more))
        there.consumer.start()
        await there.settled()
        await there.consumer.stop(1.0)
        assert there.sink.appends == [(0, 1), (2,), (3,), (4, 5)]

    asyncio.run(run())


@pytest.mark.parametrize(
    "error",
    [
        OverloadError("busy", 1.0), NotReadyError("starting"), BackendError("full"), DeadlineError("late"),
        HttpError(502, "instance_lost", "gone"), HttpError(401, "key_unknown", "no"),
    ],
)  # fmt: skip
def test_what_cannot_be_appended_now_is_tried_again(error: Exception) -> None:
    async def run() -> None:
        async with running(ListSink(answers=[error] * 3)) as there:  # type: ignore[list-item]
            for number in range(5):
                there.broker.add("a", fields("u", number))
            await there.settled()
            assert there.sink.of("u") == [0, 1, 2, 3, 4]
            assert (there.counts.status().retries, there.counts.waiting, there.broker.dead) == (3, 0, [])

    asyncio.run(run())


def test_a_conflict_of_keys_is_put_aside() -> None:
    async def run() -> None:
        conflict = HttpError(409, "key_conflict", "key: 'k' was used for other events", field="key")
        async with running(ListSink(answers=[conflict])) as there:
            there.broker.add("a", fields("u", 1, key=b"k"))
            await there.settled()
            assert [reason for _, reason in there.broker.dead] == [
                "stream a, entry 0-1: key: 'k' was used for other events"
            ]

    asyncio.run(run())


def test_nothing_more_is_read_while_appends_wait() -> None:
    async def run() -> None:
        sink = ListSink()
        sink.open.clear()
        async with running(sink) as there:
            for number in range(1000):
                there.broker.add("a", fields(f"u{number % 50}", number))
            await there.until(lambda: sink.busy == SETTINGS.appends_max)
            await asyncio.sleep(0.05)
            assert there.counts.read["a"] == SETTINGS.batch
            assert there.left == 1000
            sink.open.set()
            await there.settled()
            assert len(sink.taken) == 1000

    asyncio.run(run())


def test_one_streams_pause_is_not_the_others() -> None:
    async def run() -> None:
        class Picky(ListSink):
            async def append(self, tenant: str, body: Any) -> Any:
                if body.user == "blocked" and self.blocking:
                    raise BackendError("damaged")
                return await super().append(tenant, body)

        sink = Picky()
        sink.blocking = True  # type: ignore[attr-defined]
        async with running(sink) as there:
            for number in range(20):
                there.broker.add("a", fields("blocked" if number == 3 else "u", number))
                there.broker.add("b", fields("v", number))
            await there.until(lambda: len(sink.of("v")) == 20)
            await there.until(lambda: there.counts.status().state == "waiting")
            assert len(sink.of("u")) < 20
            sink.blocking = False  # type: ignore[attr-defined]
            await there.settled()
            assert sink.of("u") == [number for number in range(20) if number != 3]
            assert there.counts.status().state == "reading"

    asyncio.run(run())


def test_a_server_that_goes_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(Waiting, "failures", 5)
        async with running() as there:
            there.broker.add("a", fields("u", 1))
            await there.settled()
            assert there.counts.reconnects == 5

    asyncio.run(run())


def test_stopping_finishes_what_was_read_and_leaves_the_streams() -> None:
    async def run() -> None:
        sink = ListSink()
        sink.open.clear()
        there = Running(sink)
        for number in range(20):
            there.broker.add("a", fields("u", number))
        there.consumer.start()
        await there.until(lambda: sink.busy == 1)
        stopping = asyncio.create_task(there.consumer.stop(10.0))
        await asyncio.sleep(0.01)
        sink.open.set()
        await stopping
        assert sink.of("u") == list(range(SETTINGS.batch))
        assert there.left == 20 - SETTINGS.batch
        assert there.broker.owner("a") is None
        assert there.counts.status().state == "stopped"

    asyncio.run(run())


def test_stopping_does_not_wait_for_ever() -> None:
    async def run() -> None:
        sink = ListSink()
        sink.open.clear()
        there = Running(sink)
        there.broker.add("a", fields("u", 1))
        there.consumer.start()
        await there.until(lambda: sink.busy == 1)
        await there.consumer.stop(0.01)
        assert (sink.taken, there.left) == ([], 1)

    asyncio.run(run())


def test_an_unforeseen_error_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running(ListSink(answers=[ZeroDivisionError()])) as there:  # type: ignore[list-item]
            there.broker.add("a", fields("u", 1))
            await there.settled()
            assert there.sink.of("u") == [1]

    asyncio.run(run())
    assert "stream a: failed with ZeroDivisionError" in caplog.text


def test_a_second_consumer_gets_its_share() -> None:
    async def run() -> None:
        async with running() as there:
            await there.until(lambda: len(there.counts.assigned) == 2)
            counts, sink = Counts(SETTINGS.streams), ListSink()
            stream = Waiting(there.broker, "two", SETTINGS.batch)
            other = Consumer(stream, Applier(stream, sink, SETTINGS, counts), SETTINGS)
            other.start()
            await there.until(lambda: len(there.counts.assigned) == len(counts.assigned) == 1)
            for number in range(20):
                there.broker.add("a", fields("u", number))
                there.broker.add("b", fields("v", number))
            await there.settled()
            taken = {(one, user) for one in (0, 1) for _, user, _ in (there.sink, sink)[one].taken}
            assert len(taken) == 2
            await other.stop(1.0)
            await there.until(lambda: len(there.counts.assigned) == 2)

    asyncio.run(run())


def test_metrics_and_lag() -> None:
    async def run() -> None:
        async with running(ListSink(refuses=[1])) as there:
            registry = CollectorRegistry()
            registry.register(StreamMetrics(there.counts))
            for number in range(3):
                there.broker.add("a", fields("u", number))
            await there.until(lambda: bool(there.counts.lag) and not there.left)

            def value(name: str, **labels: str) -> float | None:
                return registry.get_sample_value(f"relaygr_stream_{name}", labels)

            assert value("entries_total", stream="a", result="applied") == 2
            assert value("entries_total", stream="a", result="dead") == 1
            assert value("entries_total", stream="b", result="duplicate") == 0
            assert value("read_total", stream="a") == 3
            assert value("assigned", stream="b") == 1
            assert value("lag_entries", stream="b") == 0
            assert value("reconnects_total") == value("retries_total") == value("waiting") == 0

    asyncio.run(run())


def test_pauses_double_up_to_the_longest_and_heed_who_asks_for_time() -> None:
    settings = StreamConfig(retry_ms=100, retry_max_ms=1000)
    for tries, longest in ((0, 0.1), (1, 0.2), (3, 0.8), (9, 1.0), (10_000, 1.0)):
        assert longest / 2 <= pause_s(settings, tries, BackendError("x")) <= longest
    assert pause_s(settings, 1, OverloadError("x", 700.0)) == pytest.approx(0.7)
    assert pause_s(settings, 1, OverloadError("x", 1e9)) <= 1.0
