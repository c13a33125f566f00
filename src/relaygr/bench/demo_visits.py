"""The requests that the demonstration replays: held-out seconds of real users, in time order."""

from __future__ import annotations

import numpy as np

from relaygr.bench.cascade import Visit
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import EvalRequest, Split, evaluation_requests
from relaygr.engine.history import UserHistory
from relaygr.models.presets import AnyConfig

VISIT_GAP_S = 30 * 60
# Where a user never paused so long, the previous visit is taken to end this many events back.
_NO_GAP_EVENTS = 16
_END_OF_TIME = (1 << 63) - 1


def held_out_visits(
    events: Events, split: Split, config: AnyConfig, requests: int, seed: int, max_history: int = 0
) -> list[Visit]:
    """A uniform sample of the (user, second) pairs of the test part, ordered by time.

    Args:
        config: of the model; action bits it does not know are dropped, profile slots are 0.
        max_history: use only so many latest events; 0 uses all.

    Raises:
        ConfigError: the test part has no request with an earlier event.
    """
    if requests < 1:
        raise ConfigError("requests", f"{requests} must be at least 1")
    if max_history < 0:
        raise ConfigError("history", f"{max_history} must not be negative")
    drawn = evaluation_requests(events, split.valid_end_s, _END_OF_TIME, 1, requests, seed)
    if not drawn:
        raise ConfigError("events", f"{events.path}: nobody returns after the training part ends")
    drawn.sort(key=lambda request: (request.time_s, request.user))
    return [_visit(events, config, request, max_history) for request in drawn]


def by_length(visits: list[Visit], count: int) -> list[Visit]:
    """`count` visits whose history lengths cover the range evenly, shortest first."""
    ordered = sorted(visits, key=lambda visit: len(visit.history))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int))
    return [ordered[place] for place in places.tolist()]


def _visit(events: Events, config: AnyConfig, request: EvalRequest, max_history: int) -> Visit:
    items, times, actions = events.history(request.user)
    first = max(request.history_end - max_history, 0) if max_history else 0
    run = slice(first, request.history_end)
    history = UserHistory(
        events.user(request.user),
        items[run],
        times[run],
        actions[run] & ((1 << len(config.action_bits)) - 1),
        contextual=[0] * len(config.contextual),
    )
    previous = previous_visit(history.timestamps, request.time_s)
    return Visit(history, previous, request.time_s, np.unique(items[slice(*request.positives)]))


def previous_visit(times: Int64s, now_s: int) -> int:
    """Events that were there when the user left the last time, at least one."""
    gaps = np.diff(np.append(times, now_s))
    pauses = np.flatnonzero(gaps >= VISIT_GAP_S)
    return int(pauses[-1]) + 1 if len(pauses) else max(len(times) - _NO_GAP_EVENTS, 1)
