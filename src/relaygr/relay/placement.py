"""Which member has which user: one bounded memory with expiry; what it forgets is a miss, never an error."""

from __future__ import annotations

import math
from collections import OrderedDict
from zlib import crc32


def stay_s(key: str, ttl_s: float) -> float:
    """How long a user stays elsewhere: `ttl_s` or a part, so that who fled together comes back one by one."""
    return ttl_s * (0.25 + 0.75 * crc32(key.encode()) / 2**32)


class Placements:
    """Users' members, least recently used first out."""

    def __init__(self, ttl_s: float, limit: int) -> None:
        """A record is believed for `ttl_s` after its last use; there are at most `limit`."""
        self._ttl_s, self._limit = ttl_s, limit
        self._records: OrderedDict[str, tuple[str, float]] = OrderedDict()
        # Of users who are elsewhere for the time being: when they may go back, however often they come.
        self._stays: dict[str, float] = {}

    def __len__(self) -> int:
        """Records in memory; those that are too old to be believed leave when they are met."""
        return len(self._records)

    def get(self, key: str, now_s: float, *, lasting_s: float = 0.0) -> str | None:
        """The member that the user is placed on; a stay that ends within `lasting_s` has ended."""
        record = self._records.get(key)
        if record is None:
            return None
        member, expiry_s = record
        if now_s >= expiry_s or now_s + lasting_s >= self._stays.get(key, math.inf):
            self.forget(key)
            return None
        return member

    def put(self, key: str, member: str, now_s: float, *, for_now: bool = False) -> None:
        """The user is placed on `member` from now on; one record too many drops the oldest.

        With `for_now`, because the user's own member does not serve, the record is not believed longer for
        being used (`stay_s`).
        """
        records = self._records
        before = records.get(key)
        if for_now:
            self._stays[key] = now_s + stay_s(key, self._ttl_s)
        elif before is not None and before[0] != member:
            self._stays.pop(key, None)
        records[key] = member, min(now_s + self._ttl_s, self._stays.get(key, math.inf))
        records.move_to_end(key)
        # Records that have expired are the oldest: two of them for each new one keeps the memory clean.
        for _ in range(2):
            oldest = next(iter(records), None)
            if oldest is None or (len(records) <= self._limit and now_s < records[oldest][1]):
                return
            self.forget(oldest)

    def forget(self, key: str) -> None:
        self._records.pop(key, None)
        self._stays.pop(key, None)
