"""What the list layer has done since it started, for metrics."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from relaygr.listwise.result import SlateResult


class SlateCounts:
    """Counters that any thread may add to; read them with `snapshot`.

    Keys are (what, which): `mode`, `generator` (of returned lists), `fallback` (by reason), `relaxed` (by
    rule), `stage` (last one finished), `exploration` (what became of it), `dropped` (lists that broke a rule,
    by generator); with an empty second part `timeout`, `unrestricted` and `lookahead_budget`.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, result: SlateResult, timed_out: bool) -> None:
        with self._lock:
            counts = self._counts
            counts["mode", result.mode.value] += 1
            counts["generator", result.generator] += 1
            counts["stage", result.stage_reached.value] += 1
            if result.fallback_reason is not None:
                counts["fallback", result.fallback_reason.value] += 1
            if result.exploration is not None:
                counts["exploration", result.exploration.value] += 1
            for each in result.relaxations:
                counts["relaxed", each.rule] += 1
            for one in result.dropped:
                counts["dropped", one.generator] += 1
            counts["lookahead_budget", ""] += result.lookahead_budget
            counts["timeout", ""] += timed_out
            counts["unrestricted", ""] += result.unrestricted

    def snapshot(self) -> dict[tuple[str, str], int]:
        """All counters that are not zero."""
        with self._lock:
            return {key: count for key, count in self._counts.items() if count}
