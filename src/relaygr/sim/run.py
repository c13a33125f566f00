"""One simulation from the first request to the last answer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from relaygr.sim.changes import apply
from relaygr.sim.fleet import Fleet
from relaygr.sim.tally import Result, Tally, counts, times
from relaygr.sim.timeline import Timeline
from relaygr.sim.traffic import Traffic
from relaygr.sim.workload import Workload, generate
from relaygr.sim.world import World

_WINDOWS = 40


def simulate(world: World, traffic: Traffic) -> Result:
    """Serve the requests of `traffic`; equal arguments give equal results."""
    return serve(world, generate(traffic), traffic.short_length if traffic.short_share else 0)


def serve(world: World, workload: Workload, short_length: int = 0) -> Result:
    """`simulate` for requests that are there already."""
    with _no_collections():  # until all that was alive can go
        return _serve(world, workload, short_length)


def _serve(world: World, workload: Workload, short_length: int) -> Result:
    timeline = Timeline()
    counted = workload.time_s[workload.counted]
    begin_s, end_s = float(counted[0]), float(counted[-1])
    tally = Tally(begin_s, max((end_s - begin_s) / _WINDOWS, 1e-6), short_length)
    fleet = Fleet(world, timeline, tally)
    requests = iter(workload)

    def feed() -> None:
        request = next(requests, None)
        if request is not None:
            fleet.arrive(request)
            if (following := next(lookahead, None)) is not None:
                timeline.at(following, feed)

    lookahead: Iterator[float] = iter(workload.time_s.tolist())
    fleet.expected = len(workload)
    for change in world.changes:
        timeline.at(begin_s + change.time_s, apply, fleet, change)
    first = next(lookahead, None)
    if first is not None:
        timeline.at(first, feed)
    timeline.run()
    return _result(fleet, tally, timeline)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Nothing here refers to itself: looking for that would take a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _result(fleet: Fleet, tally: Tally, timeline: Timeline) -> Result:
    count, total = max(tally.requests, 1), max(fleet.answered, 1)
    seconds = max(tally.last_s - tally.first_s, 1e-9)
    instances = fleet.instances
    whole_s = timeline.now_s * sum(one.machine.slots for one in instances)
    admitted = max(tally.admitted(), 1)
    signals = sum(one.site.counts.admitted for one in instances)
    ranked = [one.site.counts.ranked for one in instances]
    return Result(
        requests=tally.requests,
        rate=tally.requests / seconds,
        good=tally.good,
        in_time=tally.in_time,
        valid=tally.valid,
        latency=times(tally.latency),
        wait=times(tally.wait),
        work=times(tally.work),
        short=times(tally.short),
        paths=counts(tally.paths),
        reasons=counts(tally.reasons),
        outcomes=counts(tally.outcomes),
        late=counts(tally.late),
        served_mean=tally.served / count,
        computed_ahead=sum(one.site.counts.computed for one in instances) / total,
        computed_inline=tally.inline / count,
        busy=sum(one.machine.busy_s for one in instances) / max(whole_s, 1e-9),
        device_hits=tally.hits / count,
        ready_before=tally.ready / admitted,
        wasted=sum(one.site.counts.wasted for one in instances) / max(signals, 1),
        owners_differ=tally.differ / max(tally.both, 1),
        reloads=sum(one.site.counts.reloads for one in instances),
        spills=sum(one.site.counts.spills for one in instances),
        fetches=fleet.fetches,
        load_max_over_mean=max(ranked) * len(ranked) / max(sum(ranked), 1),
        windows=tally.windows(),
    )
