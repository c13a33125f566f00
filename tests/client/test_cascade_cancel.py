"""A request that is cancelled, or late, at any stage takes everything with it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from cascade_server import FOUND, Seen, StubServer, hanging, ranking, run

from relaygr.client import Admission, AsyncClient, Cascade, DeadlineExceededError, PrefixSignal


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stage", ["retrieve", "preprocess", "rank"])
def test_cancelled_in_a_stage(stage: str) -> None:
    cancelled = []
    reached = asyncio.Event()

    async def endless(*given: Any) -> list[int]:
        reached.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(stage)
            raise
        return FOUND

    async def found(*given: Any) -> list[int]:
        return FOUND

    stages = {name: endless if name == stage else found for name in ("retrieve", "preprocess")}
    with StubServer(signal=hanging, rank=hanging) as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, **stages)  # type: ignore[arg-type]
                task = asyncio.create_task(cascade.recommend("u"))
                await until(lambda: server.signals)
                await until(lambda: server.ranks if stage == "rank" else reached.is_set())
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                # Both connections are closed, which tells the server.
                await until(lambda: all(seen.left for seen in server.seen))
                assert cascade.signals[Admission.UNANSWERED] == 1

        run(main)
        assert len(server.ranks) == (1 if stage == "rank" else 0)
    assert cancelled == ([] if stage == "rank" else [stage])


def test_cancelled_before_it_began() -> None:
    with StubServer() as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                task = asyncio.create_task(Cascade(client, retrieve=lambda *given: FOUND).recommend("u"))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        run(main)
        assert server.seen == []


def test_cancelled_while_a_thread_retrieves() -> None:
    """The thread goes on to its end; what it finds, or raises, is nobody's."""
    release, ended = threading.Event(), threading.Event()

    def retrieve(user: str, request: Any) -> list[int]:
        release.wait(10)
        ended.set()
        raise ValueError("too late")

    with StubServer(signal=hanging) as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                task = asyncio.create_task(Cascade(client, retrieve=retrieve).recommend("u"))
                await until(lambda: server.signals)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not ended.is_set()
                release.set()
                await until(ended.is_set)
                await until(lambda: server.signals[0].left)

        run(main)


def test_cancelled_twice() -> None:
    with StubServer(signal=hanging) as server:

        async def main() -> None:
            async def retrieve(user: str, request: Any) -> list[int]:
                await asyncio.sleep(3600)
                return FOUND

            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, retrieve=retrieve)
                task = asyncio.create_task(cascade.recommend("u"))
                await until(lambda: server.signals)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: server.signals[0].left)
                assert sum(cascade.signals.values()) == 1

        run(main)


class Stubborn(AsyncClient):
    """Its signal takes some time to let go, and then fails."""

    async def prefix(self, *arguments: Any, **options: Any) -> PrefixSignal:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise ValueError("while letting go") from None
        raise AssertionError


@pytest.mark.parametrize("times", [1, 2])
def test_nobody_complains_about_a_signal_that_fails_while_it_lets_go(times: int) -> None:
    async def main() -> None:
        async def retrieve(user: str, request: Any) -> list[int]:
            await asyncio.sleep(3600)
            return FOUND

        async with Stubborn("http://127.0.0.1:9") as client:
            cascade = Cascade(client, retrieve=retrieve)
            task = asyncio.create_task(cascade.recommend("u"))
            await asyncio.sleep(0.01)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert cascade.signals[Admission.FAILED if times == 1 else Admission.UNANSWERED] == 1

    run(main)


@pytest.mark.parametrize("stage", ["retrieve", "preprocess"])
def test_a_stage_that_raises_takes_the_signal_with_it(stage: str) -> None:
    with StubServer(signal=hanging) as server:

        async def raising(*given: Any) -> list[int]:
            await until(lambda: server.signals)
            raise KeyError("mine")

        async def found(*given: Any) -> list[int]:
            return FOUND

        stages = {name: raising if name == stage else found for name in ("retrieve", "preprocess")}

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, **stages)  # type: ignore[arg-type]
                with pytest.raises(KeyError, match="mine"):
                    await cascade.recommend("u")
                assert len(asyncio.all_tasks()) == 1  # awaited, not only cancelled
                await until(lambda: server.signals[0].left)

        run(main)


@pytest.mark.parametrize("stage", ["retrieve", "preprocess", "rank"])
def test_late_in_a_stage(stage: str) -> None:
    async def endless(*given: Any) -> list[int]:
        await asyncio.sleep(3600)
        return FOUND

    async def found(*given: Any) -> list[int]:
        return FOUND

    stages = {name: endless if name == stage else found for name in ("retrieve", "preprocess")}
    with StubServer(signal=hanging, rank=hanging) as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, deadline_ms=150, **stages)  # type: ignore[arg-type]
                start_s = time.monotonic()
                with pytest.raises(DeadlineExceededError) as caught:
                    await cascade.recommend("u", request_id="mine")
                assert 0.14 < time.monotonic() - start_s < 5
                assert caught.value.request_id == "mine"
                await until(lambda: all(seen.left for seen in server.seen))

        run(main)


def test_the_block_of_a_lap_is_cancelled_at_the_deadline() -> None:
    with StubServer() as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                with pytest.raises(DeadlineExceededError, match="before ranking"):
                    async with Cascade(client, deadline_ms=80).lap("u"):
                        await asyncio.sleep(3600)

        run(main)


def test_a_lap_whose_block_raises() -> None:
    with StubServer(signal=hanging) as server:

        async def raising(client: AsyncClient) -> None:
            async with Cascade(client).lap("u"):
                await until(lambda: server.signals)
                raise StopAsyncIteration

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                with pytest.raises(StopAsyncIteration):
                    await raising(client)
                await until(lambda: server.signals[0].left)

        run(main)


@pytest.mark.parametrize("seed", range(4))
def test_one_hundred_requests_cancelled_at_any_moment(seed: int) -> None:
    """Some are; the others get their own answer. Afterwards the client serves as before."""
    rng = random.Random(seed)

    async def late(seen: Seen) -> bytes:
        await asyncio.sleep(rng.random() * 0.05)
        return await ranking(seen)

    async def slow(user: str, request: int, *found: Any) -> list[int]:
        await asyncio.sleep(rng.random() * 0.05)
        return [request, request + 1]

    with StubServer(signal=late, rank=late) as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, retrieve=slow, preprocess=slow)
                tasks = [asyncio.create_task(cascade.recommend(f"u{n}", n)) for n in range(100)]
                for task in rng.sample(tasks, 60):
                    await asyncio.sleep(rng.random() * 0.004)
                    task.cancel()
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                for number, answer in enumerate(answers):
                    if not isinstance(answer, asyncio.CancelledError):
                        assert answer.items == [number + 1, number]  # type: ignore[union-attr]
                assert sum(not isinstance(answer, asyncio.CancelledError) for answer in answers) >= 40
                again = await asyncio.gather(*(cascade.recommend(f"u{n}", n) for n in range(20)))
                assert [answer.items for answer in again] == [[n + 1, n] for n in range(20)]

        run(main)
