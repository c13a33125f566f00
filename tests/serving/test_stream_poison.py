"""Entries that nobody foresaw stop no others; a server that cannot take a dead letter loses nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from stream_running import running
from stream_sinks import ListSink, fields

from relaygr.core.errors import BackendError
from relaygr.data.streams import Entry
from relaygr.data.streams.memory import MemoryStream
from relaygr.serving.stream import apply

BAD_NAME = b"\xff\xfeuser".decode(errors="surrogateescape")


def test_a_name_that_is_no_text_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running() as there:
            there.broker.add("a", {BAD_NAME: b"u", "item": b"1"})
            there.broker.add("a", fields("u", 2))
            await there.settled()
            assert there.sink.of("u") == [2]
            ((_, reason),) = there.broker.dead
            assert reason.startswith(r"stream a, entry 0-1: \xff\xfeuser: is none of")

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert r"field \xff\xfeuser is wrong" in caplog.text


def test_an_entry_that_nobody_understands_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    real = apply.event_of

    def event_of(entry: Entry) -> Any:
        if entry.fields["item"] == b"2":
            raise ZeroDivisionError("what is this?")
        return real(entry)

    monkeypatch.setattr(apply, "event_of", event_of)

    async def run() -> None:
        async with running() as there:
            for number in (1, 2, 3):
                there.broker.add("a", fields("u", number))
            await there.settled()
            assert there.sink.of("u") == [1, 3]
            ((entry, reason),) = there.broker.dead
            assert entry.fields["item"] == b"2"
            assert "entry: not understood: ZeroDivisionError('what is this?')" in reason
            assert there.counts.status().dead == 1

    asyncio.run(run())


def test_an_entry_that_cannot_be_kept_is_put_aside_without_its_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = MemoryStream.reject

    async def reject(self: MemoryStream, entry: Entry, reason: str) -> None:
        if entry.fields:
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "no")
        await real(self, entry, reason)

    monkeypatch.setattr(MemoryStream, "reject", reject)

    async def run() -> None:
        async with running(ListSink(refuses=[3])) as there:
            there.broker.add("a", {"item": b"1"})
            for number in (2, 3, 4):
                there.broker.add("a", fields("u", number))
            await there.settled()
            assert there.sink.of("u") == [2, 4]
            reasons = [reason for _, reason in there.broker.dead]
            assert reasons == [f"stream a, entry 0-{at}: cannot be kept: UnicodeEncodeError" for at in (1, 3)]

    asyncio.run(run())


def test_while_dead_letters_cannot_be_stored_nothing_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = MemoryStream.reject, [5]

    async def reject(self: MemoryStream, entry: Entry, reason: str) -> None:
        if failures[0]:
            failures[0] -= 1
            assert len(self._broker.shards["a"].entries) == 2
            raise BackendError("full")
        await real(self, entry, reason)

    monkeypatch.setattr(MemoryStream, "reject", reject)

    async def run() -> None:
        async with running() as there:
            there.broker.add("a", {"item": b"1"})
            there.broker.add("a", fields("u", 2))
            await there.settled()
            assert there.sink.of("u") == [2]
            assert ([len(there.broker.dead), there.counts.reconnects], failures) == ([1, 5], [0])

    asyncio.run(run())
