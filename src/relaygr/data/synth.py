"""A seeded generator of event histories that look like those of real services and hold something to learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import TIME_LIMIT_S, Int64s
from relaygr.data.write import EventTable

Floats = npt.NDArray[np.float64]

MAX_EVENTS = 50_000_000
MAX_DAYS = 36_500
ACTIONS = ("engage", "like", "long_view")
REPEAT_WINDOW = 50
_TASTES = 3
_SECONDS_IN_DAY = 86_400


class SynthSpec(Section, frozen=True, kw_only=True):
    """What to generate; equal specs give equal bytes (with one version of numpy).

    Attributes:
        mean_length, length_sigma: of the log-normal number of events per user, before clipping.
        zipf: exponent of item popularity within a cluster.
        drift: share of each cluster's popularity order that rotates through the top over the whole time.
        taste: share of sessions in one of the user's own few clusters; the rest follow global popularity.
        focus: share of a session's events that stay in the session's cluster.
        repeat_rate: share of events that copy one of the user's last 50 items.
        burst_rate: share of events within a session that share the second of the event before.
        session_events: mean events in a session.
    """

    PATH: ClassVar[str] = "synth"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "users": Range(1, 10_000_000),
        "mean_length": Range(1, 100_000),
        "length_sigma": Range(0, 3),
        "min_length": Range(1, 100_000),
        "max_length": Range(1, 1_000_000),
        "items": Range(1, 10_000_000),
        "clusters": Range(1, 100_000),
        "zipf": Range(0, 5),
        "drift": Range(0, 1),
        "taste": Range(0, 1),
        "focus": Range(0, 1),
        "repeat_rate": Range(0, 1),
        "burst_rate": Range(0, 1),
        "session_events": Range(1, 100_000),
        "start_s": Range(0, TIME_LIMIT_S - MAX_DAYS * _SECONDS_IN_DAY),
        "days": Range(1, MAX_DAYS),
        "seed": Range(0, 2**63 - 1),
    }

    users: int = 2000
    mean_length: float = 300.0
    length_sigma: float = 1.0
    min_length: int = 1
    max_length: int = 20_000
    items: int = 20_000
    clusters: int = 50
    zipf: float = 1.1
    drift: float = 0.1
    taste: float = 0.7
    focus: float = 0.8
    repeat_rate: float = 0.2
    burst_rate: float = 0.2
    session_events: float = 12.0
    start_s: int = 1_700_000_000
    days: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_length > self.max_length:
            raise ConfigError("synth.min_length", f"{self.min_length} exceeds max_length {self.max_length}")
        if self.clusters > self.items:
            raise ConfigError("synth.clusters", f"{self.clusters} exceeds items {self.items}")
        if self.users * max(self.mean_length, self.min_length) > MAX_EVENTS:
            raise ConfigError(
                "synth.mean_length", f"{self.mean_length} x {self.users} users, limit {MAX_EVENTS}"
            )


def synthesize(spec: SynthSpec) -> EventTable:
    """Generate the events of `spec`, ordered by user and time."""
    rng = np.random.default_rng(spec.seed)
    lengths = _lengths(spec, rng)
    owner = np.repeat(np.arange(spec.users), lengths)
    begin = np.repeat(np.cumsum(lengths) - lengths, lengths)  # [events] first event of the owner
    position = np.arange(owner.size) - begin
    opens = (position == 0) | (rng.random(owner.size) < 1 / spec.session_events)
    times = _times(spec, rng, lengths, position, opens)
    session = np.cumsum(opens) - 1
    taste = rng.integers(spec.clusters, size=(spec.users, _TASTES))
    cluster = _clusters(spec, rng, owner[opens], session, taste)
    items = _with_repeats(spec, rng, _items(spec, rng, cluster, times), position)
    return EventTable(
        users=[f"u{user:07d}" for user in range(spec.users)],
        user_index=owner,
        item_ids=items,
        timestamps=times + spec.start_s,
        actions=_actions(spec, rng, owner, items, (taste[owner] == cluster[:, None]).any(axis=1)),
        action_names=ACTIONS,
    )


def _lengths(spec: SynthSpec, rng: np.random.Generator) -> Int64s:
    mu = np.log(spec.mean_length) - spec.length_sigma**2 / 2  # so that the mean is mean_length
    drawn = np.exp(mu + spec.length_sigma * rng.standard_normal(spec.users))
    lengths: Int64s = np.clip(np.rint(drawn), spec.min_length, spec.max_length).astype(np.int64)
    return lengths


def _times(
    spec: SynthSpec, rng: np.random.Generator, lengths: Int64s, position: Int64s, opens: npt.NDArray[np.bool_]
) -> Int64s:
    """Seconds since the start: short gaps inside sessions, and silences that fill the user's active span."""
    horizon = spec.days * _SECONDS_IN_DAY
    count = position.size
    short = np.where(rng.random(count) < spec.burst_rate, 0.0, 1 + rng.exponential(30.0, count))
    long = np.exp(rng.standard_normal(count))
    short[opens] = 0
    long[~opens | (position == 0)] = 0
    joined = np.full(spec.users, horizon) * (1 - 0.5 * rng.random(spec.users))  # active span, up to all of it
    busy, idle = _per_user(short, lengths), _per_user(long, lengths)
    # A user with more activity than span is squeezed, which only makes more events share a second.
    squeeze = np.minimum(1.0, 0.9 * joined / np.maximum(busy, 1))
    stretch = np.maximum(joined - busy * squeeze, 0) / np.maximum(idle, 1e-9) * (idle > 0)
    gaps = short * np.repeat(squeeze, lengths) + long * np.repeat(stretch, lengths)
    run = np.cumsum(gaps)
    first = np.cumsum(lengths) - lengths
    since = run - np.repeat(run[first] - gaps[first], lengths)
    offset = (horizon - joined) * rng.random(spec.users)
    times: Int64s = np.floor(since + np.repeat(offset, lengths)).astype(np.int64)
    # The difference of two long sums may miss zero by a rounding error.
    return np.maximum(np.minimum(times, horizon - 1), 0)


def _per_user(values: Floats, lengths: Int64s) -> Floats:
    sums: Floats = np.add.reduceat(values, np.cumsum(lengths) - lengths)  # every length is at least 1
    return sums


def _clusters(
    spec: SynthSpec, rng: np.random.Generator, session_owner: Int64s, session: Int64s, taste: Int64s
) -> Int64s:
    """The cluster of each event: a session has one, mostly of the user's taste, and events may stray."""
    popular = _zipf_ranks(rng.random(session_owner.size), spec.clusters, 1.0)
    # The user's first taste is twice as likely as each of the others.
    which = np.maximum(rng.integers(_TASTES + 1, size=session_owner.size) - 1, 0)
    own = taste[session_owner, which]
    of_session = np.where(rng.random(session_owner.size) < spec.taste, own, popular)
    stray = _zipf_ranks(rng.random(session.size), spec.clusters, 1.0)
    clusters: Int64s = np.where(rng.random(session.size) < spec.focus, of_session[session], stray)
    return clusters


def _items(spec: SynthSpec, rng: np.random.Generator, cluster: Int64s, times: Int64s) -> Int64s:
    """Zipf within the cluster; new items enter at the top of the order and sink as time passes."""
    size = spec.items // spec.clusters
    turn = (times * spec.drift * size / (spec.days * _SECONDS_IN_DAY)).astype(np.int64)
    rank = _zipf_ranks(rng.random(cluster.size), size, spec.zipf)
    place = cluster * size + (rank - turn) % size
    ids = rng.permutation(spec.items) + 1  # so that an id says nothing about its cluster
    items: Int64s = ids[place]
    return items


def _zipf_ranks(uniform: Floats, size: int, exponent: float) -> Int64s:
    weights = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -exponent)
    # Rounding may put the largest draw past the last weight.
    ranks: Int64s = np.minimum(np.searchsorted(weights, uniform * weights[-1], side="right"), size - 1)
    return ranks


def _with_repeats(spec: SynthSpec, rng: np.random.Generator, items: Int64s, position: Int64s) -> Int64s:
    source = np.arange(items.size)
    back = 1 + np.floor(np.minimum(position, REPEAT_WINDOW) * rng.random(items.size) ** 2).astype(np.int64)
    repeats = (rng.random(items.size) < spec.repeat_rate) & (position > 0)
    source[repeats] -= np.minimum(back, position)[repeats]
    # A source may be a repeat itself: follow the chains, halving them, until every one ends at a fresh event.
    while not np.array_equal(further := source[source], source):
        source = further
    copied: Int64s = items[source]
    return copied


def _actions(
    spec: SynthSpec, rng: np.random.Generator, owner: Int64s, items: Int64s, matched: npt.NDArray[np.bool_]
) -> Int64s:
    """Every event engages; liking and long views depend on the user, the item and whether taste matches."""
    actions = np.ones(owner.size, dtype=np.int64)
    for bit, (base, match) in enumerate(((-2.5, 1.5), (-1.5, 1.0)), start=1):
        user_bias = rng.standard_normal(spec.users)
        item_bias = rng.standard_normal(spec.items + 1)
        logit = base + match * matched + user_bias[owner] + item_bias[items]
        actions |= (rng.random(owner.size) < 1 / (1 + np.exp(-logit))).astype(np.int64) << bit
    return actions
