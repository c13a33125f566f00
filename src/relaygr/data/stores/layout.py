"""How histories lie in every back-end: heads, chunks of events, key rings and profiles, each with a checksum.

Chunk `k` of a user holds the events with sequence numbers [32 k, 32 (k + 1)), so a range of events names its
chunks, an append rewrites at most one of them, and dropping old events removes whole ones. 32 events are 780
bytes: what SQLite and LMDB keep inside a tree page.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import BackendError, RequestError
from relaygr.core.ids import check_name
from relaygr.data.dataset import TIME_LIMIT_S
from relaygr.data.stores.interface import Appended, EventBatch, Int64s, Profile, StoredHistory

SCHEMA_VERSION = 1
CHUNK_EVENTS = 32
ROW_BYTES = 24  # item, sent time, actions
DIGEST_BYTES = 16
MAX_SEQUENCE = 1 << 53  # what a double in a Redis script counts exactly

_CRC = struct.Struct("<I")
_INT64 = struct.Struct("<q")
_HEAD = struct.Struct("<qqq")
HEAD_BYTES = _CRC.size + _HEAD.size
_KEY = struct.Struct(f"<{DIGEST_BYTES}s{DIGEST_BYTES}sqiii")
_MARK = -1  # in place of what a key's append accepted: the record is the last offset in a source
SOURCES_PER_USER = 4


_Record = tuple[bytes, bytes, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Owner:
    """A tenant's user, with checked names."""

    tenant: str
    user: str

    @classmethod
    def of(cls, tenant: str, user: str) -> Owner:
        """RequestError unless both are names."""
        return cls(check_name("tenant", tenant), check_name("user", user))

    def joined(self) -> bytes:
        """Both names as bytes; unique, since no name holds NUL."""
        return f"{self.tenant}\0{self.user}".encode()

    @contextmanager
    def named(self, store: str) -> Iterator[None]:
        """Puts `store` and the user in front of what a BackendError says."""
        try:
            yield
        except BackendError as error:
            whose = f"tenant {self.tenant!r}, user {self.user!r}"
            raise BackendError(f"{store}: {whose}: {error}") from error


@dataclass(frozen=True, slots=True)
class Head:
    """Sequence numbers [first, total) of a user are kept; `newest_s` is the newest time among all accepted.

    Raises:
        BackendError: when built of numbers that no user can have.
    """

    first: int = 0
    total: int = 0
    newest_s: int = 0

    def __post_init__(self) -> None:
        whole = all(isinstance(value, int) for value in (self.first, self.total, self.newest_s))
        if not whole or not 0 <= self.first <= self.total or not 0 <= self.newest_s < TIME_LIMIT_S:
            raise BackendError(f"damaged record: the head is {self.first}, {self.total}, {self.newest_s}")

    def span(self, newest: int) -> range:
        """Sequence numbers of the newest `newest` events that are kept."""
        return range(max(self.first, self.total - newest), self.total)

    def packed(self) -> bytes:
        return seal(_HEAD.pack(self.first, self.total, self.newest_s))

    @classmethod
    def unpacked(cls, blob: bytes) -> Head:
        """BackendError if `blob` is damaged."""
        return cls(*_HEAD.unpack(unseal(blob, "head", _HEAD.size)))


def check_newest(newest: int) -> int:
    """`newest`, or as much as any user can have; RequestError if it is below 0."""
    if newest < 0:
        raise RequestError("newest", f"{newest} must not be negative")
    return min(newest, MAX_SEQUENCE)


def chunk_numbers(span: range) -> range:
    """The chunks that hold the events of `span`."""
    return range(span.start // CHUNK_EVENTS, -(-span.stop // CHUNK_EVENTS)) if span else range(0)


def seal(data: bytes, salt: bytes = b"") -> bytes:
    """`data` behind a checksum of itself and of `salt`, which says where it belongs."""
    return _CRC.pack(zlib.crc32(data, zlib.crc32(salt))) + data


def unseal(blob: bytes, what: str, size: int | None = None, salt: bytes = b"") -> bytes:
    """What was sealed; BackendError, naming `what`, if it is damaged, elsewhere or not of `size` bytes."""
    data = blob[_CRC.size :]
    if len(blob) < _CRC.size or _CRC.unpack_from(blob)[0] != zlib.crc32(data, zlib.crc32(salt)):
        raise BackendError(f"damaged record: the checksum of the {what} is wrong")
    if size is not None and len(data) != size:
        raise BackendError(f"damaged record: the {what} has {len(data)} bytes, expected {size}")
    return data


def pack_chunk(number: int, base_s: int, rows: Int64s) -> bytes:
    """A chunk of `rows` [n, 3]; `base_s` is the newest time in front of it."""
    return seal(_INT64.pack(base_s) + rows.astype("<i8").tobytes(), _INT64.pack(number))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Consecutive stored events.

    Attributes:
        first: sequence number of the first.
        rows: int64 [n, 3] of items, sent times and actions.
        base_s: the newest time in front of them.
    """

    first: int
    rows: Int64s
    base_s: int

    def times(self) -> Int64s:
        """The times that the model gets, [n]: never below one in front."""
        return np.maximum(np.maximum.accumulate(self.rows[:, 1]), self.base_s)


def unpack_chunks(head: Head, numbers: range, blobs: Sequence[bytes | None]) -> Rows:
    """The events of the chunks `numbers` of a user, whole chunks.

    Raises:
        BackendError: a chunk is missing, damaged or of another length than `head` says.
    """
    if len(blobs) != len(numbers):
        raise BackendError(f"damaged record: {len(blobs)} chunks of events, expected {len(numbers)}")
    bodies: list[bytes] = []
    base_s = head.newest_s
    for number, blob in zip(numbers, blobs, strict=True):
        if blob is None:
            raise BackendError(f"damaged record: chunk {number} of the events is missing")
        events = min(CHUNK_EVENTS, head.total - number * CHUNK_EVENTS)
        size = _INT64.size + events * ROW_BYTES
        body = unseal(blob, f"chunk {number} of the events", size, _INT64.pack(number))
        if not bodies:
            base_s = _INT64.unpack_from(body)[0]
        bodies.append(body[_INT64.size :])
    rows = np.frombuffer(b"".join(bodies), "<i8").astype(np.int64).reshape(-1, 3)
    return Rows(numbers.start * CHUNK_EVENTS if numbers else head.total, rows, base_s)


def stored_history(head: Head, span: range, blobs: Sequence[bytes | None]) -> StoredHistory:
    """The events of `span` out of the chunks that hold them; BackendError if those are damaged."""
    found = unpack_chunks(head, chunk_numbers(span), blobs)
    inside = slice(len(found.rows) - len(span), None)
    items, sent, actions = found.rows[inside].T.copy()
    return StoredHistory(
        items, found.times()[inside].copy(), actions, sent, head.total - len(span), head.total
    )


def content_digest(events: EventBatch) -> bytes:
    """What a key stands for."""
    columns = (events.items, events.timestamps, events.actions)
    data = b"".join(column.astype("<i8").tobytes() for column in columns)
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def name_digest(name: bytes) -> bytes:
    """16 bytes that stand for a name of any length."""
    return hashlib.blake2b(name, digest_size=DIGEST_BYTES).digest()


class KeyRing:
    """A user's newest idempotency keys, oldest first, with what they were answered, and last offsets."""

    __slots__ = ("_keys", "_marks")

    def __init__(self, blob: bytes | None) -> None:
        """BackendError if `blob` is damaged."""
        records = b"" if blob is None else unseal(blob, "idempotency keys")
        if len(records) % _KEY.size:
            raise BackendError(f"damaged record: the idempotency keys have {len(records)} bytes")
        self._keys: list[_Record] = []
        self._marks: list[_Record] = []
        for record in _KEY.iter_unpack(records):
            (self._marks if record[3] == _MARK else self._keys).append(record)

    def find(self, key: str, content: bytes) -> Appended | None:
        """The answer that `key` got, or None; RequestError if it was for other content."""
        wanted = name_digest(key.encode())
        for digest, held, sequence, accepted, duplicates, late in self._keys:
            if digest == wanted:
                if held != content:
                    raise RequestError("key", f"{key!r} was used for other events")
                return Appended(sequence, accepted, duplicates, late, replayed=True)
        return None

    def add(self, key: str, content: bytes, answer: Appended, limit: int) -> None:
        """Put `key` behind the others; of those the newest `limit` stay."""
        counts = (answer.sequence, answer.accepted, answer.duplicates, answer.late)
        self._keys = [*self._keys, (name_digest(key.encode()), content, *counts)][-limit:]

    def offset(self, source: str) -> int:
        """The last offset that was appended of `source`; -1 for none."""
        wanted = name_digest(source.encode())
        for digest, offset, *_ in self._marks:
            if digest == wanted:
                return int.from_bytes(offset, "little")
        return -1

    def mark(self, source: str, offset: int, sequence: int) -> None:
        """`source` was appended up to `offset`; the sources that were heard of last stay."""
        digest, place = name_digest(source.encode()), offset.to_bytes(DIGEST_BYTES, "little")
        others = [record for record in self._marks if record[0] != digest]
        self._marks = [*others, (digest, place, sequence, _MARK, 0, 0)][-SOURCES_PER_USER:]

    def packed(self) -> bytes:
        return seal(b"".join(_KEY.pack(*record) for record in (*self._marks, *self._keys)))


def pack_profile(profile: Profile) -> bytes:
    return seal(_INT64.pack(profile.utc_offset_s) + profile.contextual.astype("<i8").tobytes())


def unpack_profile(blob: bytes | None) -> Profile:
    """The profile in `blob`, the empty one for None; BackendError if it is damaged."""
    if blob is None:
        return Profile(np.zeros(0, np.int64))
    body = unseal(blob, "profile")
    if len(body) < _INT64.size or len(body) % _INT64.size:
        raise BackendError(f"damaged record: the profile has {len(body)} bytes")
    values = np.frombuffer(body, "<i8").astype(np.int64)
    return Profile(values[1:].copy(), int(values[0]))
