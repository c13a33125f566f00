"""The log of served lists of a service: a thread of its own writes, so that no request waits for a disk.

A list waits for its outcome in memory; with it, it is one line of the log. What cannot be written is counted
and forgotten, whatever the reason.
"""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

import msgspec

from relaygr.config.slate import SlateConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import BackendError, ConfigError, RelayError, RequestError
from relaygr.listwise.log_check import check_numbers
from relaygr.listwise.log_files import LogFiles
from relaygr.listwise.pool import Head
from relaygr.listwise.slate_log import SlateRecord, check_record, open_files
from relaygr.listwise.step import HeadSpec
from relaygr.serving.slate.inflation import ListName
from relaygr.serving.slate.log_metrics import Fate, LogMetrics
from relaygr.serving.slate.observed import Seen
from relaygr.serving.slate.waiting_lists import ServedList, WaitingLists

log = logging.getLogger("relaygr.serving")

_TICK_S = 0.25
_BATCH = 64  # lists that are written at once
_TELL_S = 60.0  # between two lines about the same trouble
_Written = tuple[ServedList, Seen]


class SlateLogWriter:
    """Takes lists and outcomes from any thread, and never blocks.

    Args:
        config: the folder and its limits.
        heads: of the ranker.

    Raises:
        ConfigError: the folder cannot be written, or holds a log of other heads.
    """

    def __init__(
        self,
        config: SlateConfig,
        heads: tuple[Head, ...],
        metrics: LogMetrics,
        clock: Clock | None = None,
    ) -> None:
        try:
            self._files: LogFiles = open_files(
                Path(config.log), heads, config.log_file_bytes, config.log_bytes
            )
        except RelayError as error:
            raise ConfigError(config.key("log"), str(error)) from error
        self._heads = tuple(HeadSpec(name=head.name, kind=head.kind) for head in heads)
        self._metrics, self._clock = metrics, clock or MonotonicClock()
        self._waiting = WaitingLists(config.log_wait_s, config.log_waiting, config.log_waiting_bytes, metrics)
        self._queue: queue.Queue[_Written] = queue.Queue(config.log_queue)
        metrics.waiting, metrics.queued = self._waiting.__len__, self._queue.qsize
        self._reader, self._ending = msgspec.json.Decoder(SlateRecord), threading.Event()
        self._troubled_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="relaygr-slate-log", daemon=True)
        self._thread.start()

    def served(self, served: ServedList) -> None:
        """Remember a list until its outcome comes."""
        self._waiting.add(served, self._clock.now_s())

    def check(self, name: ListName, seen: Seen | None, field: str, said_by: str) -> None:
        """RequestError if more is said of a list that waits than was shown; fields begin with `field`."""
        length = None if seen is None else self._waiting.length(name)
        if seen is None or length is None:
            return
        if seen.consumed > length:
            raise RequestError(f"{field}.{said_by}", f"{seen.consumed} positions, {length} were shown")
        if seen.more and seen.consumed < length:
            raise RequestError(
                f"{field}.more",
                f"a next page follows a list of {length} that was left after {seen.consumed}",
            )

    def settle(self, name: ListName, seen: Seen | None) -> bool:
        """What came of a list is known: write it. False if it does not wait, or was settled before."""
        found = self._waiting.take(name)
        if found is None:
            return False
        if seen is None:
            self._metrics.tell(Fate.UNOBSERVED)
            return True
        try:
            self._queue.put_nowait((found, seen))
        except queue.Full:
            self._metrics.tell(Fate.OVERFLOW)
        return True

    def close(self, timeout_s: float) -> bool:
        """Write what is queued and give up what waits; False if the disk took longer than that."""
        self._ending.set()
        self._thread.join(timeout_s)
        self._waiting.clear()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            # What is queued before the end is written.
            ending = self._ending.is_set()
            batch = self._next(ending)
            if batch:
                self._write(batch)
            elif ending:
                return
            self._waiting.expire(self._clock.now_s())

    def _next(self, ending: bool) -> list[_Written]:
        batch: list[_Written] = []
        try:
            batch.append(self._queue.get(not ending, _TICK_S))
            while len(batch) < _BATCH:
                batch.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return batch

    def _write(self, batch: list[_Written]) -> None:
        lines = [line for line in (self._line(*one) for one in batch) if line is not None]
        try:
            if lines:
                self._files.append(lines)
        except BackendError as error:
            self._trouble(f"{len(lines)} lists are lost: {error}")
            self._metrics.tell(Fate.FAILED, len(lines))
            return
        if lines and self._troubled_s is not None:
            self._troubled_s = None
            log.warning("slates: the log is written again")
        self._metrics.tell(Fate.WRITTEN, len(lines))

    def _line(self, served: ServedList, seen: Seen) -> bytes | None:
        """One line that readers take; None, counted, if the list cannot be written so."""
        try:
            line = msgspec.json.encode(served.record(seen))
            record = self._reader.decode(line)
            check_record(record, len(self._heads))
            check_numbers(record, self._heads)
        except Exception as error:  # noqa: BLE001 - the thread lives on, whatever is wrong with one list
            self._trouble(f"a list is lost: {type(error).__name__}: {error}")
            self._metrics.tell(Fate.FAILED)
            return None
        return line + b"\n"

    def _trouble(self, what: str) -> None:
        now_s = self._clock.now_s()
        if self._troubled_s is None or now_s - self._troubled_s >= _TELL_S:
            self._troubled_s = now_s
            log.error("slates: the log is not written, %s", what)
