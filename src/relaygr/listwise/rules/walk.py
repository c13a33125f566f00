"""All rules of one request together: masks for every list at once, and exact look-ahead where it matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int32, Int64
from relaygr.listwise.decode import ROOT
from relaygr.listwise.masks import Marks, Relaxation, RuleEffect
from relaygr.listwise.rules.automaton import Automaton
from relaygr.listwise.rules.compile import compile_rules, pins_of
from relaygr.listwise.rules.document import AnyRule, Relaxable
from relaygr.listwise.rules.effort import Effort, OutOfNodesError
from relaygr.listwise.rules.ground import Ground
from relaygr.listwise.rules.quota import MinimumQuota
from relaygr.listwise.rules.search import Keys, Search
from relaygr.listwise.rules.slack import never_stuck

CHUNK_CELLS = 4_000_000  # lists x candidates x positions that are looked behind at once
QUERY_NODES = 64  # of a rescue, for one question; what is not known by then counts as no


class RuleWalk:
    """A `Walk` over the rules that hold, the soft ones, and those that were relaxed.

    A relaxed rule is still a wish: at each position it narrows the choice as long as a candidate is left, and
    of several wishes the one that is relaxed first yields first.

    Args:
        ground: candidates and length.
        rules: hard and soft ones that hold, and those relaxed, in the order in which they yield.
        effort: what the exact search may spend.
        favoured: bool [C]; with `at_least`, a demand on how many picks come from it.
        witness: a list [length] that satisfies the hard rules, if one is known.
    """

    def __init__(
        self,
        ground: Ground,
        rules: Sequence[AnyRule],
        relaxed: Sequence[AnyRule] = (),
        *,
        effort: Effort,
        relaxations: tuple[Relaxation, ...] = (),
        favoured: Bool | None = None,
        at_least: int = 0,
        witness: Int32 | None = None,
    ) -> None:
        self._ground, self._document, self._dropped = ground, tuple(rules), tuple(relaxed)
        self._effort, self._favoured, self._at_least = effort, favoured, at_least
        self.length, self.relaxations, self.witness = ground.length, relaxations, witness
        self._hits = 0
        self._first: Int32 | None = None
        hard = [rule for rule in rules if not isinstance(rule, Relaxable) or not rule.price]
        soft = [rule for rule in rules if isinstance(rule, Relaxable) and rule.price]
        self._hard = compile_rules(hard, ground, pins_of(hard, ground))
        if favoured is not None:
            demand = MinimumQuota("trust", ground.length, favoured, count=at_least, within=ground.length)
            self._hard.append(demand)
        self._wishes = compile_rules(relaxed, ground)
        self._soft = compile_rules(soft, ground)
        self._rules: list[Automaton] = [*self._hard, *self._wishes, *self._soft]
        self._sure = never_stuck(self._hard, ground.eligible, ground.length)

    @property
    def priced(self) -> bool:
        return bool(self._soft)

    @property
    def budget_hits(self) -> int:
        return self._hits

    @property
    def first(self) -> Int32 | None:
        return self._first

    def know_first(self, picks: Int32) -> None:
        """Take over the list of the lowest allowed columns from whoever made it, or one made in haste."""
        self._first = picks

    def count_hits(self, hits: int) -> None:
        """Add what other searches of the same request gave up on."""
        self._hits += hits

    @property
    def hard(self) -> tuple[Automaton, ...]:
        """The hard rules that something can break."""
        return tuple(self._hard)

    def renew(self, nodes: int, late: Callable[[], bool]) -> None:
        """Let the exact search spend so much from now on; what it knows stays."""
        self._effort.nodes, self._effort.late = nodes, late

    def conflict(self) -> tuple[str, str] | None:
        """Two hard rules that no list satisfies together, if there are two and it is soon seen."""
        keys = tuple(rule.key(rule.init(), 0, 0) for rule in self._hard)
        return self._search.conflict(0, keys, self._search.counts(self._ground.eligible))

    @property
    def sure(self) -> bool:
        """Whether counting alone proves that no list meets a dead end: nothing needs to look ahead."""
        return self._sure

    @cached_property
    def _search(self) -> Search:
        return Search(self._hard, self._ground.eligible, self.length, self._effort)

    def start(self) -> Marks:
        picked = np.zeros((1, len(self._ground.ids)), dtype=bool)
        return Marks(picked, tuple(rule.init() for rule in self._rules))

    def step(self, marks: Marks, t: int, parents: Int64, items: Int64) -> Marks:
        picked = marks.picked[parents]
        picked[np.arange(len(items)), items] = True
        states = zip(self._rules, marks.rules, strict=True)
        return Marks(picked, tuple(rule.step(state, t, parents, items) for rule, state in states))

    def allowed(self, marks: Marks, t: int) -> Bool:
        return self._wished(self._possible(marks, t), marks, t)

    def unblocked(self, marks: Marks, t: int) -> Bool:
        """`allowed` without any look ahead: what the past alone leaves. [B, C]"""
        mask = self._ground.eligible & ~marks.picked
        for rule, state in zip(self._hard, marks.rules, strict=False):
            mask &= rule.mask(state, t)
        return self._wished(mask, marks, t)

    def feasible(self, marks: Marks, t: int) -> Bool:
        """`allowed` less what no complete list can follow; exact up to nodes and time. [B, C]"""
        mask = self._possible(marks, t)
        if not self._sure:
            beams, columns = np.nonzero(mask)
            chunk = max(CHUNK_CELLS // (mask.shape[1] * self.length), 1)
            for at in range(0, len(beams), chunk):
                some = slice(at, at + chunk)
                mask[beams[some], columns[some]] = self._completable(marks, t, beams[some], columns[some])
        return self._wished(mask, marks, t)

    def _possible(self, marks: Marks, t: int) -> Bool:
        """What the masks of the hard rules and counting ahead leave. [B, C], new"""
        free = self._ground.eligible & ~marks.picked
        for rule, state in zip(self._hard, marks.rules, strict=False):
            if not self._sure and (gone := rule.gone(state)) is not None:
                free &= ~gone
        mask = free.copy()
        for rule, state in zip(self._hard, marks.rules, strict=False):
            mask &= rule.mask(state, t)
            if not self._sure and (ahead := rule.can_finish(state, t, free)) is not None:
                mask &= ahead
        return mask

    def _wished(self, mask: Bool, marks: Marks, t: int) -> Bool:
        if not self._wishes:
            return mask
        states = marks.rules[len(self._hard) : len(self._hard) + len(self._wishes)]
        wishes = [rule.mask(state, t) for rule, state in zip(self._wishes, states, strict=True)]
        chosen = mask.copy()
        open_rows = np.arange(len(mask))
        for first in range(len(wishes) + 1):  # the first wishes yield first
            rows = mask[open_rows]
            for wish in wishes[first:]:
                rows = rows & (wish if len(wish) == 1 else wish[open_rows])
            some = rows.any(axis=1)
            chosen[open_rows[some]] = rows[some]
            open_rows = open_rows[~some]
            if not len(open_rows):
                break
        return chosen

    def _completable(self, marks: Marks, t: int, beams: Int64, columns: Int64) -> Bool:
        """Whether lists `beams` [m], each with the candidate `columns` [m] at t, can be completed. [m]"""
        kinds = (
            beams * len(self._ground.ids) + self._search.classes[columns]
        )  # candidates of a class are alike
        _, first, group = np.unique(kinds, return_index=True, return_inverse=True)
        children = self.step(marks, t, beams[first], columns[first])
        alive: Bool = self._alive(children, t + 1)[group.reshape(-1)]
        return alive

    def _alive(self, marks: Marks, t: int) -> Bool:
        """Which lists can be completed from t on; yes where too little effort is left to find out. [B]"""
        alive, _ = self._greedy(marks, t)
        for beam in np.flatnonzero(~alive).tolist():
            try:
                alive[beam] = self._searched(marks, t, beam) is not None
            except OutOfNodesError:
                self._hits += 1
                alive[beam] = True
        return alive

    def _searched(self, marks: Marks, t: int, beam: int, nodes: int | None = None) -> list[int] | None:
        """As `ClassSearch.completion`, of one list."""
        states = zip(self._hard, marks.rules, strict=False)
        keys: Keys = tuple(rule.key(state, beam, t) for rule, state in states)
        counts = self._search.counts(self._ground.eligible & ~marks.picked[beam])
        return self._search.completion(t, keys, counts, nodes)

    def _greedy(self, marks: Marks, t: int) -> tuple[Bool, Int64]:
        """Which lists the first allowed candidate at every position completes, a proof for most, and how.

        Returns:
            bool [B], and the picks of those; int64 [B, length - t].
        """
        rows, now = np.arange(marks.beams), marks
        picks = np.full((marks.beams, self.length - t), -1)
        for later in range(t, self.length):
            mask = self._possible(now, later)
            some = np.flatnonzero(mask.any(axis=1))
            rows, items = rows[some], mask[some].argmax(axis=1)
            picks[rows, later - t] = items
            now = self.step(now, later, some, items)
        done = np.zeros(marks.beams, dtype=bool)
        done[rows[self._ended(now)]] = True
        return done, picks

    def _ended(self, marks: Marks) -> Bool:
        ok = np.ones(marks.beams, dtype=bool)
        for rule, state in zip(self._hard, marks.rules, strict=False):
            ok &= rule.final_ok(state)
        return ok

    def price(self, marks: Marks, t: int) -> Float64:
        total = np.zeros(marks.picked.shape)
        for rule, state in self._soft_states(marks):
            total += rule.price * rule.violation(state, t)
        return total

    def effects(self, marks: Marks, t: int, beam: int, item: int) -> tuple[RuleEffect, ...]:
        found = []
        for rule, state in self._soft_states(marks):
            sizes = rule.violation(state, t)
            size = float(sizes[beam if len(sizes) > 1 else 0, item])
            if size:
                found.append(RuleEffect(rule.name, rule.price * size))
        return tuple(found)

    def _soft_states(self, marks: Marks) -> list[tuple[Automaton, object]]:
        behind = len(self._hard) + len(self._wishes)
        return list(zip(self._soft, marks.rules[behind:], strict=True))

    def broken(self, picks: Int32) -> dict[str, int]:
        """Relaxed rules that a list violates, with the first position at which it does."""
        marks, found = self.start(), dict[str, int]()
        for t, item in enumerate(picks.tolist()):
            states = marks.rules[len(self._hard) :]
            for rule, state in zip(self._wishes, states, strict=False):
                if rule.breaks(state, t)[0, item]:
                    found.setdefault(rule.name, t)
            marks = self.step(marks, t, ROOT, np.array([item]))
        return found

    def rescue(self, prefix: Int32, values: Float64) -> Int32 | None:
        """As `Walk.rescue`: from the longest start of `prefix` that is known to have a completion."""
        trail = [self.start()]
        for t, item in enumerate(prefix.tolist()):
            trail.append(self.step(trail[-1], t, ROOT, np.array([item])))
        # Whether there is a list at all comes first: what is left may be spent on a better one.
        plan = None if self.witness is None else self._search.classes[self.witness].tolist()
        if plan is None:
            try:
                plan = self._searched(trail[0], 0, 0)
            except OutOfNodesError:
                self._hits += 1
            else:
                if plan is None:
                    return None
        for kept in range(len(prefix), 0, -1):
            if self._effort.late():
                break
            if (going := self._plan(trail[kept], kept)) is not None:
                return self._complete(trail[kept], prefix[:kept], values, going)
        return None if plan is None else self._complete(trail[0], prefix[:0], values, plan)

    def _plan(self, marks: Marks, t: int) -> list[int] | None:
        """The classes of one completion of one list from t on; None if there is none, or none is found."""
        try:
            return self._searched(marks, t, 0, QUERY_NODES)
        except OutOfNodesError:
            done, picks = self._greedy(marks, t)
            if done[0]:
                classes: list[int] = self._search.classes[picks[0]].tolist()
                return classes
            self._hits += 1
            return None

    def _complete(self, marks: Marks, prefix: Int32, values: Float64, plan: list[int]) -> Int32:
        """The best candidate at each position that leaves a plan for those behind it. [length]"""
        picks = prefix.tolist()
        for t in range(len(picks), self.length):
            priced = values - self.price(marks, t)[0] if self.priced else values
            item, plan = self._first_planned(marks, t, priced, plan)
            picks.append(item)
            marks = self.step(marks, t, ROOT, np.array([item]))
        return np.array(picks, dtype=np.int32)

    def _first_planned(self, marks: Marks, t: int, values: Float64, plan: list[int]) -> tuple[int, list[int]]:
        """The best candidate at t with a plan for the positions behind it; that of `plan` at the latest."""
        classes, mask = self._search.classes, self._possible(marks, t)
        while mask.any() and not self._effort.over:
            item = int(np.where(self._wished(mask, marks, t)[0], values, -np.inf).argmax())
            if classes[item] == plan[0]:
                break
            going = self._plan(self.step(marks, t, ROOT, np.array([item])), t + 1)
            if going is not None:
                return item, going
            mask &= classes != classes[item]
        here = ((classes == plan[0]) & ~marks.picked[0])[None]
        return int(np.where(self._wished(here, marks, t)[0], values, -np.inf).argmax()), plan[1:]

    def narrow(self, columns: Int64, favoured: Bool | None = None, at_least: int = 0) -> RuleWalk:
        """As `Walk.narrow`."""
        assert all(left < right for left, right in pairwise(columns.tolist()))
        if favoured is None:
            favoured = None if self._favoured is None else self._favoured[columns]
            at_least = self._at_least
        elif self._favoured is not None:
            raise ValueError("favoured: one demand is all that a walk takes")
        witness = None
        if self.witness is not None and np.isin(self.witness, columns).all():
            witness = np.searchsorted(columns, self.witness).astype(np.int32)
            if favoured is not None and int(favoured[witness].sum()) < at_least:
                witness = None
        return RuleWalk(
            self._ground.narrow(columns),
            self._document,
            self._dropped,
            effort=Effort(self._effort.nodes, self._effort.late),
            relaxations=self.relaxations,
            favoured=favoured,
            at_least=at_least,
            witness=witness,
        )
