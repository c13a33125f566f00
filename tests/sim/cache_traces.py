"""Traces written out by hand, for tests of replays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaygr.sim.cache.trace import Trace, peaks


def trace_of(requests: Sequence[tuple[int, int]], same: Sequence[int] | None = None) -> Trace:
    """(user, length) a second apart; what is as before is all that can be, unless it is given."""
    user = np.array([one[0] for one in requests], np.int64)
    length = np.array([one[1] for one in requests], np.int64)
    if same is None:
        longest: dict[int, int] = {}
        same = []
        for who, tokens in requests:
            same.append(min(longest.get(who, 0), tokens))
            longest[who] = max(longest.get(who, 0), tokens)
    users = int(user.max()) + 1
    return Trace(
        name="by hand",
        time_ms=1000 * np.arange(len(user)),
        user=user,
        length=length,
        same=np.array(same, np.int64),
        users=users,
        base_tokens=int(peaks(user, length, users).sum()),
    )
