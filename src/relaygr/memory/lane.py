"""What moves bytes between two memories, layer by layer, while the executor computes: the contract.

A lane carries hauls. Each layer of a haul is one event: whoever waits for layer i goes on while layer i + 1
is being copied. A lane never decides: what is copied where was planned before, and what its end means is
decided by whoever launched it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, Protocol


class Rush(IntEnum):
    """Whose copies go first; decided anew before every layer."""

    RANK = 0  # a request waits for it
    PREFETCH = 1
    STORE = 2


class State(StrEnum):
    """What has become of a haul."""

    PLANNED = "planned"  # it waits
    LAUNCHED = "launched"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Declined(StrEnum):
    """Why a lane took nothing; nothing was changed."""

    FULL = "full"  # too much waits for it
    LATE = "late"  # by its measured speed it would not be there in time
    CLOSED = "closed"


class Haul(Protocol):
    """What a lane carries: the copies of one plan."""

    @property
    def layers(self) -> int: ...

    @property
    def layer_bytes(self) -> int:
        """Bytes of the largest layer, for estimates."""
        ...

    def carry(self, layer: int) -> None:
        """Copy one layer; called once for each, in order, by one thread at a time.

        What it raises ends the haul as failed.
        """


@dataclass(frozen=True, slots=True)
class LaneStats:
    """Counters of one direction since the start.

    Attributes:
        bytes_total: copied, of hauls that failed later included.
        busy_s: spent copying.
        waiting: hauls that are not finished.
        done, failed, cancelled: hauls that ended so.
        declined: hauls that were not taken, by reason.
        restarts: threads that had to be replaced; those of both directions where they share them.
    """

    bytes_total: int = 0
    busy_s: float = 0.0
    waiting: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    declined: tuple[tuple[Declined, int], ...] = ()
    restarts: int = 0

    @property
    def gib_per_s(self) -> float:
        """Measured speed while copying; 0 before anything was."""
        return self.bytes_total / self.busy_s / (1 << 30) if self.busy_s > 0 else 0.0


class Ticket:
    """One haul on a lane, from launch to end; may be asked and cancelled from any thread.

    Attributes:
        ready: layers that are there, the first ones.
        reason: why it failed or was cancelled; empty otherwise.
    """

    def __init__(
        self, haul: Haul, rush: Rush, deadline_s: float, on_end: Callable[[], None] | None = None
    ) -> None:
        self.haul, self.rush, self.deadline_s = haul, rush, deadline_s
        self.ready, self.reason = 0, ""
        self._state, self._ending = State.PLANNED, State.CANCELLED
        self._copying = False
        self._on_end = on_end
        self._change = threading.Condition()

    @property
    def state(self) -> State:
        return self._state

    @property
    def finished(self) -> bool:
        """Whether nothing of it is being copied, or will be."""
        return self._state in (State.DONE, State.FAILED, State.CANCELLED)

    @property
    def ending(self) -> bool:
        """Whether it has ended without all of its layers, or will when the running copy has."""
        return bool(self.reason)

    def wait(self, layer: int, timeout_s: float) -> bool:
        """Until a layer is there; False if it never will be, or is not in time."""
        if self.ready > layer:  # only ever grows, so that asking without the lock is right
            return True
        with self._change:
            self._change.wait_for(lambda: self.ready > layer or self.ending, max(timeout_s, 0.0))
            return self.ready > layer

    def settle(self, timeout_s: float | None = None) -> bool:
        """Until it is finished; False if it is not in time."""
        with self._change:
            return self._change.wait_for(lambda: self.finished, timeout_s)

    def cancel(self, reason: str = "cancelled") -> None:
        """End it, as soon as the running copy has ended; no further layer is begun. Again is a no-op."""
        self._end(State.CANCELLED, reason)

    def fail(self, reason: str) -> None:
        """As `cancel`, because of an error."""
        self._end(State.FAILED, reason)

    def hurry(self, rush: Rush) -> None:
        """Let it go before others from its next layer on."""
        self.rush = min(self.rush, rush)

    def begin(self) -> bool:
        """The lane is about to copy the next layer; False if it must not."""
        with self._change:
            if self.finished or self.ending:
                return False
            self._state, self._copying = State.LAUNCHED, True
            return True

    def copied(self, error: str = "") -> None:
        """The lane's copy has ended: the layer is there, or `error` says why not."""
        with self._change:
            self._copying = False
            if error and not self.reason:
                self.reason, self._ending = error, State.FAILED
            if self.reason:
                self._state = self._ending
            else:
                self.ready += 1
                if self.ready == self.haul.layers:
                    self._state = State.DONE
            finished = self.finished
            self._change.notify_all()
        if finished:
            self._tell()

    def _end(self, state: State, reason: str) -> None:
        with self._change:
            if self.finished or self.reason:
                return
            self.reason, self._ending = reason, state
            finished = not self._copying
            if finished:
                self._state = state
            self._change.notify_all()
        if finished:
            self._tell()

    def _tell(self) -> None:
        if self._on_end is not None:
            self._on_end()


class Lane(ABC):
    """One direction between two memories.

    Changes: the bytes that its hauls copy, nothing else. Copies of one haul are in layer order, one at a
    time; before every layer the most urgent haul goes on. A haul whose deadline has passed fails.
    "No" is a `Declined`.
    """

    @abstractmethod
    def launch(
        self, haul: Haul, rush: Rush, deadline_s: float, on_end: Callable[[], None] | None = None
    ) -> Ticket | Declined:
        """Begin a haul; returns at once.

        Args:
            on_end: is called once, when it is finished, on whatever thread ended it; must be quick.
        """

    @abstractmethod
    def estimate_s(self, nbytes: int, rush: Rush) -> float:
        """How long from now a haul of so many bytes would take, what goes before it included."""

    def passed_by(self) -> None:
        """A haul was not launched because of its estimate: it may be wrong by now, and is believed less."""
        return

    @abstractmethod
    def stats(self) -> LaneStats: ...

    @abstractmethod
    def close(self) -> None:
        """Cancel what waits and take nothing more. Again is a no-op."""


class Lanes(NamedTuple):
    """From the host to the device, and back."""

    h2d: Lane
    d2h: Lane

    def close(self) -> None:
        for lane in self:
            lane.close()
