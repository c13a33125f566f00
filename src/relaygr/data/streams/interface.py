"""The contract of an event stream, and the value types that cross it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from relaygr.core.errors import RelayError, RequestError

_PART = 1 << 64


class StreamLostError(RelayError):
    """The stream is another consumer's now; what was read of it and not acknowledged is read there again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream.

    Attributes:
        offset: its place, in [0, 2^128); rises along the stream.
        fields: as the producer sent them; of names that are no UTF-8, such bytes are surrogate escapes.
    """

    stream: str
    offset: int
    fields: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Lag:
    """What of a stream is not acknowledged.

    Attributes:
        entries: not acknowledged, read or not; an upper bound where the server cannot tell.
        seconds: age of the oldest of them; 0 without any.
        trimmed: entries that are known to have been removed before they were acknowledged, since the start.
    """

    stream: str
    entries: int
    seconds: float
    trimmed: int


class EventStream(Protocol):
    """Ordered streams, shared by the consumers of a group: each stream is one consumer's at a time.

    Delivers at least once. Whatever `read` gave is given again, to this consumer or to the next, until it is
    acknowledged or rejected; and nothing behind it is given before that. So events of one stream are worked
    on in their order even where consumers die, and who is paused and comes back holds only what others were
    given as well. Belongs to one event loop; nothing is lost when a call is cancelled. A queue of partitions
    (Kafka) has all of this: the group's assignment, committed offsets, an offset for each entry.

    Every method raises OverloadError where the server cannot be reached, and BackendError, which names the
    server, where it refuses; both may be tried again. A stream that alone is refused is assigned as well, and
    the error is that of its `read`.
    """

    @property
    def streams(self) -> tuple[str, ...]:
        """All streams of the group."""

    async def assigned(self) -> frozenset[str]:
        """The streams that this consumer is to read; says to the others that it lives.

        To be asked several times within the time after which a consumer counts as dead. A stream that it was
        given before and is no longer among them is to be released.
        """

    async def release(self, stream: str) -> None:
        """Leave `stream` to others, now; a no-op for one that is not ours."""

    async def read(self, stream: str) -> Sequence[Entry]:
        """The oldest entries that are not acknowledged, in order; waits a while for some, then is empty.

        Of those that were read before, by whomever, all come before any other.

        Raises:
            StreamLostError: the stream is not ours.
        """

    async def acknowledge(self, stream: str, offsets: Sequence[int]) -> None:
        """These entries are done for good."""

    async def reject(self, entry: Entry, reason: str) -> None:
        """Keep `entry` with `reason` where somebody may look at it, and acknowledge it: both or neither."""

    async def lag(self) -> tuple[Lag, ...]:
        """Of every stream of the group that can be asked, one at least."""

    async def close(self) -> None:
        """Release everything and leave; again, a no-op. Raises nothing of an unreachable server."""


def format_offset(offset: int) -> str:
    """An offset as two numbers of 64 bits, `high-low`."""
    return f"{offset // _PART}-{offset % _PART}"


def parse_offset(text: str) -> int:
    """What `format_offset` wrote, or the high number alone; RequestError, of `offsets`, for anything else."""
    parts = text.split("-")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        raise RequestError("offsets", f"{text[:64]!r} must be a whole number, or two: high-low")
    high, low = int(parts[0]), int(parts[1]) if len(parts) == 2 else 0
    if max(high, low) >= _PART:
        raise RequestError("offsets", f"{text!r} has a number above 2^64 - 1")
    return high * _PART + low
