"""The form of a record on disk: a header that is written last, what it is, and its bytes.

A record begins at a multiple of `ALIGN`, so that its header lies in one sector and is replaced in one piece.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np

from relaygr.cache.interface import PageSum
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

MAGIC = b"RGRD"
VERSION = 1
ALIGN = 64
DIGEST_BYTES = 16
_FIELDS = struct.Struct("<4sHHQIIQI")  # all but the checksum of the header itself
HEADER_BYTES = _FIELDS.size + 4


class Kind(IntEnum):
    PENDING = 1  # its bytes are still being written: to be stepped over
    ENTRY = 2


class Header(NamedTuple):
    """Sizes and checksums of the two parts behind it."""

    kind: int
    number: int
    meta_bytes: int
    meta_crc: int
    data_bytes: int
    data_crc: int

    @property
    def meta_at(self) -> int:
        return HEADER_BYTES

    @property
    def data_at(self) -> int:
        return HEADER_BYTES + self.meta_bytes

    @property
    def end(self) -> int:
        return self.data_at + self.data_bytes

    @property
    def nbytes(self) -> int:
        """What the record takes."""
        return record_bytes(self.meta_bytes, self.data_bytes)

    def pack(self) -> bytes:
        fields = _FIELDS.pack(MAGIC, VERSION, *self)
        return fields + struct.pack("<I", zlib.crc32(fields))


def record_bytes(meta_bytes: int, data_bytes: int) -> int:
    """What a record of such parts takes."""
    return -(-(HEADER_BYTES + meta_bytes + data_bytes) // ALIGN) * ALIGN


class Meta(NamedTuple):
    """Whose state a record is, in which layout, and the checksums of its pages."""

    ref: Ref
    layout_id: str
    sums: tuple[PageSum, ...]


class _Wire(msgspec.Struct, array_like=True, frozen=True):
    tenant: str
    user: str
    model_fp: bytes
    schema: int
    anchor: int
    digests: bytes
    page_ends: bytes  # uint64 each
    records: bytes
    record_bytes: int
    tokens: int
    layout_id: str
    sums: list[tuple[int, int]]


def unpack(data: bytes) -> Header | None:
    """The header in the first bytes of `data`; None if there is none, or a damaged one."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return None
    _, version, *fields = _FIELDS.unpack_from(data)
    (crc,) = struct.unpack_from("<I", data, _FIELDS.size)
    if version != VERSION or crc != zlib.crc32(data[: _FIELDS.size]):
        return None
    header = Header(*fields)
    return header if header.kind in set(Kind) else None


def encode(meta: Meta) -> bytes:
    """Raises ValueError for a content whose digests are not of `DIGEST_BYTES` each."""
    ref = meta.ref
    if any(len(digest) != DIGEST_BYTES for digest in ref.digests):
        raise ValueError(f"digests: must have {DIGEST_BYTES} bytes each")
    return msgspec.msgpack.encode(
        _Wire(
            tenant=ref.tenant,
            user=ref.user,
            model_fp=ref.model_fp,
            schema=ref.schema,
            anchor=ref.anchor,
            digests=b"".join(ref.digests),
            page_ends=np.array(ref.page_ends, "<u8").tobytes(),
            records=bytes(ref.records),
            record_bytes=ref.record_bytes,
            tokens=ref.tokens,
            layout_id=meta.layout_id,
            sums=[(one.page, one.crc) for one in meta.sums],
        )
    )


def decode(data: bytes | bytearray) -> Meta | None:
    """What `encode` was given; None for anything that it cannot have been."""
    try:
        wire = msgspec.msgpack.decode(data, type=_Wire)
        ends = tuple(np.frombuffer(wire.page_ends, "<u8").tolist())
    except (msgspec.MsgspecError, ValueError):
        return None
    digests = tuple(wire.digests[at : at + DIGEST_BYTES] for at in range(0, len(wire.digests), DIGEST_BYTES))
    whole = len(wire.digests) == DIGEST_BYTES * (len(ends) + 1)
    rising = all(low < high for low, high in zip((0, *ends), ends, strict=False))
    last = ends[-1] if ends else 0
    sized = wire.record_bytes > 0 and len(wire.records) == wire.tokens * wire.record_bytes
    if not (whole and rising and last == wire.tokens and sized):
        return None
    ref = Ref(
        tenant=Tenant(wire.tenant),
        user=UserId(wire.user),
        model_fp=Fingerprint(wire.model_fp),
        schema=wire.schema,
        anchor=wire.anchor,
        digests=digests,
        page_ends=ends,
        records=memoryview(wire.records),
        record_bytes=wire.record_bytes,
        tokens=wire.tokens,
    )
    return Meta(ref, wire.layout_id, tuple(PageSum(page, crc) for page, crc in wire.sums))
