"""From the last minutes and the readings of now to one status."""

from __future__ import annotations

from collections import Counter

from relaygr import __version__
from relaygr.serving.gauges import Readings
from relaygr.serving.recent import FIVE_MINUTES_S, MINUTE_S, Recent
from relaygr.serving.snapshot import (
    Generation,
    Histories,
    Latency,
    ModelFacts,
    Moment,
    PathLatency,
    Pool,
    Queue,
    Rates,
    Slates,
    State,
    Status,
    Tally,
)
from relaygr.serving.stream.counts import StreamStatus

ERRORS = "answer 5xx"
_Buckets = dict[str, Counter[int]]


def summary(
    state: State,
    recent: Recent,
    now: Readings,
    facts: ModelFacts | None,
    model_age_s: float | None,
    generation: Generation | None = None,
    slates: Slates | None = None,
    stream: StreamStatus | None = None,
    *,
    uptime_s: float,
    busy: float,
) -> Status:
    """Put it together; `busy` is the share of the last minute that the engine computed."""
    minute, five = recent.counts(MINUTE_S), recent.counts(FIVE_MINUTES_S)
    load = now.load
    return Status(
        state=state,
        version=__version__,
        uptime_s=round(uptime_s, 1),
        model=facts,
        model_age_s=model_age_s,
        rates=_rates(minute, recent.covered_s(MINUTE_S)),
        ranking=_ranking(recent.latencies(MINUTE_S), recent.latencies(FIVE_MINUTES_S)),
        tokens=tallies("tokens ", minute, five),
        admissions=tallies("admission ", minute, five),
        answers=tallies("answer ", minute, five),
        lost=tallies("lost ", minute, five),
        queue=Queue(
            ranks=load.ranks,
            flights=load.flights,
            busy=load.busy,
            in_progress=now.in_progress,
            utilisation=round(busy, 4),
        ),
        pool=None if now.pool is None else Pool.of(now.pool),
        generation=generation,
        slates=slates,
        stream=stream,
        histories=Histories(users=now.users, bytes=now.users_bytes),
        latency_model_error=None if now.error is None else now.error.mean_error,
        timeline=[Moment.of(*one) for one in recent.timeline("all", ERRORS)],
    )


def _rates(minute: Counter[str], seconds: float) -> Rates:
    http = sum(amount for name, amount in minute.items() if name.startswith("answer "))
    asked = minute["ranked"] + minute["rank lost"]
    return Rates(
        rank=round(minute["ranked"] / seconds, 2),
        prefix=round(minute["signalled"] / seconds, 2),
        http=round(http / seconds, 2),
        errors=round(minute[ERRORS] / seconds, 3),
        slo_ok_share=round(minute["slo_ok"] / asked, 4) if asked else None,
    )


def _ranking(minute: _Buckets, five: _Buckets) -> list[PathLatency]:
    """By path, "all" first; names of several words are not of ranking."""
    return [
        PathLatency(
            path=path,
            minute=Latency.of(minute.get(path, Counter())),
            five_minutes=Latency.of(five[path]),
        )
        for path in sorted(five, key=lambda path: (path != "all", path))
        if " " not in path
    ]


def tallies(prefix: str, minute: Counter[str], five: Counter[str]) -> list[Tally]:
    """Of the names that begin so, without the prefix."""
    return [
        Tally(name=name.removeprefix(prefix), minute=minute[name], five_minutes=amount)
        for name, amount in sorted(five.items())
        if name.startswith(prefix)
    ]
