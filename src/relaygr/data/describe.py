"""The statistics of a dataset that decide whether long histories pay: lengths, bursts, repeats, heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.data.dataset import Events, Int64s

SESSION_GAP_S = 6 * 3600
REPEAT_WINDOW = 50


@dataclass(frozen=True, slots=True)
class Statistics:
    """Shares are in [0, 1] over events; every share of an empty dataset is 0.

    Attributes:
        same_second: share of events in the same second as the user's event before.
        sessions: runs of events without `SESSION_GAP_S` of silence within a user.
        repeats: share of events whose item is among the user's `REPEAT_WINDOW` events before.
        long_users_share: share held by users with at least 1,000 events.
        top_items_share: share on the most frequent 1 % of items (rounded down, at least one).
    """

    events: int
    users: int
    items: int
    first_s: int
    last_s: int
    median_length: float
    p90_length: float
    p99_length: float
    max_length: int
    users_50: int
    users_200: int
    users_1000: int
    users_10000: int
    long_users_share: float
    same_second: float
    sessions: int
    events_per_session: float
    repeats: float
    single_event_items: int
    top_items_share: float


def describe(events: Events) -> Statistics:
    """Count everything in `Statistics`; one sort by (user, item), so memory is a few words per event."""
    total = events.n_events
    lengths = np.diff(events.offsets)
    p50, p90, p99 = np.percentile(lengths, [50, 90, 99]) if lengths.size else (0.0, 0.0, 0.0)
    owner = np.repeat(np.arange(events.n_users), lengths)
    gaps = np.diff(events.timestamps)[owner[1:] == owner[:-1]]
    sessions = int(np.count_nonzero(lengths)) + int(np.count_nonzero(gaps > SESSION_GAP_S))
    per_item = np.sort(np.unique(events.item_ids, return_counts=True)[1])[::-1]
    head = max(per_item.size // 100, 1)

    def share(count: int) -> float:
        return count / total if total else 0.0

    return Statistics(
        events=total,
        users=events.n_users,
        items=per_item.size,
        first_s=int(events.timestamps.min()) if total else 0,
        last_s=int(events.timestamps.max()) if total else 0,
        median_length=float(p50),
        p90_length=float(p90),
        p99_length=float(p99),
        max_length=int(lengths.max()) if lengths.size else 0,
        users_50=int(np.count_nonzero(lengths >= 50)),
        users_200=int(np.count_nonzero(lengths >= 200)),
        users_1000=int(np.count_nonzero(lengths >= 1000)),
        users_10000=int(np.count_nonzero(lengths >= 10_000)),
        long_users_share=share(int(lengths[lengths >= 1000].sum())),
        same_second=share(int(np.count_nonzero(gaps == 0))),
        sessions=sessions,
        events_per_session=total / sessions if sessions else 0.0,
        repeats=share(_count_repeats(owner, events.item_ids)),
        single_event_items=int(np.count_nonzero(per_item == 1)),
        top_items_share=share(int(per_item[:head].sum())),
    )


def _count_repeats(owner: Int64s, item_ids: Int64s) -> int:
    """Events whose nearest earlier event of the same user and item is at most `REPEAT_WINDOW` events back."""
    order = np.lexsort((item_ids, owner))  # stable, so equal pairs stay in time order
    near = np.diff(order) <= REPEAT_WINDOW
    same = (np.diff(owner[order]) == 0) & (item_ids[order[1:]] == item_ids[order[:-1]])
    return int(np.count_nonzero(near & same))
