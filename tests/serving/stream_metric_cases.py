"""A consumer's counts after one of everything."""

from __future__ import annotations

from collections import Counter

from relaygr.data.streams import Lag
from relaygr.serving.stream.counts import RESULTS, Counts


def told_counts() -> Counts:
    return Counts(
        ("events:0", "events:1"),
        state="reading",
        read=Counter({"events:0": 20}),
        results=Counter({("events:0", result): at + 5 for at, result in enumerate(RESULTS)}),
        reconnects=2,
        retries=3,
        assigned=frozenset(["events:0"]),
        lag=(Lag("events:0", 1200, 7.0, 4), Lag("events:1", 34, 90.0, 0)),
    )
