"""Exact look-ahead: can a partial list be completed under all hard rules, and how?

Candidates that every rule sees alike form a class, so that a state is small: position, keys of the rules,
what is left of each class. Depth-first, what the rules need most first, with restarts in other orders; what
is known of a state is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TypeAlias

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.listwise.rules.automaton import Automaton, Left
from relaygr.listwise.rules.demands import Demands
from relaygr.listwise.rules.effort import Effort, OutOfNodesError

Keys: TypeAlias = tuple[Hashable, ...]
Counts: TypeAlias = Int64  # candidates of each class, [K]
Node: TypeAlias = tuple[int, Keys, bytes]
Labels: TypeAlias = tuple[int, ...]

PAIR_NODES = 500  # for two rules alone
_GLANCE_NODES = 64  # for all rules, before pairs of them are looked at
_FIRST_RUN = 128  # nodes before the first restart; each run takes twice those before it
_SHAKE = 0.5  # how far restarts move the order


@dataclass(slots=True)
class _State:
    """A node with what its expansion reads."""

    node: Node
    t: int
    keys: Keys
    counts: Counts
    left: list[dict[int, int]]


class ClassSearch:
    """The search over classes of candidates; remembers which states are dead or alive.

    Args:
        rules: the hard rules.
        labels: of each class, what each rule sees of it; the class of the best candidate first.
        length: positions to fill.
        effort: what all calls together may spend.
    """

    def __init__(
        self, rules: Sequence[Automaton], labels: Sequence[Labels], length: int, effort: Effort
    ) -> None:
        self._rules, self._length, self.effort = tuple(rules), length, effort
        self.classes = len(labels)
        table = np.array(labels, dtype=np.int64).reshape(self.classes, len(self._rules))
        # Of each rule: the labels there are, and where each class's is among them.
        self._names: list[list[int]] = []
        self._places: list[Int64] = []
        for column in table.T:
            names, places = np.unique(column, return_inverse=True)
            self._names.append(names.tolist())
            self._places.append(places.reshape(-1))
        self._demands = Demands(self._rules, table)
        self._dead: set[Node] = set()
        self._alive: dict[Node, int] = {}  # and the class with which it goes on

    def completion(self, t: int, keys: Keys, counts: Counts, nodes: int | None = None) -> list[int] | None:
        """The classes of one list's positions from t on, given the past in `keys`; None if there is none.

        Args:
            nodes: for this question alone.

        Raises:
            OutOfNodesError: the effort is used up; asking for what is known is still free.
        """
        root = self._state(t, keys, counts)
        run, turn = _FIRST_RUN, 0
        while (known := self._known(root)) is None:
            allowed = run if nodes is None else min(run, nodes)
            spent = self._run(root, allowed, turn)
            if nodes is not None:
                nodes -= spent
                if nodes <= 0 and self._known(root) is None:
                    raise OutOfNodesError
            run, turn = run * 2, turn + 1
        return self._followed(root) if known else None

    def _run(self, root: _State, nodes: int, turn: int) -> int:
        """Go on until the root is known or so many nodes are spent; how many that were."""
        path = [(root, -1, self._children(root, turn))]
        spent = 1
        while path:
            state, _, children = path[-1]
            for cls, child in children:
                known = self._known(child)
                if known:
                    self._alive[state.node] = cls
                    for (above, _, _), (_, taken, _) in zip(path[-2::-1], path[:0:-1], strict=True):
                        self._alive[above.node] = taken
                    return spent
                if spent >= nodes:
                    return spent
                spent += 1
                if known is None:
                    path.append((child, cls, self._children(child, turn)))
                    break
            else:
                self._dead.add(state.node)
                path.pop()
        return spent

    def _followed(self, state: _State) -> list[int]:
        """The completion of a state that is known to be alive."""
        found: list[int] = []
        while state.t < self._length:
            cls = self._alive[state.node]
            found.append(cls)
            state = self._after(state, cls)
        return found

    def _after(self, state: _State, cls: int) -> _State:
        keys = []
        for rule, key, names, places in zip(self._rules, state.keys, self._names, self._places, strict=True):
            child = rule.child(key, state.t, names[places[cls]])
            assert child is not None
            keys.append(child)
        counts = state.counts.copy()
        counts[cls] -= 1
        return self._state(state.t + 1, tuple(keys), counts)

    def _state(self, t: int, keys: Keys, counts: Counts) -> _State:
        """Without what makes no difference: more of a class than positions, and spent classes."""
        counts = np.minimum(counts, self._length - t)
        for at, (rule, key) in enumerate(zip(self._rules, keys, strict=True)):
            if spent := rule.spent(key):
                gone = np.array([name in spent for name in self._names[at]])
                counts[gone[self._places[at]]] = 0
        left = []
        for names, places in zip(self._names, self._places, strict=True):
            sums = np.bincount(places, counts, len(names)).astype(np.int64).tolist()
            left.append({name: n for name, n in zip(names, sums, strict=True) if n})
        return _State((t, keys, counts.tobytes()), t, keys, counts, left)

    def _known(self, state: _State) -> bool | None:
        if state.t == self._length:
            return all(rule.done(key) for rule, key in zip(self._rules, state.keys, strict=True))
        if state.node in self._alive:
            return True
        if state.node in self._dead:
            return False
        if not self._enough(state):
            self._dead.add(state.node)
            return False
        return None

    def _enough(self, state: _State) -> bool:
        if int(state.counts.sum()) < self._length - state.t:
            return False
        for rule, key, left in zip(self._rules, state.keys, state.left, strict=True):
            if not rule.enough(key, state.t, left):
                return False
        return self._demands.met(state.t, state.keys, state.counts)

    def _children(self, state: _State, turn: int) -> Iterator[tuple[int, _State]]:
        open_, urge = state.counts > 0, np.zeros(self.classes)
        made: list[list[Hashable | None]] = []
        for at, (rule, key) in enumerate(zip(self._rules, state.keys, strict=True)):
            names, places, left = self._names[at], self._places[at], state.left[at]
            after = [rule.child(key, state.t, name) if name in left else None for name in names]
            made.append(after)
            open_ &= np.array([child is not None for child in after])[places]
            urge += self._urge(rule, key, state.t, names, left)[places]
        if turn:
            urge += _SHAKE * turn * np.random.default_rng((turn, state.t)).random(self.classes)
        found = np.flatnonzero(open_)
        for cls in found[np.argsort(-urge[found], kind="stable")].tolist():
            keys = tuple(after[places[cls]] for after, places in zip(made, self._places, strict=True))
            counts = state.counts.copy()
            counts[cls] -= 1
            self.effort.spend()
            yield cls, self._state(state.t + 1, keys, counts)

    def _urge(self, rule: Automaton, key: Hashable, t: int, names: list[int], left: Left) -> Float64:
        return np.array([rule.urge(key, t, name, left) for name in names])


class Search:
    """Classes of the candidates, the search over all rules, and one for each two rules.

    Two rules alone see few classes: their search soon proves dead what the search over all rules would
    have to prove with every filling of the other positions. What two rules do not admit, all do not.

    Args:
        rules: the hard rules.
        eligible: bool [C]; columns are in order of value.
        length: positions to fill.
        effort: what all calls together may spend; pairs of rules half as much again.
    """

    def __init__(self, rules: Sequence[Automaton], eligible: Bool, length: int, effort: Effort) -> None:
        self._rules, self._length, self.effort = tuple(rules), length, effort
        self._pair_effort = Effort(effort.nodes // 2, effort.late)
        columns = np.flatnonzero(eligible)
        seen = [rule.labels()[columns].tolist() for rule in rules]
        place: dict[Labels, int] = {}
        rows = zip(*seen, strict=True) if seen else ((),) * len(columns)
        self.classes: Int64 = np.full(len(eligible), -1)  # of each column; -1 for ineligible ones
        self.classes[columns] = [place.setdefault(row, len(place)) for row in rows]
        self._labels: list[Labels] = list(place)
        self.whole = ClassSearch(rules, self._labels, length, effort)

    def counts(self, free: Bool) -> Counts:
        """How many candidates of each class are in `free` [C]."""
        inside = self.classes[free]
        return np.bincount(inside[inside >= 0], minlength=len(self._labels))

    def completion(self, t: int, keys: Keys, counts: Counts, nodes: int | None = None) -> list[int] | None:
        """As `ClassSearch.completion`, with a look at each two rules alone where it takes long."""
        glance = _GLANCE_NODES if nodes is None else min(_GLANCE_NODES, nodes)
        try:
            return self.whole.completion(t, keys, counts, glance)
        except OutOfNodesError:
            if self.effort.over or (nodes is not None and nodes <= glance):
                raise
        if self.conflict(t, keys, counts) is not None:
            return None
        return self.whole.completion(t, keys, counts, None if nodes is None else nodes - glance)

    def conflict(self, t: int, keys: Keys, counts: Counts) -> tuple[str, str] | None:
        """Two rules that no list satisfies together from here on, if there are two and it is soon seen."""
        for one, two, kinds, search in self._pairs:
            merged = np.bincount(kinds, counts, search.classes).astype(np.int64)
            try:
                if search.completion(t, (keys[one], keys[two]), merged, PAIR_NODES) is None:
                    return self._rules[one].name, self._rules[two].name
            except OutOfNodesError:
                continue
        return None

    @cached_property
    def _pairs(self) -> list[tuple[int, int, Int64, ClassSearch]]:
        """Places of two rules, what each class is to them, and their search."""
        found = []
        for one, two in combinations(range(len(self._rules)), 2):
            place: dict[Labels, int] = {}
            kinds = [place.setdefault((row[one], row[two]), len(place)) for row in self._labels]
            rules = (self._rules[one], self._rules[two])
            search = ClassSearch(rules, list(place), self._length, self._pair_effort)
            found.append((one, two, np.array(kinds, dtype=np.int64), search))
        return found
