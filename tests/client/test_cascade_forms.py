"""Laps, many users at once, and the kinds of functions that a stage can be."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cascade_ask import Both, found
from cascade_server import (
    FOUND,
    StubServer,
    run,
)

from relaygr.client import (
    AsyncClient,
    Cascade,
    Client,
    RequestRejectedError,
    SyncCascade,
)


def test_one_hundred_users_at_once() -> None:
    with StubServer() as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, retrieve=lambda user, request: [request, request + 1])
                asked = [cascade.recommend(f"u{number}", number) for number in range(100)]
                answers = await asyncio.gather(*asked)
                for number, answer in enumerate(answers):
                    assert (answer.user, answer.items) == (f"u{number}", [number + 1, number])
                    assert answer.ranking is not None
                    assert answer.ranking.user == answer.user
                assert sum(cascade.signals.values()) == 100

        run(main)


def test_one_hundred_users_of_sixteen_threads() -> None:
    with StubServer() as server, Client(server.url) as client, ThreadPoolExecutor(16) as threads:
        with SyncCascade(client, retrieve=lambda user, request: [request, request + 1]) as cascade:
            answers = list(threads.map(lambda n: cascade.recommend(f"u{n}", n), range(100)))
        for number, answer in enumerate(answers):
            assert (answer.user, answer.items) == (f"u{number}", [number + 1, number])
        assert sum(cascade.signals.values()) == 100


def test_the_lap_of_a_pipeline_of_its_own() -> None:
    with StubServer() as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client:
                cascade = Cascade(client, deadline_ms=9000)
                async with cascade.lap("u") as lap:
                    assert lap.timings.lead_ms is None
                    ranking = await lap.rank(FOUND, top_k=1)
                assert ranking.order == [1]
                assert lap.timings.retrieve_ms is None
                assert lap.timings.rank_ms is not None
                assert lap.timings == lap.timings  # the clock stands
                with pytest.raises(RequestRejectedError, match="retrieve"):
                    await cascade.recommend("u")

        run(main)
        with Client(server.url) as client, SyncCascade(client) as cascade:
            with cascade.lap("u") as lap:
                assert lap.rank(FOUND, top_k=1).order == [1]
            assert lap.timings == lap.timings
            with pytest.raises(RequestRejectedError, match="retrieve"):
                cascade.recommend("u")


def test_a_lap_may_rank_twice() -> None:
    with StubServer() as server:

        async def main() -> None:
            async with AsyncClient(server.url) as client, Cascade(client).lap("u") as lap:
                await lap.rank([1])
                first = lap.timings
                await lap.rank([2])
                assert lap.timings.lead_ms == first.lead_ms
                assert (lap.timings.rank_ms or 0) > (first.rank_ms or 0)

        run(main)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": float("nan")}, "deadline_ms"),
        ({"budget_ms": -1}, "budget_ms"),
        ({"candidates": 1.5}, "candidates"),
    ],
)
def test_settings_are_checked(both: Both, options: dict[str, Any], field: str) -> None:
    with StubServer() as server, pytest.raises(RequestRejectedError) as caught:
        both(server, retrieve=found, **options)
    assert caught.value.field == field


class Retriever:
    """A callable with a coroutine as its call."""

    async def __call__(self, user: str, request: Any) -> list[int]:
        assert threading.current_thread() is threading.main_thread()
        return FOUND


async def coroutine(user: str, request: Any) -> list[int]:
    await asyncio.sleep(0)
    return FOUND


@pytest.mark.parametrize("retrieve", [coroutine, Retriever(), lambda user, request: coroutine(user, request)])
def test_kinds_of_coroutines(retrieve: Any) -> None:
    with StubServer() as server:
        (answer,) = Both(True)(server, ("u", 0), retrieve=retrieve)
    assert answer.items == [9, 4, 3]


def test_plain_functions_run_in_a_thread_with_the_context_of_the_caller() -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="")
    found_in: list[tuple[str, str]] = []

    def retrieve(user: str, request: Any) -> list[int]:
        found_in.append((threading.current_thread().name, mark.get()))
        return FOUND

    with StubServer() as server, ThreadPoolExecutor(1, "mine") as threads:

        async def main() -> None:
            mark.set("set")
            async with AsyncClient(server.url) as client:
                await Cascade(client, retrieve=retrieve).recommend("u")
                await Cascade(client, retrieve=retrieve, executor=threads).recommend("u")

        run(main)
    assert found_in[0][0] != "MainThread"
    assert found_in[1][0].startswith("mine")
    assert [said for _, said in found_in] == ["set", "set"]


def test_stages_of_threads_run_in_the_callers() -> None:
    def retrieve(user: str, request: Any) -> list[int]:
        assert threading.current_thread() is threading.main_thread()
        return FOUND

    with StubServer() as server:
        Both(False)(server, ("u", 0), retrieve=retrieve)


def test_a_function_that_raises_stop_iteration_ends_the_request(both: Both) -> None:
    with StubServer() as server, pytest.raises((RuntimeError, StopIteration)):
        both(server, ("u", 0), retrieve=lambda *given: next(iter(())))


def test_coroutines_are_refused_by_the_cascade_of_threads() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(RequestRejectedError, match="retrieve"):
        SyncCascade(client, retrieve=coroutine)
