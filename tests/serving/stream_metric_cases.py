"""A consumer's counts after one of everything."""

from __future__ import annotations

from collections import Counter
from math import inf

from relaygr.data.streams import Lag
from relaygr.serving.stream.counts import RESULTS, Counts, Told


def told_counts() -> Counts:
    lag = (Lag("events:0", 1200, 7.0, 4), Lag("events:1", 34, 90.0, 0))
    return Counts(
        ("events:0", "events:1"),
        state="reading",
        read=Counter({"events:0": 20}),
        results=Counter({("events:0", result): at + 5 for at, result in enumerate(RESULTS)}),
        reconnects=2,
        retries=3,
        leases={"events:0": inf},
        lag={one.stream: Told(one, 0.0, inf) for one in lag},
    )
