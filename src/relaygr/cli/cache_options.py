"""The options of a trace and of replays, which `relaygr cache` and `relaygr plan cache` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from relaygr.cache.policies import POLICIES, PolicySettings
from relaygr.config.host import HostConfig
from relaygr.config.limits import Range
from relaygr.config.sizes import parse_bytes
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.curve import Capacity
from relaygr.sim.cache.events import Visits
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import Costs
from relaygr.sim.cache.reader import read_trace
from relaygr.sim.cache.trace import Trace

_SPEC = TraceSpec()
_MOST_SHARE = 1000.0  # percent of the footprint
_OF_THE_SERVER = ("first_touch_weight", "freq_cap", "ghost_entries", "ghost_halve_ops")
KNOBS = {
    **{name: HostConfig.LIMITS[name] for name in _OF_THE_SERVER},
    "promote_at": Range(1, 3),
    "small_share": Range(0, 1),
    "protected_share": Range(0, 1),
    "window_share": Range(0, 1),
    "resident_share": Range(0, 1),
    "growth_tokens": Range(0, 2**20),
    "late_tokens": Range(0, 2**20),
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Generated:
    """A made-up day of requests.

    Parameters
    ----------
    users: int
        That there are; some of them do not come.
    hours: float
        Of the trace.
    sessions_per_day: float
        Of a user, on average.
    rate_sigma: float
        Standard deviation of the logarithm of users' rates.
    zipf: float
        Rates by Zipf's law with this exponent instead; 0 for log-normal ones.
    session_requests: float
        Mean requests of a session.
    gap_s: float
        Mean seconds between them.
    first_length: float
        Median history at the first request, in tokens.
    first_sigma: float
        Standard deviation of its logarithm.
    max_length: int
        Longest history, also of event logs.
    growth: tuple[int, int]
        Fewest and most new tokens between two requests of a user.
    scan: float
        Requests of users who come once, as a share of the others, on top of them.
    burst_factor: float
        Sessions start so many times as often during bursts as on average.
    burst_share: float
        Of the time that is a burst.
    burst_period_s: float
        Seconds from one to the next.
    churn: float
        Share of the users who leave for good and are replaced.
    edits: float
        Share of the later requests before which a token of the history was changed.
    slide: float | None
        Steps of the window over longer histories, as a share of --max-length; 0 for histories that stop
        growing. By default 0 for made-up traces and 0.25 for event logs.
    seed: int
        Of all draws.
    """

    users: int = _SPEC.users
    hours: float = _SPEC.hours
    sessions_per_day: float = _SPEC.sessions_per_day
    rate_sigma: float = _SPEC.rate_sigma
    zipf: float = _SPEC.zipf
    session_requests: float = _SPEC.session_requests
    gap_s: float = _SPEC.gap_s
    first_length: float = _SPEC.first_length
    first_sigma: float = _SPEC.first_sigma
    max_length: int = _SPEC.max_length
    growth: Annotated[tuple[int, int], Parameter(negative="")] = _SPEC.growth
    scan: float = _SPEC.scan
    burst_factor: float = _SPEC.burst_factor
    burst_share: float = _SPEC.burst_share
    burst_period_s: float = _SPEC.burst_period_s
    churn: float = _SPEC.churn
    edits: float = _SPEC.edits
    slide: float | None = None
    seed: int = _SPEC.seed

    def spec(self) -> TraceSpec:
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "slide"}
        with naming("trace."):
            return TraceSpec(**given, slide=_SPEC.slide if self.slide is None else self.slide)

    def changed(self) -> list[str]:
        """Options that only a made-up trace has, and that were given."""
        return [
            _option(one.name)
            for one in fields(self)
            if one.name not in ("max_length", "slide") and getattr(self, one.name) != one.default
        ]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Source:
    """Requests from files.

    Parameters
    ----------
    trace: tuple[Path, ...]
        Read the requests from this file or dataset instead of making them up; logs may be several files.
    format: Literal["auto", "requests", "kuairand", "csv", "dataset"]
        Of the files: JSON lines of requests, or logs of events.
    events_per_request: int
        A user of an event log makes a request before each so many events.
    gap_min: float
        And on coming back after more than so many minutes.
    """

    trace: Annotated[tuple[Path, ...], Parameter(negative="")] = ()
    format: Literal["auto", "requests", "kuairand", "csv", "dataset"] = "auto"
    events_per_request: int = Visits().events_per_request
    gap_min: float = Visits().gap_min


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Priced:
    """What tokens cost.

    Parameters
    ----------
    t1: float
        Cost of a new token, in any unit.
    t2: float
        Cost of its looking at one other.
    t_load: float
        Cost of loading a cached token, for policies that weigh it.
    """

    t1: float = Costs().t1
    t2: float = Costs().t2
    t_load: float = Costs().t_load

    def costs(self) -> Costs:
        with naming("costs."):
            return Costs(t1=self.t1, t2=self.t2, t_load=self.t_load)


FromFiles = Annotated[Source | None, Parameter(name="*")]
MadeUp = Annotated[Generated | None, Parameter(name="*")]
Prices = Annotated[Priced | None, Parameter(name="*")]
Knobs = Annotated[PolicySettings | None, Parameter(name="--knob")]


def open_trace(source: Source | None, generated: Generated | None) -> Trace:
    """The trace that the options ask for.

    Raises:
        ConfigError: naming the option; also where options of made-up traces come with files.
        DataError: a file is not what it should be.
    """
    files, made = source or Source(), generated or Generated()
    if not files.trace:
        spec = made.spec()
        with naming("trace."):
            return generate(spec)
    if changed := made.changed():
        raise ConfigError("--trace", f"{files.trace[0]} and {changed[0]} exclude each other")
    with naming("visits."):
        visits = Visits(
            events_per_request=files.events_per_request,
            gap_min=files.gap_min,
            max_length=made.max_length,
            slide=Visits().slide if made.slide is None else made.slide,
        )
    return read_trace(files.trace, files.format, visits)


def check_knobs(knob: PolicySettings | None) -> PolicySettings:
    """The knobs, or their defaults; ConfigError for one that is out of range."""
    found = knob or PolicySettings()
    for name, limit in KNOBS.items():
        limit.check(f"--knob.{name.replace('_', '-')}", getattr(found, name))
    return found


def listed(option: str, text: str) -> tuple[str, ...]:
    """The parts of `a,b,c`; ConfigError when there are none, or one stands twice."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise ConfigError(option, f"{text!r} names nothing")
    for part in parts:
        if parts.count(part) > 1:
            raise ConfigError(option, f"{part!r} stands more than once")
    return parts


def parse_policies(option: str, text: str) -> tuple[str, ...]:
    """Names of policies, or all of them; ConfigError for others."""
    names = POLICIES if text.strip() == "all" else listed(option, text)
    for name in names:
        if name not in POLICIES:
            raise ConfigError(option, f"{name!r} is none of {', '.join(POLICIES)}")
    return names


def parse_capacities(option: str, text: str) -> list[Capacity]:
    """Shares of the footprint and counts of bytes, such as `2%,10%,4GiB`."""
    return [_capacity(option, part) for part in listed(option, text)]


def parse_size(option: str, text: str) -> int:
    """A count of bytes; ConfigError naming the option."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(option, str(error)) from error


def _capacity(option: str, text: str) -> Capacity:
    if not text.endswith("%"):
        return Capacity(text, nbytes=parse_size(option, text))
    try:
        percent = float(text[:-1])
    except ValueError as error:
        raise ConfigError(option, f"{text!r} must be a percentage such as 2%") from error
    if not 0 < percent <= _MOST_SHARE:
        raise ConfigError(option, f"{text!r} must be in (0%, {_MOST_SHARE:g}%]")
    return Capacity(text, share=percent / 100)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Errors about a key with this prefix name the option of its last part instead."""
    try:
        yield
    except ConfigError as error:
        if error.path.startswith("--") or not error.path.startswith(prefix):
            raise
        message = str(error).removeprefix(f"{error.path}: ")
        raise ConfigError(_option(error.path.removeprefix(prefix)), message) from error
