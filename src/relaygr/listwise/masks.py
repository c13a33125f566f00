"""What generators ask of rules: which candidates may come next, for all beams at once.

Candidates are columns in the order of pointwise rank: column 0 is the best by (value descending, index
ascending), so that the lowest column is the tie-breaker everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int32, Int64
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.pool import Pool, Shown


def never() -> bool:
    """Of a request without a limit of time."""
    return False


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A rule that was given up because no list satisfied it.

    Attributes:
        rule: its name; `length` if the list is shorter than asked for.
        position: the first position at which it could not hold, from 0; -1 if it concerns the whole list.
        reason: what is missing.
    """

    rule: str
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """What a soft rule takes from the value of one pick."""

    rule: str
    price: float


@dataclass(frozen=True, slots=True)
class Marks:
    """What rules remember of B partial lists of one length; never changed, only replaced by `step`.

    Attributes:
        picked: bool [B, C].
        rules: one array [B, ...] a rule, of the rule's own meaning.
    """

    picked: Bool
    rules: tuple[Any, ...] = ()

    @property
    def beams(self) -> int:
        """B."""
        return len(self.picked)


class Walk(Protocol):
    """The rules of one request over one pool of candidates, after relaxation. Positions count from 0.

    A walk changes nothing but its own counters; its answers are arrays that nobody writes to.

    Attributes:
        length: positions that will be filled; at most what was asked for.
        relaxations: what was given up to make that possible.
        priced: whether a soft rule applies, that is whether `price` has anything to say.
        budget_hits: how often an exact search ran out of nodes or time (`lookahead_budget`).
        first: the list of the lowest allowed column at each position, int32 [length], where it is known by
            now; None where it is not, or where it ends before the last position; another
            allowed list where rules were relaxed in haste.
    """

    @property
    def length(self) -> int: ...

    @property
    def relaxations(self) -> tuple[Relaxation, ...]: ...

    @property
    def priced(self) -> bool: ...

    @property
    def budget_hits(self) -> int: ...

    @property
    def first(self) -> Int32 | None: ...

    def start(self) -> Marks:
        """One empty list (B = 1) behind what was shown."""

    def allowed(self, marks: Marks, t: int) -> Bool:
        """What may stand at position t of each list, look-ahead included; no row need have any. [B, C]"""

    def feasible(self, marks: Marks, t: int) -> Bool:
        """`allowed` less what no complete list can follow: exact up to nodes and time, and dearer. [B, C]"""

    def price(self, marks: Marks, t: int) -> Float64:
        """What soft rules take from the value of each candidate at t; only if `priced`. [B, C]"""

    def effects(self, marks: Marks, t: int, beam: int, item: int) -> tuple[RuleEffect, ...]:
        """The parts of `price` for one candidate of one list; they sum to it."""

    def step(self, marks: Marks, t: int, parents: Int64, items: Int64) -> Marks:
        """Lists `parents` [B'], each with the candidate `items` [B'] at position t. The items are allowed."""

    def rescue(self, prefix: Int32, values: Float64) -> Int32 | None:
        """A complete list for when all lists met a dead end.

        Keeps as much of `prefix` [t] as it can, giving up its last picks first, and prefers high `values` [C]
        at every step. Exact up to nodes and time. None if there is no list (or none was found within the
        budget). [length]
        """

    def narrow(self, columns: Int64, favoured: Bool | None = None, at_least: int = 0) -> Walk:
        """The same rules, relaxed in the same way, over the candidates `columns` [m] alone.

        Column j of the result is candidate `columns[j]`; `columns` ascend. If `favoured` [m] is given, at
        least `at_least` picks must come from it, as a rule that holds. The caller knows that some list of the
        full length exists among the columns.
        """


class Rules(Protocol):
    """A set of rules, the same for many requests; immutable.

    Attributes:
        version: named in responses and logs.
    """

    @property
    def version(self) -> str: ...

    def open(
        self,
        pool: Pool,
        value: Float64,
        length: int,
        shown: Shown | None = None,
        allow_short: bool = True,
        late: Callable[[], bool] = never,
    ) -> Walk:
        """A walk over `pool`, whose columns are in the order of pointwise rank; `value` [C] descends.

        Once `late` says so, rules are relaxed that a longer search might have kept.

        Raises:
            InfeasibleError: rules that are never relaxed, or the length without `allow_short`, cannot hold.
            RequestError: a rule names an attribute that the pool lacks.
        """

    def violations(
        self, pool: Pool, picks: Int32, length: int, shown: Shown | None, relaxed: Sequence[Relaxation]
    ) -> tuple[str, ...]:
        """What is wrong with a finished list [length], found without any walk; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class NoRules:
    """Nothing twice, nothing that was shown before."""

    version: str = "none"

    def open(
        self,
        pool: Pool,
        value: Float64,
        length: int,
        shown: Shown | None = None,
        allow_short: bool = True,
        late: Callable[[], bool] = never,
    ) -> FreeWalk:
        fresh = fresh_columns(pool, shown)
        got = min(length, int(fresh.sum()))
        relaxations: tuple[Relaxation, ...] = ()
        if got < length:
            reason = f"{got} candidates for {length} positions"
            if not allow_short or not got:
                raise InfeasibleError("length", reason)
            relaxations = (Relaxation("length", got, reason),)
        return FreeWalk(fresh, got, relaxations)

    def violations(
        self, pool: Pool, picks: Int32, length: int, shown: Shown | None, relaxed: Sequence[Relaxation]
    ) -> tuple[str, ...]:
        return structural_violations(pool, picks, length, shown)


def fresh_columns(pool: Pool, shown: Shown | None) -> Bool:
    """Which candidates have not been shown. [C]"""
    if shown is None or not len(shown):
        return np.ones(len(pool), dtype=bool)
    fresh: Bool = ~np.isin(pool.ids, shown.ids)
    return fresh


def structural_violations(pool: Pool, picks: Int32, length: int, shown: Shown | None) -> tuple[str, ...]:
    """What every list must satisfy: the length, candidates of the pool, none twice, none shown before."""
    found: list[str] = []
    if len(picks) != length:
        found.append(f"length: {len(picks)} picks, wanted {length}")
    listed = [int(pick) for pick in picks]
    if any(not 0 <= pick < len(pool) for pick in listed):
        return (*found, f"picks: {listed} are not all in 0..{len(pool) - 1}")
    if len(set(listed)) != len(listed):
        found.append(f"picks: {listed} hold a candidate twice")
    before = set() if shown is None else set(shown.ids.tolist())
    found.extend(
        f"position {t}: item {int(pool.ids[pick])} has been shown"
        for t, pick in enumerate(listed)
        if int(pool.ids[pick]) in before
    )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FreeWalk:
    """The walk of `NoRules`; `favoured` picks may be demanded by `narrow`.

    `Marks.rules` holds the picks outside `favoured` so far, int64 [B], if there are demands.
    """

    fresh: Bool  # [C]
    length: int
    relaxations: tuple[Relaxation, ...] = ()
    favoured: Bool | None = None
    at_least: int = 0

    @property
    def priced(self) -> bool:
        return False

    @property
    def budget_hits(self) -> int:
        return 0

    @property
    def first(self) -> Int32 | None:
        if self.favoured is not None:
            return None
        return np.flatnonzero(self.fresh)[: self.length].astype(np.int32)

    def start(self) -> Marks:
        marks = Marks(np.zeros((1, len(self.fresh)), dtype=bool))
        return marks if self.favoured is None else Marks(marks.picked, (np.zeros(1, dtype=np.int64),))

    def allowed(self, marks: Marks, t: int) -> Bool:
        mask: Bool = self.fresh & ~marks.picked
        if self.favoured is not None:
            full = marks.rules[0] >= self.length - self.at_least
            mask &= self.favoured | ~full[:, None]
        return mask

    def feasible(self, marks: Marks, t: int) -> Bool:
        return self.allowed(marks, t)  # a list that was started can be completed

    def price(self, marks: Marks, t: int) -> Float64:
        return np.zeros(marks.picked.shape)

    def effects(self, marks: Marks, t: int, beam: int, item: int) -> tuple[RuleEffect, ...]:
        return ()

    def step(self, marks: Marks, t: int, parents: Int64, items: Int64) -> Marks:
        picked = marks.picked[parents]
        picked[np.arange(len(items)), items] = True
        if self.favoured is None:
            return Marks(picked)
        return Marks(picked, (marks.rules[0][parents] + ~self.favoured[items],))

    def rescue(self, prefix: Int32, values: Float64) -> Int32 | None:
        """Never needed: a list that was started can be completed."""
        marks, t = self.start(), 0
        picks: list[int] = []
        root = np.zeros(1, dtype=np.int64)
        while t < self.length:
            mask = self.allowed(marks, t)[0]
            if not mask.any():
                return None
            kept = t < len(prefix) and bool(mask[prefix[t]])
            item = int(prefix[t]) if kept else int(np.where(mask, values, -np.inf).argmax())
            picks.append(item)
            marks = self.step(marks, t, root, np.array([item]))
            t += 1
        return np.array(picks, dtype=np.int32)

    def narrow(self, columns: Int64, favoured: Bool | None = None, at_least: int = 0) -> FreeWalk:
        if favoured is None:
            favoured = None if self.favoured is None else self.favoured[columns]
            at_least = self.at_least
        elif self.favoured is not None:
            raise ValueError("favoured: one demand is all that a walk takes")
        return FreeWalk(self.fresh[columns], self.length, self.relaxations, favoured, at_least)
