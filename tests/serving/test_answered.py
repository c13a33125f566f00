"""Waiting for a job: however it ends, the job has ended before whoever waited goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from relaygr.core.errors import BackendError, CancelledError
from relaygr.engine.jobs import Job
from relaygr.serving.waiting import ClientGoneError, Gone, answered


def a_job() -> Job[str]:
    return Job(1000.0, 0.0)


def wait_for(job: Job[str], gone: Gone | None) -> Coroutine[Any, Any, str]:
    """Within a loop."""
    return answered(job, asyncio.wrap_future(job.future), gone)


async def stays() -> None:
    """A client that does not leave."""
    await asyncio.Event().wait()


async def leaves() -> None:
    """A client that has left."""


def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    raise AssertionError(context)


@pytest.mark.parametrize("gone", [None, stays])
def test_an_answer_and_an_error_are_passed_on(gone: Gone | None) -> None:
    async def run() -> None:
        for answer in ("yes", BackendError("no")):
            job = a_job()
            asyncio.get_running_loop().call_soon(job.resolve, answer)
            waiting = wait_for(job, gone)
            if isinstance(answer, str):
                assert await waiting == answer
            else:
                with pytest.raises(BackendError, match="no"):
                    await waiting

    asyncio.run(run())


def test_a_client_that_leaves_takes_its_job_along_before_anything_else_happens() -> None:
    """Its place among the requests is given back right behind this, and may be taken by another, which must
    find a place in the queue as well."""

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(complain)
        job = a_job()
        with pytest.raises(ClientGoneError):
            await wait_for(job, leaves)
        assert not job.waiting
        assert isinstance(job.exception(0), CancelledError)
        await asyncio.sleep(0)  # what the loop still has to do about it

    asyncio.run(run())


@pytest.mark.parametrize("gone", [None, stays])
def test_a_caller_that_is_cancelled_takes_its_job_along(gone: Gone | None) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(complain)
        job, ended = a_job(), []

        async def call() -> None:
            try:
                await wait_for(job, gone)
            finally:
                ended.append(not job.waiting)

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]
        await asyncio.sleep(0)

    asyncio.run(run())
