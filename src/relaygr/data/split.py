"""Split a dataset by global time and list the requests an offline evaluation replays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s


@dataclass(frozen=True, slots=True)
class Split:
    """train: t < train_end_s; validation: train_end_s <= t < valid_end_s; test: the rest."""

    train_end_s: int
    valid_end_s: int


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """One user at one second: what came strictly before is known, that second is to be ranked.

    Attributes:
        user: index into the dataset.
        time_s: the second.
        history_end: the user's events [0, history_end) are strictly earlier than `time_s`.
        positives: (start, stop) in the user's events, the events of that second; start == history_end.
    """

    user: int
    time_s: int
    history_end: int
    positives: tuple[int, int]


def temporal_split(events: Events, train: float = 0.8, valid: float = 0.1) -> Split:
    """Cut at the time quantiles `train` and `train + valid` over all events.

    Events of one second fall on the same side of a cut, so with many ties the parts may differ from the
    asked shares, or be empty.

    Raises:
        ConfigError: a share is out of range, or there are no events.
    """
    if not 0 < train <= 1:
        raise ConfigError("train", f"{train!r} must be in (0, 1]")
    if not 0 <= valid <= 1 - train + 1e-9:
        raise ConfigError("valid", f"{valid!r} must be in [0, 1 - train = {1 - train:.6g}]")
    if not events.n_events:
        raise ConfigError("split", f"dataset {events.path} has no events to split")
    times = np.sort(events.timestamps)
    return Split(_quantile_s(times, train), _quantile_s(times, train + valid))


def _quantile_s(times: Int64s, share: float) -> int:
    # The nudge keeps 0.8 + 0.1 of 10 events at 9 whatever the floating-point sum says.
    index = int(share * len(times) + 1e-6)
    return int(times[index]) if index < len(times) else int(times[-1]) + 1


def prefix_lengths(events: Events, before_s: int) -> Int64s:
    """For each user, [users], the number of leading events with timestamp < `before_s`."""
    earlier = np.concatenate([np.zeros(1, np.int64), np.cumsum(events.timestamps < before_s, dtype=np.int64)])
    lengths: Int64s = np.diff(earlier[events.offsets])
    return lengths


def evaluation_requests(
    events: Events,
    from_s: int,
    until_s: int,
    min_history: int = 1,
    max_requests: int | None = None,
    seed: int = 0,
) -> list[EvalRequest]:
    """One request per (user, second) with `from_s` <= second < `until_s`, ordered by (user, second).

    Args:
        min_history: requests with fewer earlier events of the user are left out.
        max_requests: keep a uniform sample of this size, drawn with `seed`; None keeps all.
    """
    if min_history < 0:
        raise ConfigError("min_history", f"{min_history} must not be negative")
    if max_requests is not None and max_requests < 0:
        raise ConfigError("max_requests", f"{max_requests} must not be negative")
    times, offsets = events.timestamps, events.offsets
    if not len(times):
        return []
    begins = np.ones(len(times), dtype=bool)
    begins[1:] = times[1:] != times[:-1]
    # An offset equal to n_events belongs to trailing idle users and starts no run.
    begins[offsets[:-1][offsets[:-1] < len(times)]] = True
    starts = np.flatnonzero(begins)
    stops = np.append(starts[1:], len(times))
    owners = np.searchsorted(offsets, starts, side="right") - 1
    history = starts - offsets[owners]
    seconds = times[starts]
    kept = np.flatnonzero((seconds >= from_s) & (seconds < until_s) & (history >= min_history))
    if max_requests is not None and kept.size > max_requests:
        drawn = np.random.default_rng(seed).choice(kept.size, size=max_requests, replace=False)
        kept = kept[np.sort(drawn)]
    columns = (owners[kept], seconds[kept], history[kept], (stops - starts)[kept])
    return [
        EvalRequest(user, second, end, (end, end + count))
        for user, second, end, count in zip(*(column.tolist() for column in columns), strict=True)
    ]
