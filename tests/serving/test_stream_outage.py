"""What is shown of a stream while its server gives no answer: nothing that is only remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from stream_running import SETTINGS, Waiting, running
from stream_sinks import fields

from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError, OverloadError
from relaygr.data.streams import Lag
from relaygr.serving.stream.counts import Counts, StreamMetrics, Told


def metrics(counts: Counts) -> Any:
    registry = CollectorRegistry()
    registry.register(StreamMetrics(counts))
    return lambda name, **labels: registry.get_sample_value(f"relaygr_stream_{name}", labels)


def test_an_answer_grows_old() -> None:
    clock = ManualClock(100.0)
    counts = Counts(("a", "b"), state="reading", clock=clock)
    value = metrics(counts)
    clock.advance(7.0)
    assert (counts.status().lag_entries, counts.status().lag_s) == (None, None)
    assert value("unanswered_seconds", stream="a") == 7.0
    assert value("lag_seconds", stream="a") is None
    for name, seconds in (("a", 2.0), ("b", 0.0)):
        counts.lag[name] = Told(Lag(name, 3, seconds, 1), clock.now_s(), clock.now_s() + 15.0)
    counts.leases = {"a": clock.now_s() + 10.0}
    clock.advance(9.0)
    assert (counts.status().lag_entries, counts.status().lag_s, counts.status().streams) == (6, 2.0, 1)
    clock.advance(31.0)
    status = counts.status()
    assert (status.lag_entries, status.lag_s, status.streams, status.trimmed) == (None, 42.0, 0, 2)
    assert [value("lag_seconds", stream=name) for name in "ab"] == [42.0, 40.0]
    assert value("lag_entries", stream="a") is None
    assert value("unanswered_seconds", stream="a") == 40.0
    assert value("assigned", stream="a") == 0.0
    assert value("trimmed_total", stream="a") == 1.0


def test_a_server_that_is_away_has_no_lag_and_leaves_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: Waiting, *_: Any) -> Any:
        await asyncio.sleep(0.001)
        raise OverloadError("away", 1.0)

    async def run() -> None:
        async with running() as there:
            counts = there.counts
            await there.until(lambda: counts.status().lag_entries == 0)
            assert counts.status().streams == 2
            with monkeypatch.context() as patch:
                for name in ("assigned", "read", "lag"):
                    patch.setattr(Waiting, name, away)
                await there.until(lambda: not counts.assigned)
                await there.until(lambda: counts.status().lag_entries is None)
                status = counts.status()
                assert status.state == "unreachable"
                assert status.lag_s is not None
                assert status.lag_s >= SETTINGS.claim_idle_ms / 1000
            there.broker.add("a", fields("u", 1))
            await there.settled()
            await there.until(lambda: counts.status().lag_entries == 0)
            assert (counts.status().state, counts.status().streams) == ("reading", 2)

    asyncio.run(run())


def test_one_stream_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real_read, real_lag = Waiting.read, Waiting.lag

    async def read(self: Waiting, stream: str) -> Any:
        if stream == "a":
            raise BackendError("a: WRONGTYPE")
        return await real_read(self, stream)

    async def lag(self: Waiting) -> Any:
        return tuple(one for one in await real_lag(self) if one.stream != "a")

    async def run() -> None:
        async with running() as there:
            with monkeypatch.context() as patch:
                patch.setattr(Waiting, "read", read)
                patch.setattr(Waiting, "lag", lag)
                there.broker.add("b", fields("u", 1))
                await there.until(lambda: there.counts.status().state == "failing")
                await there.until(lambda: there.sink.of("u") == [1])
                assert there.counts.status().lag_entries is None
            there.broker.add("a", fields("u", 2))
            await there.settled()
            await there.until(lambda: there.counts.status().state == "reading")

    asyncio.run(run())
