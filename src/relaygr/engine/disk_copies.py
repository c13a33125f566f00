"""Copies between host memory and one record on disk, in bounded parts that two threads take turns at."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from concurrent.futures import Executor, Future
from typing import Any

from relaygr.cache.disk_moves import FetchPlan, SavePlan
from relaygr.cache.interface import HostRun
from relaygr.memory.disk import RecordReader, RecordWriter, SegmentFiles
from relaygr.memory.host import HostPool
from relaygr.memory.snapshot import pages

Block = tuple[int, int]  # first row in host memory, rows: a page, or the part of one that is the last


class Copy(ABC):
    """At any time at most one part is with the other thread; what it ends in shows at the next step.

    Attributes:
        bytes_done: keys and values that were copied; left_bytes: that were not.
        done: whether all of it was.
        failed: what the system refused.
    """

    def __init__(self, host: HostPool, runs: tuple[HostRun, ...], lane: Executor) -> None:
        self._host, self._lane = host, lane
        self._blocks = pages(runs, host.layout.page_tokens)
        self._total_bytes = sum(host.raw_bytes(run.tokens) for run in runs)
        self._part: Future[Any] | None = None
        self.bytes_done = 0
        self.done = False
        self.failed: OSError | None = None

    @property
    def ready(self) -> bool:
        """Whether `step` has something to do."""
        return self._part is None or self._part.done()

    @property
    def left_bytes(self) -> int:
        return self._total_bytes - self.bytes_done

    def step(self, budget_bytes: int) -> bool:
        """Take what the other thread has done, and give it about `budget_bytes` more; True at the end."""
        try:
            return self._step(budget_bytes)
        except OSError as error:
            self.failed = error
            return True

    @abstractmethod
    def _step(self, budget_bytes: int) -> bool: ...

    def _next(self, budget_bytes: int) -> list[Block]:
        """Blocks of about so many bytes, at least one; none at the end."""
        part: list[Block] = []
        while (not part or budget_bytes > 0) and (block := next(self._blocks, None)) is not None:
            part.append(block)
            budget_bytes -= self._host.raw_bytes(block[1])
        return part


class Saving(Copy):
    """Host memory to disk; what it leaves behind when it ends early is no record."""

    def __init__(
        self, files: SegmentFiles, host: HostPool, plan: SavePlan, lane: Executor, meta: bytes
    ) -> None:
        super().__init__(host, plan.runs, lane)
        self.plan = plan
        self._writer = RecordWriter(files, plan.place, plan.number, meta, self._total_bytes)
        self._part = lane.submit(self._writer.begin)
        self._committing = False

    def _step(self, budget_bytes: int) -> bool:
        if self._part is not None:
            self._part.result()
        if self._committing:
            self.done = True
            return True
        part = self._next(budget_bytes)
        if part:
            data = b"".join(self._host.raw(*block) for block in part)
            self._part = self._lane.submit(self._writer.add, data)
            self.bytes_done += len(data)
        else:
            self._part = self._lane.submit(self._writer.commit)
            self._committing = True
        return False


class Fetching(Copy):
    """Disk to host memory.

    Attributes:
        deadline_s: after it the state is of no use.
        damaged: what was read is not what was written.
        measured_s: time that the other thread spent on reading.
    """

    def __init__(
        self, files: SegmentFiles, host: HostPool, plan: FetchPlan, lane: Executor, deadline_s: float
    ) -> None:
        super().__init__(host, plan.runs, lane)
        self.plan, self.deadline_s = plan, deadline_s
        self._reader = RecordReader(files, plan.place, plan.number, self._total_bytes)
        self._asked: list[Block] = []
        self.damaged = False
        self.measured_s = 0.0

    def _step(self, budget_bytes: int) -> bool:
        if self._part is not None:
            self._take(self._part.result())
        if self.damaged:
            return True
        self._asked = self._next(budget_bytes)
        if not self._asked:
            self.done = self._reader.whole
            self.damaged = not self.done
            return True
        nbytes = sum(self._host.raw_bytes(rows) for _, rows in self._asked)
        self._part = self._lane.submit(self._read, nbytes)
        return False

    def _take(self, data: bytearray | None) -> None:
        if data is None:
            self.damaged = True
            return
        view, at = memoryview(data), 0
        for row, rows in self._asked:
            size = self._host.raw_bytes(rows)
            self._host.put_raw(row, rows, view[at : at + size])
            at += size
        self.bytes_done += len(data)

    def _read(self, nbytes: int) -> bytearray | None:
        began_s = time.perf_counter()
        data = self._reader.read(nbytes)
        self.measured_s += time.perf_counter() - began_s
        return data
