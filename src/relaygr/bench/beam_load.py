"""Requests at random times, whatever the answers take.

A request's latency counts from when it was to be sent; one that was sent late is counted as sent late.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from relaygr.core.errors import RelayError

Send = Callable[[int], "Future[Any]"]
"""Sends a request by its number."""

_LATE_S, _TICK_S = 0.002, 1e-4
_EASY, _EARLY = 0.7, 0.4  # of the target, and of the requests planned, by which an edge is not near
_REFUSALS = 600  # of a full queue, until it is taken for broken
_ENOUGH = 100  # requests, of which the 99th percentile is not the slowest


@dataclass(frozen=True, slots=True)
class Door:
    """Where requests go in.

    Attributes:
        at_once: requests that keep what is behind it busy.
    """

    send: Send
    at_once: int


class Watch(Protocol):
    """The time in which a load is played."""

    def now_s(self) -> float: ...

    def wait(self, change: threading.Condition, seconds: float) -> None:
        """Until `change`, which the caller holds, is notified, but not longer than this."""

    def others_s(self) -> float:
        """Seconds that cores have worked for other processes, since any time."""


class WallWatch:
    """The machine's time."""

    def now_s(self) -> float:
        return time.perf_counter()

    def wait(self, change: threading.Condition, seconds: float) -> None:
        change.wait(seconds)

    def others_s(self) -> float:
        """0 where the system does not tell."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                told = [int(part) for part in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        user, nice, system, _, _, irq, softirq, steal = told
        own = os.times()
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK") - own.user - own.system


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rate: what was sent, and how long it took.

    Attributes:
        planned: requests of the load; `sent` fewer where it was given up, because too many were late already.
        failed: ended in an error, or never.
        sent_late: left more than 2 ms after their time.
        target_ms: of P99; None if there is none.
        seconds: that the load took; others_cores: that other processes used meanwhile, to a few hundredths.
    """

    rate_per_s: float
    planned: int
    sent: int
    failed: int
    sent_late: int
    target_ms: float | None
    seconds: float
    others_cores: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @property
    def passes(self) -> bool:
        """Whether it was played to its end, without an error, and P99 kept the target."""
        target_ms = math.inf if self.target_ms is None else self.target_ms
        return self.sent == self.planned and not self.failed and self.p99_ms <= target_ms

    @property
    def easy(self) -> bool:
        """Whether it passed so well that the edge is not near."""
        room = self.target_ms is not None and self.p99_ms < _EASY * self.target_ms
        return self.passes and room and self.sent >= _ENOUGH

    @property
    def far(self) -> bool:
        """Whether it failed so early that the edge is not near."""
        return self.sent < _EARLY * self.planned


def alone(door: Door, runs: int, first: int, watch: Watch) -> float:
    """Median milliseconds of requests one after the other."""
    times = []
    for number in range(first, first + runs):
        began = watch.now_s()
        _await(door.send(number), watch)
        times.append((watch.now_s() - began) * 1e3)
    return statistics.median(times)


def saturated(door: Door, seconds: float, most: int, first: int, watch: Watch) -> tuple[float, int]:
    """Answers a second while requests never run out, and how many there were; nothing keeps more for long.

    Args:
        seconds, most: after which no further request is sent; one is sent anyway.
    """
    began, number = watch.now_s(), first
    waiting: deque[Future[Any]] = deque()
    while waiting or number == first:
        while len(waiting) < door.at_once:
            if number > first and (watch.now_s() - began >= seconds or number - first >= most):
                break
            waiting.append(door.send(number))
            number += 1
        _await(waiting.popleft(), watch)
    return (number - first) / (watch.now_s() - began), number - first


def play(
    door: Door,
    rate_per_s: float,
    count: int,
    seed: tuple[int, int],
    first: int,
    give_up_ms: float,
    target_ms: float | None = None,
    watch: Watch | None = None,
) -> RatePoint:
    """Send `count` requests at random times of this mean rate; afterwards none of them runs any more.

    Args:
        seed: of the times, which are the same for all rates but for their scale.
        give_up_ms: how long after the last is sent answers are waited for.
        target_ms: of P99; a load that cannot keep it any more ends there.
    """
    watch = watch if watch is not None else WallWatch()
    gaps = np.random.default_rng(seed).exponential(1.0, count) / rate_per_s
    load = _Load(door.send, np.cumsum(gaps).tolist(), target_ms, watch)
    others_s = watch.others_s()
    load.send_all(first)
    load.wait(give_up_ms / 1000)
    seconds = load.now_s()
    others_s = watch.others_s() - others_s
    point = load.point(rate_per_s, seconds, max(others_s, 0.0) / seconds)
    load.cancel()
    _settle(door, first + count, watch)
    return point


class _Load:
    """One load: sends, listens, counts."""

    def __init__(self, send: Send, due: list[float], target_ms: float | None, watch: Watch) -> None:
        self._send, self._due, self._watch, self._target_ms = send, due, watch, target_ms
        self._target_s = math.inf if target_ms is None else target_ms / 1000
        self._spare = len(due) - _place(len(due), 99) - 1  # that may be late
        self._done = [math.inf] * len(due)
        self._futures: list[Future[Any]] = []
        self._sent = self._ended = self._errors = self._sent_late = 0
        self._judged = self._late = 0  # requests whose time is over, and those of them that were late
        self._change = threading.Condition()
        self._began_s = watch.now_s()

    def now_s(self) -> float:
        return self._watch.now_s() - self._began_s

    def send_all(self, first: int) -> None:
        for place, due_s in enumerate(self._due):
            with self._change:
                while (now := self.now_s()) < due_s:
                    self._watch.wait(self._change, due_s - now)
                if self._lost(now):
                    return
                self._sent += 1
                self._sent_late += now > due_s + _LATE_S
            try:
                future = self._send(first + place)
            except RelayError:
                with self._change:
                    self._ended += 1
                    self._errors += 1
                continue
            self._futures.append(future)
            future.add_done_callback(lambda ended, place=place: self._end(place, ended))  # type: ignore[misc]

    def wait(self, give_up_s: float) -> None:
        """For all answers, unless it is too late for the target."""
        with self._change:
            until = self.now_s() + give_up_s
            while self._ended < self._sent and (now := self.now_s()) < until and not self._lost(now):
                next_s = self._due[self._judged] + self._target_s if self._judged < self._sent else until
                self._watch.wait(self._change, max(min(next_s, until) - now, _TICK_S))

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()

    def point(self, rate_per_s: float, seconds: float, others_cores: float) -> RatePoint:
        with self._change:
            count = self._sent
            pairs = zip(self._done[:count], self._due[:count], strict=True)
            times = sorted((end_s - due_s) * 1e3 for end_s, due_s in pairs)
            never = 0 if self._lost(seconds) else count - self._ended
            return RatePoint(
                rate_per_s=rate_per_s,
                planned=len(self._due),
                sent=count,
                failed=self._errors + never,
                sent_late=self._sent_late,
                target_ms=self._target_ms,
                seconds=seconds,
                others_cores=others_cores,
                p50_ms=times[_place(count, 50)],
                p95_ms=times[_place(count, 95)],
                p99_ms=times[_place(count, 99)],
            )

    def _lost(self, now: float) -> bool:
        """Whether so many are late that P99 will be; called with the lock held."""
        while self._judged < self._sent and self._due[self._judged] + self._target_s <= now:
            self._late += self._done[self._judged] - self._due[self._judged] > self._target_s
            self._judged += 1
        return self._late > self._spare

    def _end(self, place: int, future: Future[Any]) -> None:
        now = self.now_s()
        with self._change:
            self._ended += 1
            if future.cancelled() or future.exception() is not None:
                self._errors += 1
            else:
                self._done[place] = now
            if self._ended == self._sent:
                self._change.notify_all()


def _settle(door: Door, number: int, watch: Watch) -> None:
    """What was given up may still run; one more request ends after it."""
    change = threading.Condition()
    for _ in range(_REFUSALS):
        try:
            future = door.send(number)
        except RelayError:
            with change:
                watch.wait(change, 0.1)
            continue
        with suppress(RelayError):
            _await(future, watch)
        return


def _await(future: Future[Any], watch: Watch) -> None:
    """Its end.

    Raises: what the future ended in.
    """
    change = threading.Condition()

    def ended(_: Future[Any]) -> None:
        with change:
            change.notify_all()

    future.add_done_callback(ended)
    with change:
        while not future.done():
            watch.wait(change, 1.0)
    future.result()


def _place(count: int, percent: float) -> int:
    """Of the nearest rank among so many sorted values."""
    return max(math.ceil(percent / 100 * count), 1) - 1
