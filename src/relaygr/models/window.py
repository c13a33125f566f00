"""Which events of a long history a model sees: the window grows, then its start jumps by a whole stride.

A start that slid with each event would change every position and so every cached key and value.
"""

from __future__ import annotations

import math

PAGE_EVENTS = 32


def anchor_stride(limit: int, share: float) -> int:
    """Events that a jump drops: `share` of `limit`, rounded up to whole `PAGE_EVENTS`, in [1, limit].

    Never less than asked for: a jump costs a whole pass, and there are growth / stride of them.
    Not to the pages of a pool: what a model sees must not depend on how its K/V are stored.

    Raises:
        ValueError: naming the argument, its value and its range.
    """
    if limit < 1:
        raise ValueError(f"limit: {limit} must be at least 1")
    if not 0 < share <= 1:
        raise ValueError(f"share: {share} must be in (0, 1]")
    pages = math.ceil(round(share * limit / PAGE_EVENTS, 9))  # 0.1 * 320 is a little more than 32
    return min(max(pages, 1) * PAGE_EVENTS, limit)


def anchor(events: int, limit: int, stride: int) -> int:
    """First visible event of a history of `events`: 0 up to `limit`, then a multiple of `stride`.

    At most `limit` and at least `limit - stride + 1` events are visible once the history is longer than
    `limit`. The value depends on the number of events only, so it never moves back.
    """
    if events <= limit:
        return 0
    return -(-(events - limit) // stride) * stride
