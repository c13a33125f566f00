"""What every lane keeps: the hauls that wait for it in the order they go, and how fast it is."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from relaygr.core.errors import BackendError
from relaygr.memory.lane import Declined, LaneStats, Rush, State, Ticket

log = logging.getLogger("relaygr.memory")


class Meter:
    """Counts and speed of one direction; the newest copies weigh most in the speed. Not thread-safe."""

    _NEWEST, _HOPE = 0.2, 1.02
    _MEASURABLE_BYTES = 64 * 1024  # smaller copies say more about the cost of a call

    def __init__(self, bytes_per_s: float) -> None:
        """`bytes_per_s` is believed until copies were measured."""
        if not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s: {bytes_per_s} must be positive")
        self.bytes_per_s = bytes_per_s
        self.bytes_total, self.busy_s = 0, 0.0
        self.ended = dict.fromkeys((State.DONE, State.FAILED, State.CANCELLED), 0)
        self.declined = dict.fromkeys(Declined, 0)

    def copied(self, nbytes: int, spent_s: float) -> None:
        self.bytes_total += nbytes
        self.busy_s += spent_s
        if nbytes >= self._MEASURABLE_BYTES and spent_s > 0:
            self.bytes_per_s += self._NEWEST * (nbytes / spent_s - self.bytes_per_s)

    def hope(self) -> None:
        """Nothing was copied because that would take too long: it is tried again after some time."""
        self.bytes_per_s *= self._HOPE

    def refuse(self, why: Declined) -> Declined:
        self.declined[why] += 1
        return why

    def stats(self, waiting: int, restarts: int = 0) -> LaneStats:
        return LaneStats(
            bytes_total=self.bytes_total,
            busy_s=self.busy_s,
            waiting=waiting,
            done=self.ended[State.DONE],
            failed=self.ended[State.FAILED],
            cancelled=self.ended[State.CANCELLED],
            declined=tuple(self.declined.items()),
            restarts=restarts,
        )


class Waiting:
    """Hauls of a lane that are not finished, the most urgent first; bounded, not thread-safe.

    Those that rankings wait for go layer by layer, because a pass needs layer i of all of them at once;
    others one after the other.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tickets: list[tuple[int, Ticket]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for _, ticket in self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._arrivals += 1
        self._tickets.append((self._arrivals, ticket))

    def drop_finished(self) -> list[Ticket]:
        """Those that ended since the last call."""
        gone = [ticket for _, ticket in self._tickets if ticket.finished]
        if gone:
            self._tickets = [item for item in self._tickets if not item[1].finished]
        return gone

    def head(self, taken: set[Ticket]) -> Ticket | None:
        """The one whose next layer goes first; None if all are taken."""
        free = [
            (self._key(number, ticket), ticket) for number, ticket in self._tickets if ticket not in taken
        ]
        return min(free, key=lambda item: item[0])[1] if free else None

    def ahead_bytes(self, rush: Rush) -> int:
        """Bytes still to copy of those that do not wait for a newcomer of this rush."""
        return sum(
            (ticket.haul.layers - ticket.ready) * ticket.haul.layer_bytes
            for _, ticket in self._tickets
            if ticket.rush <= rush
        )

    @staticmethod
    def _key(number: int, ticket: Ticket) -> tuple[float, ...]:
        layer = ticket.ready if ticket.rush is Rush.RANK else 0
        return ticket.rush, layer, ticket.deadline_s, number


def carried(ticket: Ticket) -> str:
    """Copy the next layer; why it failed, or ""."""
    try:
        ticket.haul.carry(ticket.ready)
    except BackendError as error:
        return str(error)
    except Exception as error:
        log.exception("a copy failed")
        return f"{type(error).__name__}: {error}"
    return ""
