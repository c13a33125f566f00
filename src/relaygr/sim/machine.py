"""The slots of an instance: what runs, what may be cut short, and who runs next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relaygr.sim.timeline import Timeline

# Classes of work; the smaller number runs first.
RANK, RELOAD, CHUNK, SPILL = range(4)


class Steps(Protocol):
    """Work that may stop after any of its steps."""

    def stopped(self, steps: int) -> None:
        """It has left its slot after so many steps of those that were begun."""


@dataclass(slots=True, eq=False)
class Run:
    """What occupies a slot.

    Attributes:
        urgency: its class; 0 is never cut.
        ends_s: when each of its steps ends, from its beginning.
        deadline_s: of two runs of a class, the earlier is the more urgent.
    """

    urgency: int
    ends_s: Sequence[float]
    work: Steps
    deadline_s: float = 0.0
    started_s: float = field(default=0.0, init=False)
    steps: int = field(default=0, init=False)  # after which it ends; fewer than all of them if it was cut


class Desk(Protocol):
    """Where a machine gets its work."""

    def next_run(self) -> Run | None:
        """The most urgent work there is, taken off its queue."""


class Machine:
    """`slots` runs at once. A run is one event, however many steps it has.

    More urgent work waits for the end of the step that runs, never for more: the run is cut there and goes
    back to its queue.
    """

    __slots__ = ("_desk", "_epoch", "_timeline", "busy_s", "running", "slots")

    def __init__(self, timeline: Timeline, slots: int, desk: Desk) -> None:
        self._timeline, self._desk = timeline, desk
        self.slots = slots
        self.running: list[Run] = []
        self.busy_s = 0.0
        self._epoch = 0

    def poke(self, urgency: int, deadline_s: float = 0.0) -> None:
        """Work of this class has come: start it, or make room for it at the end of a step."""
        if len(self.running) < self.slots:
            self._fill()
            return
        victim: Run | None = None
        for run in self.running:
            later = (run.urgency, run.deadline_s) > (urgency, deadline_s)
            whole = run.steps == len(run.ends_s)  # what is cut already makes room for somebody else
            if run.urgency and later and whole and (victim is None or run.urgency > victim.urgency):
                victim = run
        if victim is not None:
            self._cut(victim)

    def stop(self) -> list[Run]:
        """Everything that runs is gone, as when a process is killed; returns it."""
        lost, self.running = self.running, []
        self._epoch += 1
        return lost

    def _cut(self, run: Run) -> None:
        ends = run.ends_s
        steps = bisect_left(ends, self._timeline.now_s - run.started_s) + 1
        if steps < len(ends):
            run.steps = steps
            self._timeline.at(run.started_s + ends[steps - 1], self._end, run, steps, self._epoch)

    def _fill(self) -> None:
        now = self._timeline.now_s
        while len(self.running) < self.slots:
            run = self._desk.next_run()
            if run is None:
                return
            run.started_s, run.steps = now, len(run.ends_s)
            self.running.append(run)
            self._timeline.at(now + run.ends_s[-1], self._end, run, run.steps, self._epoch)

    def _end(self, run: Run, steps: int, epoch: int) -> None:
        if run.steps != steps or epoch != self._epoch:
            return  # it was cut, or lost, before this
        self.running.remove(run)
        self.busy_s += run.ends_s[steps - 1]
        run.work.stopped(steps)
        self._fill()
