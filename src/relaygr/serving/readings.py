"""What a running service says of itself when it is asked."""

from __future__ import annotations

from relaygr.core.clock import MonotonicClock
from relaygr.engine.relay import Relay
from relaygr.engine.scheduler import Scheduler
from relaygr.serving.admit import Admissions
from relaygr.serving.cache_gauges import CacheReadings
from relaygr.serving.cache_watch import CacheWatch
from relaygr.serving.gauges import Readings
from relaygr.serving.reload import Served
from relaygr.serving.users import Users

_CLOCK = MonotonicClock()


def readings(
    scheduler: Scheduler,
    users: Users,
    served: Served,
    relay: Relay,
    admissions: Admissions,
    watch: CacheWatch,
) -> Readings:
    """Of this moment."""
    engine, known = served.engine, served.known
    pool = engine.cache_stats()
    cache = CacheReadings(
        watched=watch.watched(),
        decisions=engine.stats().decisions,
        copies=engine.copy_stats(),
        copied=engine.copied_bytes,
        disk_bytes=engine.below.copied_bytes,
        disk_missing=engine.below.is_missing,
        drift=served.drift.probability if served.drift is not None else None,
        lease_s=_CLOCK.now_s() - pool.oldest_lease_s if pool.oldest_lease_s is not None else None,
        pool=pool,
    )
    return Readings(
        load=scheduler.load(),
        pool=pool,
        error=known.latency.error() if known is not None else None,
        in_progress=admissions.in_progress,
        users=len(users),
        users_bytes=users.held_bytes,
        relay=relay.state(),
        copied=engine.copied_bytes,
        cache=cache,
    )
