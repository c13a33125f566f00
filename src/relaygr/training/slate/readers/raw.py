"""Lists as a data set has them: items and labels, mostly without any ranker's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import ConfigError, DataError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int64
from relaygr.listwise.pool import MISSING, Head
from relaygr.training.slate.logs import Exposures, LoggedLists

# Outputs of a ranker float32 [n, K] for users and items, int64 [n] each.
Scorer = Callable[[Int64, Int64], Float32]
# Vectors of unit length float32 [n, Dv] of items int64 [n].
Vectors = Callable[[Int64], Float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawExposures:
    """Items that were shown at random; labels float32 [R, K]."""

    users: Int64
    items: Int64
    labels: Float32

    def scored(self, scorer: Scorer) -> Exposures:
        return Exposures(scorer(self.users, self.items), self.labels, self.users)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawLists:
    """N lists of up to L positions.

    Attributes:
        data: name of the data set.
        users, session, page, surface, shown, consumed: int64 [N], as in `LoggedLists`.
        items: int64 [N, L]; -1 behind `shown`.
        labels: float32 [N, L, K]; NaN where there is none.
        outputs: float32 [N, L, K], where the data set has the outputs of a ranker.
        attributes: name -> int64 [N, L].
        slots: int64 [N, L] or None.
        random: items that were shown at random, or None.
        cannot: what the data set cannot show.
    """

    data: str
    heads: tuple[Head, ...]
    users: Int64
    items: Int64
    labels: Float32
    outputs: Float32 | None = None
    attributes: Mapping[str, Int64]
    shown: Int64
    consumed: Int64
    more: Bool
    surface: Int64
    page: Int64
    session: Int64
    slots: Int64 | None = None
    random: RawExposures | None = None
    cannot: tuple[str, ...]

    def __len__(self) -> int:
        """N."""
        return len(self.users)

    def scored(self, scorer: Scorer | None = None, vectors: Vectors | None = None) -> LoggedLists:
        """Logged lists with a ranker's outputs; none of them was explored.

        Raises:
            ConfigError: there are no outputs, neither in the data nor from a scorer.
        """
        N, L = self.items.shape
        there = np.arange(L) < self.shown[:, None]
        outputs, found = self.outputs, None
        if scorer is not None:
            outputs = np.zeros((N, L, len(self.heads)), dtype=np.float32)
            outputs[there] = scorer(np.repeat(self.users, self.shown), self.items[there])
        if outputs is None:
            raise ConfigError("scorer", f"{self.data} holds no outputs of a ranker; give one")
        if vectors is not None:
            filled = vectors(self.items[there])
            found = np.zeros((N, L, filled.shape[1]), dtype=np.float32)
            found[there] = filled
        return LoggedLists(
            heads=self.heads,
            users=self.users,
            items=self.items,
            outputs=outputs,
            labels=self.labels,
            attributes=self.attributes,
            vectors=found,
            shown=self.shown,
            consumed=self.consumed,
            more=self.more,
            asked=np.full(N, L, dtype=np.int64),
            surface=self.surface,
            page=self.page,
            session=self.session,
            slots=self.slots,
            log_propensity=np.full((N, L), np.nan),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Where each of R rows goes: row `order[r]` to position `position[r]` of list `list_of[r]`.

    Attributes:
        session: int64 [N], rows of the session before each list.
        more: bool [N], whether the session goes on behind the list.
    """

    order: Int64
    list_of: Int64
    position: Int64
    session: Int64
    more: Bool

    def place(self, values: Int64 | Float64, length: int, empty: float) -> Float64:
        """Rows' values [R] by list and position; `empty` where there is none. [N, L]"""
        found = np.full((len(self.session), length), empty)
        found[self.list_of, self.position] = values[self.order]
        return found

    def first(self, values: Int64) -> Int64:
        """Each list's value of its first row. [N]"""
        found: Int64 = values[self.order][self.position == 0]
        return found

    def sizes(self) -> Int64:
        """Rows of each list. [N]"""
        return np.bincount(self.list_of, minlength=len(self.session)).astype(np.int64)


def group(users: Int64, times_s: Float64, gap_s: float, length: int, ties: Int64) -> Grouping:
    """Cut the rows of each user, by time, into sessions without a gap and those into lists.

    Args:
        gap_s: a pause longer than this ends a session.
        length: a list ends after so many rows.
        ties: what orders rows of the same time.

    Raises:
        ConfigError: there are no rows, or a limit is below 1.
    """
    if not len(users):
        raise ConfigError("rows", "there are none")
    if length < 1 or not gap_s > 0:
        raise ConfigError("length", f"{length} positions and {gap_s} s must be above 0")
    order = np.lexsort((ties, times_s, users))
    who, when = users[order], times_s[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (who[1:] != who[:-1]) | (when[1:] - when[:-1] > gap_s)
    starts = np.flatnonzero(begins)
    inside = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    position = inside % length
    heads = np.flatnonzero(position == 0)
    list_of = np.cumsum(position == 0) - 1
    after = np.append(heads[1:], len(order))
    more = np.append(~begins[1:], False)[after - 1]
    return Grouping(order, list_of, position, inside[heads], more)


def by_key(keys: Int64, positions: Int64, length: int) -> Grouping:
    """Rows of one key are one list, ordered by position; those behind `length` are left out."""
    order = np.lexsort((positions, keys))
    found = keys[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = found[1:] != found[:-1]
    starts = np.flatnonzero(begins)
    inside = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    kept = inside < length
    lists = np.cumsum(begins) - 1
    none = np.zeros(len(starts), dtype=np.int64)
    return Grouping(order[kept], lists[kept], inside[kept], none, none.astype(bool))


def attribute(grouping: Grouping, values: Int64, length: int) -> Int64:
    """An attribute of rows by list and position; -1 where there is none. int64 [N, L]"""
    found: Int64 = grouping.place(values, length, MISSING).astype(np.int64)
    return found


def labels_of(grouping: Grouping, columns: list[Float64], length: int) -> Float32:
    """[N, L, K]"""
    found: Float32 = np.stack([grouping.place(column, length, np.nan) for column in columns], axis=2).astype(
        np.float32
    )
    return found


def check_rows(path: str, rows: int) -> None:
    """Raise DataError for a file without rows."""
    if not rows:
        raise DataError(path, 1, "", "there are no rows")
