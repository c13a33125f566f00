"""One simulation from the first request to the last answer."""

from __future__ import annotations

from collections.abc import Iterator

from relaygr.sim.fleet import Fleet
from relaygr.sim.tally import Result, Tally, counts, times
from relaygr.sim.timeline import Timeline
from relaygr.sim.traffic import Traffic
from relaygr.sim.workload import Workload, generate
from relaygr.sim.world import World


def simulate(world: World, traffic: Traffic) -> Result:
    """Serve the requests of `traffic`; equal arguments give equal results."""
    return serve(world, generate(traffic), traffic.short_length if traffic.short_share else 0)


def serve(world: World, workload: Workload, short_length: int = 0) -> Result:
    """`simulate` for requests that are there already."""
    timeline, tally = Timeline(), Tally(short_length)
    longest = int((workload.before + workload.new).max()) if len(workload) else 0
    fleet = Fleet(world, timeline, tally, longest)
    requests = iter(workload)

    def feed() -> None:
        request = next(requests, None)
        if request is not None:
            fleet.arrive(request)
            if (following := next(lookahead, None)) is not None:
                timeline.at(following, feed)

    lookahead: Iterator[float] = iter(workload.time_s.tolist())
    first = next(lookahead, None)
    if first is not None:
        timeline.at(first, feed)
    timeline.run()
    return _result(fleet, tally, timeline)


def _result(fleet: Fleet, tally: Tally, timeline: Timeline) -> Result:
    count = max(tally.requests, 1)
    seconds = max(tally.last_s - tally.first_s, 1e-9)
    instances = fleet.instances
    whole_s = timeline.now_s * sum(one.machine.slots for one in instances)
    admitted = max(tally.admitted(), 1)
    return Result(
        requests=tally.requests,
        rate=tally.requests / seconds,
        good=tally.good,
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
        computed_ahead=sum(one.computed for one in instances) / count,
        computed_inline=tally.inline / count,
        busy=sum(one.machine.busy_s for one in instances) / max(whole_s, 1e-9),
        device_hits=tally.hits / count,
        ready_before=tally.ready / admitted,
        wasted=sum(one.wasted for one in instances) / admitted,
        owners_differ=tally.differ / max(tally.both, 1),
        reloads=0,
        spills=0,
        fetches=fleet.fetches,
    )
