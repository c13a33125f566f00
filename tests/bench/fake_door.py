"""A server of known capacity in virtual time, for loads that take no time."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

import numpy as np

from relaygr.bench.beam_load import Door
from relaygr.core.errors import OverloadError


class FakeServer:
    """`lanes` requests at a time, in order, each for `service_s`; it is its own clock.

    While it is `disturbed`, from and until which second, others take a core, and each request five times as
    long.
    """

    def __init__(
        self,
        service_s: float,
        lanes: int = 1,
        room: int = 10**9,
        disturbed: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.service_s, self.lanes, self.room = service_s, lanes, room
        self.disturbed = disturbed
        self.numbers: list[int] = []
        self.door = Door(self.send, 2 * lanes)
        self._now_s = 0.0
        self._waiting: deque[Future[Any]] = deque()
        self._running: list[tuple[float, int, Future[Any]]] = []

    @property
    def busy(self) -> int:
        return len(self._running) + sum(not one.cancelled() for one in self._waiting)

    def send(self, number: int) -> Future[Any]:
        if self.busy >= self.room:
            raise OverloadError("full", retry_after_ms=1.0)
        self.numbers.append(number)
        future: Future[Any] = Future()
        self._waiting.append(future)
        self._start()
        return future

    def now_s(self) -> float:
        return self._now_s

    def wait(self, change: threading.Condition, seconds: float) -> None:
        assert change._is_owned()  # type: ignore[attr-defined]
        until_s = self._now_s + max(seconds, 1e-9)
        if not self._running or self._running[0][0] > until_s:
            self._now_s = until_s
            return
        self._now_s, _, future = heapq.heappop(self._running)
        future.set_result(None)
        self._start()

    def others_s(self) -> float:
        begin_s, end_s = self.disturbed
        return min(max(self._now_s - begin_s, 0.0), end_s - begin_s)

    def _start(self) -> None:
        while self._waiting and len(self._running) < self.lanes:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                begin_s, end_s = self.disturbed
                slower = 5.0 if begin_s <= self._now_s < end_s else 1.0
                end_s = self._now_s + slower * self.service_s
                heapq.heappush(self._running, (end_s, len(self.numbers), future))


def highest_of_one_lane(service_s: float, target_s: float) -> float:
    """The highest rate at which P99 of a server with one lane keeps the target, by its waits alone."""
    gaps = np.random.default_rng(0).exponential(1.0, 400_000)
    low, high = 0.0, 1 / service_s
    while high / max(low, 1e-9) > 1.005:
        rate = (low + high) / 2
        walk = np.cumsum(service_s - gaps / rate)
        waits = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
        low, high = (rate, high) if np.quantile(waits, 0.99) + service_s <= target_s else (low, rate)
    return low
