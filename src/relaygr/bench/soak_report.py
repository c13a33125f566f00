"""What `bench soak --json` writes."""

from __future__ import annotations

import msgspec


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a server holds when nothing is asked of it.

    Attributes:
        rss_bytes, files: memory and open files of the process; null where the system does not tell.
        leases, pinned_bytes, waiting: of prefixes, and jobs that wait or run.
    """

    rss_bytes: int | None
    files: int | None
    leases: int
    pinned_bytes: int
    waiting: int


class SoakReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened.

    Attributes:
        counts: requests by kind.
        failed: well-formed requests, not given up, that got no good answer.
        wrong: answers that are not what they should be; checked: rankings that were scored again.
        before: after the first quarter of the requests, when caches are filled; after: at the end.
        violations: one line each, the first of every kind in full.
    """

    cpu: str
    cores: int
    preset: str
    seed: int
    requests: int
    seconds: float
    counts: dict[str, int]
    failed: int
    wrong: int
    checked: int
    reloads: int
    before: Held
    after: Held
    violations: list[str]

    @property
    def grown_bytes(self) -> int | None:
        before, after = self.before.rss_bytes, self.after.rss_bytes
        return None if before is None or after is None else after - before
