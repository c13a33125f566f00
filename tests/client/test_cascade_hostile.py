"""Signals that hang, fail, break or lie: what is ranked, and when, stays the same."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from cascade_ask import AsyncNoting, Noting, after_signal
from cascade_server import (
    FOUND,
    SIGNAL,
    Reply,
    Seen,
    StubServer,
    answering,
    hanging,
    http,
    ranked,
    ranking,
    raw,
    refusing,
    resetting,
    run,
)

from relaygr.client import (
    Admission,
    AsyncClient,
    BadAnswerError,
    Cascade,
    Client,
    ClientError,
    DeadlineExceededError,
    Door,
    OverloadedError,
    Recommendation,
    RequestRejectedError,
    RetryPolicy,
    SyncCascade,
    UnavailableError,
)

PATIENT = RetryPolicy(base_ms=1.0, cap_ms=2.0)


def ask(asynchronous: bool, door: Door, retrieve: Any, users: int = 1) -> list[Recommendation]:
    """A request of each user: all at once, or one after another in a thread."""
    if not asynchronous:
        with Noting(door) as client:
            own = client.after_signal if retrieve is after_signal else retrieve
            with SyncCascade(client, retrieve=own) as cascade:
                return [cascade.recommend(f"u{number}") for number in range(users)]

    async def main() -> list[Recommendation]:
        async with AsyncNoting(door) as client:
            own = client.after_signal if retrieve is after_signal else retrieve
            cascade = Cascade(client, retrieve=own)
            return list(await asyncio.gather(*(cascade.recommend(f"u{number}") for number in range(users))))

    return run(main)


async def trickling(seen: Seen) -> bytes:
    """An answer that is longer than what comes of it."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{"


HOSTILE: dict[str, Reply] = {
    "hangs": hanging,
    "trickles": trickling,
    "resets": resetting,
    "fails": refusing(500, "backend"),
    "is busy": refusing(503, "overload", retry_after_ms=60_000.0),
    "is not ready": answering({}, 503),
    "rejects": refusing(422, "request"),
    "counts": refusing(429, "tenant_busy", retry_after_ms=7.0),
    "gives up": refusing(504, "deadline"),
    "redirects": answering({}, 302, {"location": "/"}),
    "is no HTTP": raw(b"220 mail.example ready\r\n\r\n"),
    "is no JSON": raw(http(200, b'{"user": "u"')),
    "is no text": raw(http(200, b'{"user": "\xff"}')),
    "is something else": answering([1, 2]),
    "has wrong types": answering({**SIGNAL, "tokens": "many"}),
    "has a wrong owner": answering({**SIGNAL, "owner": 5}),
    "cannot be unpacked": raw(http(200, b"abcd", {"content-encoding": "gzip"})),
    "is endless": raw(http(200, b" " * 300_000)),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_signal_changes_nothing(hostile: str, asynchronous: bool) -> None:
    with StubServer(signal=HOSTILE[hostile]) as server:
        door = Door(server.url, retries=PATIENT, answer_bytes=100_000, timeout_ms=700)
        (answer,) = ask(asynchronous, door, arrived(server))
        assert answer.items == [9, 4, 3]
        assert len(server.ranks) == 1
        assert "x-relay-owner" not in server.ranks[0].headers
    assert answer.signal.admission in (Admission.FAILED, Admission.UNANSWERED)
    assert (answer.signal.error is None) == (answer.signal.admission is Admission.UNANSWERED)


def arrived(server: StubServer) -> Any:
    """Retrieval that ends some time after the signal has arrived."""

    def retrieve(user: str, request: Any) -> list[int]:
        while not server.signals:
            time.sleep(0.002)
        time.sleep(0.03)
        return FOUND

    return retrieve


@pytest.mark.parametrize(
    ("hostile", "kind"),
    [
        ("fails", BadAnswerError),
        ("is no JSON", BadAnswerError),
        ("resets", UnavailableError),
        ("is busy", OverloadedError),
        ("counts", OverloadedError),
        ("rejects", RequestRejectedError),
        ("gives up", DeadlineExceededError),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_an_answer_says_what_became_of_its_signal(
    hostile: str, kind: type[ClientError], asynchronous: bool
) -> None:
    with StubServer(signal=HOSTILE[hostile]) as server:
        door = Door(server.url, retries=replace(PATIENT, attempts=1))
        (answer,) = ask(asynchronous, door, after_signal)
    assert answer.signal.admission is Admission.FAILED
    assert type(answer.signal.error) is kind
    assert answer.signal.reason == kind.__name__
    assert answer.signal.answer is None


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_signal_that_is_answered_after_ranking(asynchronous: bool) -> None:
    """Ranking arrives while the client still waits for the answer to the signal."""
    ended: list[bool] = []
    ranked_now = asyncio.Event()

    async def signal(seen: Seen) -> bytes:
        await ranked_now.wait()
        await asyncio.sleep(0.05)
        return http(200, msgspec.json.encode(SIGNAL))

    async def rank(seen: Seen) -> bytes:
        (sent,) = server.signals
        ended.append(sent.answered or sent.left)
        ranked_now.set()
        return await ranking(seen)

    with StubServer(signal=signal, rank=rank) as server:
        (answer,) = ask(asynchronous, Door(server.url), arrived(server))
    assert answer.items == [9, 4, 3]
    assert ended == [False]
    assert answer.signal.admission is Admission.UNANSWERED


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_nobody_listens_to_signals_nor_to_ranking(asynchronous: bool) -> None:
    with StubServer(signal=resetting, rank=resetting) as server, pytest.raises(UnavailableError):
        ask(asynchronous, Door(server.url, retries=PATIENT), lambda *given: FOUND)


def test_the_signal_is_sent_beside_retrieval() -> None:
    """Retrieval begins before the signal is sent, and need not end for it to arrive."""
    with StubServer(signal=hanging) as server:

        async def retrieve(user: str, request: Any) -> list[int]:
            assert server.seen == []
            while not server.signals:
                await asyncio.sleep(0.001)
            return FOUND

        (answer,) = ask(True, Door(server.url), retrieve)
    assert answer.items == [9, 4, 3]
    assert answer.signal.admission is Admission.UNANSWERED


def test_a_signal_without_an_answer_is_given_up_with_the_request() -> None:
    with StubServer(signal=hanging) as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                await Cascade(client, retrieve=arrived(server)).recommend("u")
                while not server.signals[0].left:
                    await asyncio.sleep(0.001)

        run(main)


def test_hanging_signals_take_no_connections_from_ranking() -> None:
    with StubServer(signal=hanging) as server:
        answers = ask(True, Door(server.url, connections=4, timeout_ms=8000), lambda *given: FOUND, users=100)
        assert [answer.items for answer in answers] == [[9, 4, 3]] * 100
        assert all(answer.signal.admission is Admission.UNANSWERED for answer in answers)
        assert len(server.ranks) == 100


def test_hanging_signals_are_bounded_for_threads() -> None:
    with StubServer(signal=hanging) as server, Client(Door(server.url, timeout_ms=500)) as client:
        with SyncCascade(client, retrieve=lambda *given: FOUND, signals=4) as cascade:
            answers = [cascade.recommend(f"u{number}") for number in range(30)]
        assert [answer.items for answer in answers] == [[9, 4, 3]] * 30
        crowded = [answer for answer in answers if answer.signal.reason == "crowded"]
        assert len(crowded) + len(server.signals) == 30
        assert cascade.signals[Admission.NOT_SENT] == len(crowded) >= 20
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("relaygr-signal")]
        # Closed, it still ranks.
        assert cascade.recommend("later").signal.reason == "disabled"


def test_one_hundred_hostile_requests_at_once() -> None:
    """Every kind of signal, mixed; and one ranking in ten that fails is one failed answer in ten."""
    kinds = list(HOSTILE.values())

    async def signal(seen: Seen) -> bytes | None:
        return await kinds[int(seen.body["user"][1:]) % len(kinds)](seen)

    async def rank(seen: Seen) -> bytes | None:
        if int(seen.body["user"][1:]) % 10 == 0:
            return http(500, b"{}")
        return await ranking(seen)

    with StubServer(signal=signal, rank=rank) as server:
        door = Door(server.url, retries=PATIENT, answer_bytes=100_000)

        async def main() -> None:
            async with AsyncClient(door) as client:
                cascade = Cascade(client, retrieve=lambda user, request: [request, request + 1])
                asked = (cascade.recommend(f"u{number}", number) for number in range(100))
                answers = await asyncio.gather(*asked, return_exceptions=True)
                for number, answer in enumerate(answers):
                    if number % 10 == 0:
                        assert isinstance(answer, BadAnswerError)
                    else:
                        assert isinstance(answer, Recommendation)
                        assert answer.items == [number + 1, number]
                assert sum(cascade.signals.values()) == 100

        run(main)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "answer",
    [
        ranked(2, [0, 1]),
        ranked(3, None),
        ranked(3, [0, 3]),
        ranked(3, [-1]),
        ranked(3, [1, 1]),
        {**ranked(3, [0]), "scores": [["high"]] * 3},
        {},
    ],
)
def test_a_ranking_of_something_else(asynchronous: bool, answer: dict[str, Any]) -> None:
    with StubServer(rank=answering(answer)) as server, pytest.raises(BadAnswerError):
        ask(asynchronous, Door(server.url), lambda *given: FOUND)


def test_a_client_that_is_closed_ranks_nothing_and_leaves_nothing() -> None:
    with StubServer() as server:

        async def main() -> None:
            client = AsyncClient(server.url)
            await client.close()
            with pytest.raises(RuntimeError, match="closed"):
                await Cascade(client, retrieve=lambda *given: FOUND).recommend("u")

        run(main)
