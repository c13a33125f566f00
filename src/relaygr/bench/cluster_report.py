"""What `bench cluster` writes."""

from __future__ import annotations

import msgspec


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Visits of a phase; times are of rankings, answered or not, from when they were sent."""

    name: str
    visits: int
    failed: int
    hung: int
    affinity_share: float | None
    hit_share: float | None
    p50_ms: float
    p99_ms: float
    longest_ms: float


class ShapeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One shape under load while its members change.

    Attributes:
        policy: what is done about a try that fails, besides the client's own retries.
        hop_ms: P50 of its rankings, less that of one server alone that is asked by turns with it.
        affinity_share: of the steady phase's visits, those with both laps on one replica.
        failed_after_kill, failed_in_add, failed_in_update: visits of that phase that failed, after all
            retries.
        hung_after_kill: rankings that took longer than their deadline and the client's own second.
        unsettled_after_kill_s: from the kill to the end of the last visit that failed, was split or did not
            hit; 0 if there was none.
        moved_share_after_add: of users who were ranked in the phases before and after, those who moved.
        moved_share_wanted: what the one that is added takes, if it takes as much as each of the others.
        checked, mixed_versions: rankings of the update, and those whose scores are not their model's.
        versions: rankings of the update by model.
        wrong: the first of the mixed ones.
    """

    shape: str
    policy: str
    phases: list[Phase]
    hop_ms: float | None
    affinity_share: float | None
    failed_after_kill: int
    hung_after_kill: int
    unsettled_after_kill_s: float
    failed_in_add: int
    moved_share_after_add: float | None
    moved_share_wanted: float
    failed_in_update: int
    mixed_versions: int
    checked: int
    versions: dict[str, int]
    wrong: list[str]


class ScalePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A number of replicas; medians of the rounds.

    Attributes:
        rps: relayed rankings a second, answered in time and without failure, at saturation.
        engines_rps: the same work by as many engines with neither HTTP nor router: what the machine gives.
        speed_up: rps over that of the smallest number of replicas.
        efficiency: speed_up by the number of replicas, relative to the smallest; 1 is linear.
        of_machine: rps / engines_rps.
        rounds_rps: of each round.
    """

    replicas: int
    rps: float
    engines_rps: float
    speed_up: float
    efficiency: float
    of_machine: float
    affinity_share: float | None
    failed: int
    p50_ms: float
    p99_ms: float
    rounds_rps: list[float]


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput by the number of replicas.

    Attributes:
        threads: compute threads of each replica and engine, whatever their number.
        note: where this machine cannot scale.
        skipped: numbers of replicas that were left out, and why.
    """

    shape: str
    preset: str
    events: int
    candidates: int
    clients: int
    threads: int
    rounds: int
    window_s: float
    points: list[ScalePoint]
    note: str
    skipped: dict[int, str]


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench cluster --json` writes.

    Attributes:
        load: the machine's load average when it ended.
        affinity_share, failed_after_kill, moved_share_after_add: of the first of `shapes`; None without any.
        skipped: shapes that this machine cannot run, and why.
    """

    cpu: str
    cores: int
    load: float
    replicas: int
    users: int
    rate: float
    affinity_share: float | None
    failed_after_kill: int | None
    moved_share_after_add: float | None
    shapes: list[ShapeReport]
    skipped: dict[str, str]
    scale: ScaleReport | None
