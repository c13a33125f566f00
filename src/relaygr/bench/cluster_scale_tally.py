"""The arithmetic of scaling: what fits, what the machine gives, and how far a cluster comes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relaygr.bench.cluster_report import ScalePoint
from relaygr.bench.cluster_tally import Visit, affinity_share, failed, percentile_ms
from relaygr.core.units import format_bytes


@dataclass(frozen=True, slots=True)
class Window:
    """One measurement: visits that ended within `seconds`, failed ones among them."""

    visits: Sequence[Visit]
    seconds: float

    @property
    def rps(self) -> float:
        """Rankings a second that were answered."""
        return sum(not one.error for one in self.visits) / self.seconds


def threads_of(cores: int, most: int) -> int:
    """Compute threads of each replica, so that `most` of them share the cores; the same for fewer."""
    return max(1, cores // most)


def too_large(count: int, replica_bytes: int | None, available: int | None) -> str:
    """Why so many replicas do not fit into the memory that is available; empty if they do or nobody knows."""
    if replica_bytes is None or available is None or count * replica_bytes <= available:
        return ""
    needed = format_bytes(count * replica_bytes)
    return f"{count} replicas need {needed} of memory, {format_bytes(available)} are available"


def limit_note(cores: int, threads: int, counts: Sequence[int]) -> str:
    """Where the cores end; empty if all the counts have their own."""
    most = cores // threads
    beyond = [count for count in counts if count > most]
    if not beyond:
        return ""
    named = " and ".join(str(count) for count in beyond)
    return (
        f"{cores} cores are as many as {most} replicas of {threads} thread{'s' * (threads > 1)} use: {named} "
        "cannot be faster here, and the load's own work takes a part of the cores"
    )


def points(
    windows: Mapping[int, Sequence[Window]], engines_rps: Mapping[int, Sequence[float]]
) -> list[ScalePoint]:
    """Medians of the rounds, by the number of replicas, ascending; times and shares over all of them."""
    rps = {count: statistics.median(one.rps for one in windows[count]) for count in sorted(windows)}
    least = min(rps, default=0)
    found = []
    for count, rate in rps.items():
        limit = statistics.median(engines_rps[count])
        visits = [visit for window in windows[count] for visit in window.visits]
        speed_up = rate / rps[least] if rps[least] else 0.0
        found.append(
            ScalePoint(
                replicas=count,
                rps=rate,
                engines_rps=limit,
                speed_up=speed_up,
                efficiency=speed_up * least / count,
                of_machine=rate / limit if limit else 0.0,
                affinity_share=affinity_share(visits),
                failed=failed(visits),
                p50_ms=percentile_ms(visits, 0.5),
                p99_ms=percentile_ms(visits, 0.99),
                rounds_rps=[one.rps for one in windows[count]],
            )
        )
    return found
