"""Requests to verify a model with: real users at several cut times, with real and invented candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError, RequestError
from relaygr.data.dataset import Events, Int64s
from relaygr.engine.history import UserHistory
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig

MIN_EVENTS = 3
_INT64_MAX = int(np.iinfo(np.int64).max)
_NEXT_ITEMS = 8
_DUPLICATES = 4
# Appends of one session; longer differences are drawn too.
_SHORT_GAP = 40


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One user at one cut time.

    Attributes:
        history: the events before the cut.
        earlier: events of an earlier cut of the same history, 0 < earlier < len(history).
        candidates: int64 [m]: the user's next items, random ones, an id nobody has seen, duplicates.
        query_time: time of the event right after the cut.
    """

    history: UserHistory
    earlier: int
    candidates: Int64s
    query_time: int

    def first(self, count: int) -> UserHistory:
        """The oldest `count` events as a history of their own."""
        return self.of(self.history.items[:count], slice(0, count))

    def last(self, count: int) -> UserHistory:
        """The newest `count` events as a history of their own."""
        run = slice(max(len(self.history) - count, 0), None)
        return self.of(self.history.items[run], run)

    def edited(self, index: int, item: int) -> UserHistory:
        """The same history with another item at `index`."""
        items = self.history.items.copy()
        items[index] = item
        return self.of(items, slice(None))

    def of(self, items: Int64s, run: slice) -> UserHistory:
        whole = self.history
        return UserHistory(
            whole.user, items, whole.timestamps[run], whole.actions[run], contextual=whole.contextual
        )


def sample_cases(
    events: Events, config: AnyConfig, users: int, candidates: int, seed: int, max_history: int = 0
) -> list[Case]:
    """Up to three cuts of each of `users` users, half of them the longest, half drawn from the rest.

    Args:
        candidates: of each request, 8 at least.
        max_history: only so many events before a cut are used; 0 uses all of them.

    Raises:
        ConfigError: no user has enough events, or an argument is out of range.
    """
    if users < 1:
        raise ConfigError("users", f"{users} must be at least 1")
    if not 8 <= candidates <= config.max_num_candidates:
        raise ConfigError("candidates", f"{candidates} is outside [8, {config.max_num_candidates}]")
    if max_history and max_history < MIN_EVENTS:
        raise ConfigError("max_history", f"{max_history} must be 0 or at least {MIN_EVENTS}")
    rng = np.random.default_rng(seed)
    chosen = _users(rng, np.diff(events.offsets), users)
    if not len(chosen):
        raise ConfigError("events", f"{events.path} has no user with {MIN_EVENTS} or more events")
    pool = np.unique(events.item_ids)
    return [
        _case(rng, events, config, user, cut, candidates, pool, max_history)
        for user in chosen.tolist()
        for cut in _cuts(rng, int(events.offsets[user + 1] - events.offsets[user]))
    ]


def _users(rng: np.random.Generator, lengths: Int64s, users: int) -> Int64s:
    fit = np.flatnonzero(lengths >= MIN_EVENTS)
    by_length = fit[np.argsort(-lengths[fit], kind="stable")]
    longest, rest = by_length[: -(-users // 2)], by_length[-(-users // 2) :]
    drawn = rng.permutation(rest)[: users - len(longest)]
    # Long and short users alternate, so that every batch holds both.
    both = np.concatenate([longest, drawn])
    return both[rng.permutation(len(both))]


def _cuts(rng: np.random.Generator, length: int) -> list[int]:
    """Histories that end right before the last event, somewhere in the middle, and early."""
    last = length - 1
    middle = int(rng.integers(last // 3, last + 1))
    early = int(rng.integers(2, min(last, 100) + 1))
    return sorted({last, max(middle, 2), early}, reverse=True)


def _case(
    rng: np.random.Generator,
    events: Events,
    config: AnyConfig,
    user: int,
    cut: int,
    candidates: int,
    pool: Int64s,
    max_history: int,
) -> Case:
    items, times, actions = events.history(user)
    run = slice(max(cut - max_history, 0) if max_history else 0, cut)
    known_bits = (1 << len(config.action_bits)) - 1
    slots = [1000 * user + slot for slot in range(len(config.contextual))]
    try:
        history = UserHistory(
            events.user(user), items[run], times[run], actions[run] & known_bits, contextual=slots
        )
    except RequestError as error:
        raise ConfigError("events", f"{events.path}, user {events.user(user)!r}: {error}") from error
    count = len(history)
    gap = int(rng.integers(1, min(_SHORT_GAP, count - 1) + 1))
    earlier = count - gap if rng.random() < 0.5 else int(rng.integers(1, count))
    table = config.items if isinstance(config, HstuConfig) else None
    limit = _INT64_MAX if table is None else table.rows - 1
    return Case(history, earlier, _candidates(rng, items[cut:], pool, candidates, limit), int(times[cut]))


def _candidates(rng: np.random.Generator, following: Int64s, pool: Int64s, count: int, limit: int) -> Int64s:
    new = np.array([unseen_item(pool, limit)])
    wanted = np.concatenate([following[: min(_NEXT_ITEMS, count // 2)], new])
    drawn = pool[rng.integers(len(pool), size=count - len(wanted) - _DUPLICATES // 2)]
    wanted = np.concatenate([wanted, drawn])
    twice = wanted[rng.integers(len(wanted), size=count - len(wanted))]
    mixed: Int64s = rng.permutation(np.concatenate([wanted, twice]))
    return mixed


def unseen_item(pool: Int64s, limit: int = _INT64_MAX) -> int:
    """An id up to `limit` that is not in `pool`, which is sorted; the smallest of `pool` if there is none."""
    top = int(pool[-1])
    if top < limit:
        return top + 1
    absent = np.flatnonzero(np.diff(pool) > 1)
    if len(absent):
        return int(pool[absent[0]]) + 1
    return int(pool[0]) - (limit == _INT64_MAX)
