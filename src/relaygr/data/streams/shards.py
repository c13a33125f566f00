"""Which of several streams a user's events are in."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from relaygr.core.ids import DEFAULT_TENANT


def shard_of(user: str, streams: Sequence[str], tenant: str = DEFAULT_TENANT) -> str:
    """One of `streams`, always the same: CRC-32 of `TENANT/USER` in UTF-8, modulo their number.

    Any rule will do that keeps the events of a user in one stream; producers must agree on it.
    """
    return streams[zlib.crc32(f"{tenant}/{user}".encode()) % len(streams)]
