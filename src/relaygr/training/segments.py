"""Requests by how active their user had been: the segments between neighbouring caps on the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from relaygr.data.dataset import Int64s
from relaygr.training.metrics import Bools

ALL = "all"


@dataclass(frozen=True, slots=True)
class Segment:
    """Requests whose user had `low` <= events < `high` before them; `high` of None is no limit."""

    name: str
    low: int
    high: int | None

    def holds(self, events_before: Int64s) -> Bools:
        """[requests] -> which of them belong here."""
        found: Bools = events_before >= self.low
        return found if self.high is None else found & (events_before < self.high)


def segments(caps: Sequence[int]) -> tuple[Segment, ...]:
    """All requests, then one segment below the first cap, between neighbours and from the last cap on.

    In the segment below a cap that cap and larger ones read the same history.

    Args:
        caps: ascending, at least 1 each.
    """
    found = [Segment(ALL, 0, None), Segment(f"<{caps[0]}", 0, caps[0])]
    for low, high in pairwise(caps):
        found.append(Segment(f"{low}-{high - 1}" if high - low > 1 else f"{low}", low, high))
    return (*found, Segment(f">={caps[-1]}", caps[-1], None))
