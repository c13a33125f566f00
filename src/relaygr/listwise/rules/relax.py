"""Which rules can hold at once: if not all of them, they are given up in their order, then the length is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.decode import ROOT
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.masks import Relaxation, never
from relaygr.listwise.pool import Pool, Shown
from relaygr.listwise.rules.compile import compile_rule
from relaygr.listwise.rules.document import AnyRule, Minimum, Relaxable, RuleDocument
from relaygr.listwise.rules.effort import Effort
from relaygr.listwise.rules.ground import Ground, among, open_ground
from relaygr.listwise.rules.search import PAIR_NODES
from relaygr.listwise.rules.walk import RuleWalk

GRACE_NODES = 200  # of the exact search when all else is spent, for rules that are never relaxed


def open_walk(
    document: RuleDocument,
    pool: Pool,
    length: int,
    shown: Shown | None,
    *,
    allow_short: bool,
    late: Callable[[], bool] = never,
) -> RuleWalk:
    """A walk that some list of its length satisfies.

    Relaxable rules are sorted by (order, place in the document). The shortest run of them whose removal
    leaves a list is removed; if none does, the length falls to the greatest for which there is one. Then each
    removed rule, the last first, is put back if a list still satisfies it: every rule that stays relaxed is
    violated by every list that satisfies the others. Once `late` says so, nothing is searched any more: rules
    go that the pointwise list in hand does not satisfy, and the length falls to what that list fills.

    Raises:
        InfeasibleError: nothing is eligible, or the list would be shorter and `allow_short` is false, or no
            list was found in time.
        RequestError: a rule names an attribute that is not there.
    """
    ground = open_ground(document, pool, length, shown)
    opening = _Opening(document, ground, length, document.lookahead_nodes, late)
    return opening.walk(allow_short)


@dataclass(slots=True)
class _Opening:
    document: RuleDocument
    ground: Ground
    asked: int
    nodes: int
    late: Callable[[], bool]
    hits: int = 0
    cut: bool = False  # whether the clock ended anything
    grace: Effort = field(default_factory=lambda: Effort(GRACE_NODES))
    reasons: Effort = field(init=False)

    def __post_init__(self) -> None:
        self.reasons = Effort(PAIR_NODES, self.late)

    def walk(self, allow_short: bool) -> RuleWalk:
        eligible = int(self.ground.eligible.sum())
        if not eligible:
            raise InfeasibleError("rules", f"none of {len(self.ground.ids)} candidates is eligible")
        self.ground = replace(self.ground, length=min(self.asked, eligible))
        if eligible < self.asked and not allow_short:
            raise InfeasibleError("length", f"{eligible} eligible candidates for {self.asked} positions")
        every = [rule for rule in self.document.rules if compile_rule(rule, self.ground) is not None]
        walk = self._try(every, last=not _relaxable(every))
        if walk is None:
            walk = self._relaxed(every, allow_short)
        elif self.ground.length < self.asked:
            reason = f"{eligible} eligible candidates for {self.asked} positions"
            walk.relaxations = (Relaxation("length", eligible, reason),)
        walk.count_hits(self.hits)
        walk.renew(self.document.lookahead_nodes, self.late)
        return walk

    def _over(self) -> bool:
        """Whether the time is over; whoever asks does less if so."""
        self.cut = self.cut or self.late()
        return self.cut

    def _relaxed(self, every: list[AnyRule], allow_short: bool) -> RuleWalk:
        order, full = _relaxable(every), self.ground
        walk, dropped = self._shortest_run(every, order)
        if walk is None:
            if not allow_short:
                raise InfeasibleError(*self._culprit(_without(every, order)))
            walk = self._shorter(_without(every, order))
        given_up = list(order[:dropped])
        # The last one is known to be in the way, unless it was the length that made room.
        for rule in reversed(given_up if self.ground.length < full.length else given_up[:-1]):
            if self._over():
                break
            rest = [other for other in given_up if other is not rule]
            if (kept := self._try(_without(every, rest))) is not None:
                walk, given_up = kept, rest
        return self._logged(walk, every, given_up, full)

    def _shortest_run(self, every: list[AnyRule], order: Sequence[AnyRule]) -> tuple[RuleWalk | None, int]:
        """The least number of rules from the front of the order whose removal leaves a list, and its walk.

        A list of some rules is one of fewer of them, so that doubling and halving find the number.
        """
        walk, least, most, step = None, 1, len(order), 1
        while least <= most:
            if walk is not None:
                tried = (least + most) // 2
            else:
                tried, step = min(len(order) if self._over() else step, len(order)), step * 2
            found = self._try(_without(every, order[:tried]), last=tried == len(order))
            if found is None:
                least = tried + 1
            else:
                walk, most = found, tried - 1
        return walk, most + 1 if walk is not None else len(order)

    def _shorter(self, rules: list[AnyRule]) -> RuleWalk:
        """The walk of the greatest length for which there is a list.

        The start of a list satisfies what the list does, but for minimums of the whole list: lengths behind
        the last position that those count are bisected, and the few before it are tried one by one.
        """
        minimums = [rule for rule in rules if isinstance(rule, Minimum) and not rule.price]
        most = self.ground.length - 1
        start = self._start(_without(rules, minimums), minimums) if most else np.zeros(0, dtype=np.int32)
        walk: RuleWalk | None = None
        least = len(start)  # that long a list is known
        counted = max((rule.within or most for rule in minimums if rule.scope == "list"), default=0)
        border = max(min(counted, most), least + 1)
        low, high = border, most
        while low <= high and not self._over():
            length = (low + high + 1) // 2
            if (found := self._at(length, rules)) is None:
                high = length - 1
            else:
                walk, low = found, length + 1
        for length in range(border - 1, least, -1):
            if walk is not None or self._over():
                break
            walk = self._at(length, rules)
        if walk is None and least:
            self.ground = replace(self.ground, length=least)
            walk = RuleWalk(self.ground, rules, effort=Effort(0, self.late), witness=start)
        if walk is None:
            self.ground = replace(self.ground, length=1)
            raise InfeasibleError(*self._culprit(rules))
        self.ground = replace(self.ground, length=walk.length)
        return walk

    def _at(self, length: int, rules: list[AnyRule]) -> RuleWalk | None:
        self.ground = replace(self.ground, length=length)
        return self._try(rules, last=True)

    def _start(self, rules: list[AnyRule], minimums: list[Minimum]) -> Int32:
        """The longest list that picking the best at every position brings, without a look ahead. [n]"""
        walk = RuleWalk(self.ground, rules, minimums, effort=Effort(0))
        marks, picks = walk.start(), list[int]()
        while len(picks) < walk.length - 1:
            mask = walk.unblocked(marks, len(picks))[0]
            if not mask.any():
                break
            item = int(mask.argmax())
            marks = walk.step(marks, len(picks), ROOT, np.array([item]))
            picks.append(item)
        for length in range(len(picks), 0, -1):
            if all(self._holds(rule, picks[:length]) for rule in minimums):
                return np.array(picks[:length], dtype=np.int32)
        return np.zeros(0, dtype=np.int32)

    def _holds(self, rule: Minimum, picks: list[int]) -> bool:
        values, before, due = self.ground.candidates(rule.name, rule.attribute), 0, rule.within
        if rule.scope == "feed":
            assert due is not None
            _, shown = self.ground.column(rule.name, rule.attribute)
            before, due = int(among(shown[:due], rule.values).sum()), due - self.ground.offset
            if not 0 < due <= len(picks):
                return True  # it was due before this list, or it is due behind it
        return before + int(among(values[picks[:due]], rule.values).sum()) >= rule.count

    def _try(self, rules: Sequence[AnyRule], last: bool = False) -> RuleWalk | None:
        """The walk of the rules if some list satisfies them, with such a list if one had to be made.

        Args:
            last: nothing can be given up if this fails; some nodes are left for it whatever the time is.
        """
        # Half of what is left for each attempt, so that none starves those that come after it.
        effort = Effort(share := self.nodes // 2, self.late)
        if last and effort.over:
            effort = self.grace
        walk = RuleWalk(self.ground, rules, effort=effort)
        eligible, length = self.ground.eligible, self.ground.length
        if walk.sure:
            return walk
        if any(rule.lack(eligible) for rule in walk.hard):
            return None
        picks = greedy_list(walk, None if last else self._over)
        if len(picks) < length:
            if self.cut and not last:
                return None
            rescued = walk.rescue(picks, _by_rank(walk))
            self.hits += walk.budget_hits
            if walk.budget_hits:
                self._over()
            if effort is not self.grace:
                self.nodes -= share - effort.nodes
            if rescued is None:
                return None
            picks = rescued
        else:
            walk.know_first(picks)
        walk.witness = picks
        return walk

    def _logged(
        self, walk: RuleWalk, every: list[AnyRule], given_up: list[AnyRule], full: Ground
    ) -> RuleWalk:
        held = [rule for rule in every if rule not in given_up]
        effort = Effort(self.document.lookahead_nodes, self.late)
        final = RuleWalk(self.ground, held, given_up, effort=effort, witness=walk.witness)
        shown: Int32 | None = greedy_list(final)
        assert shown is not None
        if len(shown) < final.length:
            shown = final.rescue(shown, _by_rank(final))
        else:
            final.know_first(shown)
        positions = {} if shown is None else final.broken(shown)
        # Not searched long enough: what the list in hand satisfies need not go.
        kept = [] if shown is None else [rule for rule in given_up if rule.name not in positions]
        if kept:
            given_up = _without(given_up, kept)
            held = [rule for rule in every if rule not in given_up]
            final = RuleWalk(self.ground, held, given_up, effort=effort, witness=shown)
            assert shown is not None
            final.know_first(shown)
        log = [
            Relaxation(rule.name, positions.get(rule.name, -1), self._why(rule, held)) for rule in given_up
        ]
        if self.ground.length < self.asked:
            longer = replace(self.ground, length=self.ground.length + 1)
            lacks = [_lack(rule, longer) for rule in held] if longer.length <= full.length else []
            reason = f"no longer list satisfies {_names(held)}"
            if self.cut:
                reason = f"no longer list that satisfies {_names(held)} is found in time"
            reason = next((lack for lack in lacks if lack), reason)
            if self.ground.length == full.length:
                reason = f"{full.length} eligible candidates for {self.asked} positions"
            log.append(Relaxation("length", self.ground.length, reason))
        final.relaxations = tuple(log)
        return final

    def _why(self, rule: AnyRule, held: list[AnyRule]) -> str:
        if lack := _lack(rule, self.ground):
            return lack
        if not self.late() and (pair := self._other(rule, held)):
            return f"no list of {self.ground.length} satisfies it and {pair}"
        found, limit = "there", ""
        if self.cut:
            found, limit = "found", " in time"
        elif self.hits:
            found, limit = "found", f" within {self.document.lookahead_nodes} nodes"
        return f"no list of {self.ground.length} that satisfies it and {_names(held)} is {found}{limit}"

    def _other(self, rule: AnyRule, held: list[AnyRule]) -> str:
        """A rule with which alone this one cannot hold, if there is one."""
        for other in held:
            alone = RuleWalk(self.ground, (rule, other), effort=self.reasons)
            if alone.conflict() is not None:
                return other.name
        return ""

    def _culprit(self, rules: list[AnyRule]) -> tuple[str, str]:
        """The rule that cannot hold, and why."""
        for rule in rules:
            if lack := _lack(rule, self.ground):
                return rule.name, lack
        found = f"no list of {self.ground.length} satisfies {_names(rules)}"
        if self.cut:
            found = f"no list of {self.asked} or fewer that satisfies {_names(rules)} is found in time"
        return "length", found


def first_list(walk: RuleWalk) -> Int32 | None:
    """The pointwise list under the walk's rules, repaired by the exact search at a dead end. [length]"""
    picks = greedy_list(walk)
    return picks if len(picks) == walk.length else walk.rescue(picks, _by_rank(walk))


def greedy_list(walk: RuleWalk, over: Callable[[], bool] | None = None) -> Int32:
    """The pointwise list under the walk's rules as far as it goes, or until `over`. [at most length]"""
    marks, picks = walk.start(), list[int]()
    for t in range(walk.length):
        if over is not None and over():
            break
        mask = walk.allowed(marks, t)[0]
        if not mask.any():
            break
        picks.append(int(mask.argmax()))
        marks = walk.step(marks, t, ROOT, np.array(picks[-1:]))
    return np.array(picks, dtype=np.int32)


def _by_rank(walk: RuleWalk) -> Float64:
    """Values that only keep the order. [C]"""
    return -np.arange(walk.start().picked.shape[1], dtype=np.float64)


def _relaxable(rules: Sequence[AnyRule]) -> list[AnyRule]:
    """Hard rules that may be given up, in order; the sort keeps the document's order among equals."""
    found = [rule for rule in rules if isinstance(rule, Relaxable) and not rule.price]
    ranked = [(rule.order, rule) for rule in found if rule.order is not None]
    return [rule for _, rule in sorted(ranked, key=lambda entry: entry[0])]


def _without(rules: Sequence[AnyRule], dropped: Sequence[AnyRule]) -> list[AnyRule]:
    return [rule for rule in rules if rule not in dropped]


def _lack(rule: AnyRule, ground: Ground) -> str:
    automaton = compile_rule(rule, ground)
    return "" if automaton is None else automaton.lack(ground.eligible)


def _names(rules: Sequence[AnyRule]) -> str:
    hard = [rule.name for rule in rules if not isinstance(rule, Relaxable) or not rule.price]
    return ", ".join(hard) or "the length"
