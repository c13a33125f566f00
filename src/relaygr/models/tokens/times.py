"""Times as features: log-spaced gaps, the clock, and when an item was last seen; int64 seconds throughout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GAP_ROWS = 65
NO_PREDECESSOR = GAP_ROWS - 1
_DAY_S = 86_400
_WEEK_S = 7 * _DAY_S
_EPOCH_WEEKDAY_S = 4 * _DAY_S  # the Unix epoch was a Thursday; weeks count from Sunday


# Smallest gap in seconds of each row but the first: 4 ln(1 + gap / 60) >= row.
_GAP_EDGES = torch.tensor([math.ceil(60 * math.expm1(row / 4)) for row in range(1, GAP_ROWS - 1)])


def gap_bucket(seconds: Tensor) -> Tensor:
    """Row of the gap table, min(int(4 ln(1 + max(gap, 0) / 60)), 63), by integer comparison; any int64."""
    return torch.bucketize(seconds, _GAP_EDGES, right=True)


def clock_features(timestamps: Tensor, utc_offset_s: Tensor | int) -> Tensor:
    """Sine and cosine of the time of day and of the week; int64 [n] -> float64 [n, 4]."""
    local = timestamps + utc_offset_s
    day = (local % _DAY_S).to(torch.float64) * (2 * math.pi / _DAY_S)
    week = ((local + _EPOCH_WEEKDAY_S) % _WEEK_S).to(torch.float64) * (2 * math.pi / _WEEK_S)
    return torch.stack([day.sin(), day.cos(), week.sin(), week.cos()], dim=-1)


def last_seen_gap(
    items: Tensor, timestamps: Tensor, candidates: Tensor, visible: Tensor, query_times: Tensor
) -> Tensor:
    """Gap-table rows of the time since each candidate's item last occurred in the history.

    Args:
        items, timestamps: int64 [h].
        candidates: int64 [m].
        visible: int64 [m] or [1]; only events before this index count.
        query_times: int64 [m] or [1].

    Returns:
        int64 [m]; `NO_PREDECESSOR` for an item that does not occur.
    """
    if not len(items):
        return torch.full_like(candidates, NO_PREDECESSOR)
    ordered, order = torch.sort(items, stable=True)
    # Group (first place of the item) and event index as one ascending key: an item's last visible event is
    # the largest key below (group, visible).
    width = len(items) + 1
    keys = torch.searchsorted(ordered, ordered) * width + order
    group = torch.searchsorted(ordered, candidates)
    place = torch.searchsorted(keys, group * width + visible) - 1
    found = (place >= group) & (ordered[place.clamp(min=0)] == candidates)
    gaps = gap_bucket(query_times - timestamps[order[place.clamp(min=0)]])
    return torch.where(found, gaps, torch.full_like(gaps, NO_PREDECESSOR))
