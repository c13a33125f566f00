"""Requests at random times whatever the answers take: the highest rate at which P99 keeps a target.

A request's latency counts from when it was to be sent; one that was sent late is counted as sent late.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from relaygr.bench.beam_case import Prompts
from relaygr.bench.beam_naive import NaiveBeams
from relaygr.core.errors import RelayError
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.scheduler import GenerateScheduler

Send = Callable[[int], "Future[Any]"]
"""Sends a request by its number."""

_LATE_S = 0.002
_GROWTH = 1.4
_NARROW = 1.12  # the search ends when rates this close are told apart


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rate: what was sent, and how long it took.

    Attributes:
        failed: ended in an error, or never.
        sent_late: left more than 2 ms after their time.
    """

    rate_per_s: float
    sent: int
    failed: int
    sent_late: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class RateFound(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that kept the target, and all that were tried.

    Attributes:
        alone_ms: median of requests that have the machine to themselves.
        bounded: whether a rate was tried that did not keep it.
    """

    name: str
    target_ms: float
    alone_ms: float
    rate_per_s: float
    bounded: bool
    points: tuple[RatePoint, ...]


@contextmanager
def scheduled(generator: Generator, prompts: Prompts, length: int, width: int) -> Iterator[Send]:
    """The generator behind its scheduler."""
    scheduler = GenerateScheduler(generator, generator.config)
    try:
        yield lambda number: scheduler.generate(prompts.asked(number, length, width), 60_000.0)
    finally:
        scheduler.close()
        generator.close()


@contextmanager
def one_by_one(naive: NaiveBeams, prompts: Prompts, length: int, width: int) -> Iterator[Send]:
    """The baseline, one request after the other."""
    with ThreadPoolExecutor(1) as thread:
        try:
            yield lambda number: thread.submit(naive.generate, prompts.tokens(number, length), width)
        finally:
            thread.shutdown(wait=True, cancel_futures=True)


def alone(send: Send, runs: int, first: int) -> float:
    """Median milliseconds of requests one after the other."""
    times = []
    for number in range(first, first + runs):
        began = time.perf_counter()
        send(number).result()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def play(send: Send, rate_per_s: float, count: int, seed: int, first: int, give_up_ms: float) -> RatePoint:
    """Send `count` requests at random times of this mean rate.

    Args:
        give_up_ms: how long after the last is sent answers are waited for.
    """
    gaps = np.random.default_rng((seed, count)).exponential(1.0, count) / rate_per_s
    due = np.cumsum(gaps).tolist()
    done: list[float] = [math.inf] * count
    failed = late = 0
    left, change = count, threading.Condition()

    def end(place: int, future: Future[Any]) -> None:
        nonlocal left, failed
        now = time.perf_counter() - began
        with change:
            if future.cancelled() or future.exception() is not None:
                failed += 1
            else:
                done[place] = now
            left -= 1
            change.notify_all()

    futures: list[Future[Any]] = []
    began = time.perf_counter()
    for place, at in enumerate(due):
        wait_s = at - (time.perf_counter() - began)
        if wait_s > 0:
            time.sleep(wait_s)
        elif wait_s < -_LATE_S:
            late += 1
        try:
            future = send(first + place)
        except RelayError:
            with change:
                failed += 1
                left -= 1
            continue
        futures.append(future)
        future.add_done_callback(lambda ended, place=place: end(place, ended))  # type: ignore[misc]
    with change:
        change.wait_for(lambda: left == 0, give_up_ms / 1000)
        failed += left
    for future in futures:
        future.cancel()
    times = sorted((end_s - at) * 1e3 for end_s, at in zip(done, due, strict=True))
    return RatePoint(
        rate_per_s=rate_per_s,
        sent=count,
        failed=failed,
        sent_late=late,
        p50_ms=_rank(times, 50),
        p95_ms=_rank(times, 95),
        p99_ms=_rank(times, 99),
    )


def highest_rate(
    name: str, send: Send, target_ms: float, alone_ms: float, limit_s: float, seed: int, first: int
) -> RateFound:
    """Search by steps of 1.4, then by halves, until rates 12 % apart are told apart or the time is over."""
    began, points = time.perf_counter(), list[RatePoint]()
    low, high, rate = 0.0, math.inf, 500.0 / alone_ms
    while time.perf_counter() - began < limit_s and (high / low > _NARROW if low else True):
        count = min(max(int(rate * limit_s / 6), 20), 400)
        point = play(send, rate, count, seed, first, 2 * target_ms)
        first += count
        points.append(point)
        if point.p99_ms <= target_ms and not point.failed:
            low = max(low, rate)
        else:
            high = min(high, rate)
        rate = math.sqrt(low * high) if low and high < math.inf else rate * _GROWTH if low else rate / 2
        if rate * alone_ms < 5:
            break
    return RateFound(
        name=name,
        target_ms=target_ms,
        alone_ms=alone_ms,
        rate_per_s=low,
        bounded=high < math.inf,
        points=tuple(points),
    )


def _rank(times: list[float], percent: float) -> float:
    """Nearest rank; infinite if that request had no answer."""
    return times[max(math.ceil(percent / 100 * len(times)), 1) - 1]
