"""Exact look-ahead: can a partial list be completed under all hard rules?

Candidates that every rule sees alike form a class, so that a state is small: position, keys of the rules,
what is left of each class. Depth-first over the classes in order of value; what is known of a state is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import TypeAlias

import numpy as np

from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.rules.automaton import Automaton

Keys: TypeAlias = tuple[Hashable, ...]
Counts: TypeAlias = tuple[int, ...]
Node: TypeAlias = tuple[int, Keys, Counts]
Labels: TypeAlias = tuple[int, ...]

PAIR_NODES = 500  # for two rules alone


class OutOfNodesError(Exception):
    """The node budget ended before there was an answer; internal to the look-ahead."""


class ClassSearch:
    """The search over classes of candidates; remembers which states are dead or alive.

    Args:
        rules: the hard rules.
        labels: of each class, what each rule sees of it; the class of the best candidate first.
        length: positions to fill.
        nodes: states to expand, all calls together; counts down.
    """

    def __init__(self, rules: Sequence[Automaton], labels: Sequence[Labels], length: int, nodes: int) -> None:
        self._rules, self._labels, self._length, self.nodes = tuple(rules), labels, length, nodes
        self._columns = [tuple(row[at] for row in labels) for at in range(len(rules))]
        self._dead: set[Node] = set()
        self._alive: set[Node] = set()

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self._labels)

    def completable(self, t: int, keys: Keys, counts: Counts) -> bool:
        """Whether some list has its positions from t on filled from `counts`, given the past in `keys`.

        Raises:
            OutOfNodesError: the node budget is used up; asking for what is known is still free.
        """
        root = self._node(t, keys, counts)
        if (known := self._known(root)) is not None:
            return known
        path = [(root, self._children(root))]
        while path:
            node, children = path[-1]
            for child in children:
                known = self._known(child)
                if known:
                    self._alive.update(entered for entered, _ in path)
                    return True
                if known is None:
                    path.append((child, self._children(child)))
                    break
            else:
                self._dead.add(node)
                path.pop()
        return False

    def _node(self, t: int, keys: Keys, counts: Counts) -> Node:
        """The state without what makes no difference: more of a class than positions, and spent classes."""
        slots = self._length - t
        for rule, key, column in zip(self._rules, keys, self._columns, strict=True):
            if spent := rule.spent(key):
                counts = tuple(
                    0 if label in spent else count for label, count in zip(column, counts, strict=True)
                )
        return t, keys, tuple(count if count < slots else slots for count in counts)

    def _known(self, node: Node) -> bool | None:
        t, keys, counts = node
        if t == self._length:
            return all(rule.done(key) for rule, key in zip(self._rules, keys, strict=True))
        if node in self._alive:
            return True
        if node in self._dead:
            return False
        if sum(counts) < self._length - t or not self._enough(node):
            self._dead.add(node)
            return False
        return None

    def _enough(self, node: Node) -> bool:
        t, keys, counts = node
        for rule, key, column in zip(self._rules, keys, self._columns, strict=True):
            left: dict[int, int] = {}
            for label, count in zip(column, counts, strict=True):
                if count:
                    left[label] = left.get(label, 0) + count
            if not rule.enough(key, t, left):
                return False
        return True

    def _children(self, node: Node) -> Iterator[Node]:
        if self.nodes <= 0:
            raise OutOfNodesError
        self.nodes -= 1
        t, keys, counts = node
        # Many classes share a label: each rule is asked once for each.
        made: list[dict[int, Hashable | None]] = [{} for _ in keys]
        for cls, count in enumerate(counts):
            if not count:
                continue
            after = []
            for at, label in enumerate(self._labels[cls]):
                if label not in made[at]:
                    made[at][label] = self._rules[at].child(keys[at], t, label)
                child = made[at][label]
                if child is None:
                    break
                after.append(child)
            else:
                yield self._node(t + 1, tuple(after), (*counts[:cls], count - 1, *counts[cls + 1 :]))


class Search:
    """Classes of the candidates, the search over all rules, and one for each two rules.

    Two rules alone see few classes: their search soon proves dead what the search over all rules would
    have to prove with every filling of the other positions. What two rules do not admit, all do not.

    Args:
        rules: the hard rules.
        eligible: bool [C]; columns are in order of value.
        length: positions to fill.
        nodes: states to expand, all calls together; of each two rules `PAIR_NODES` at most.
    """

    def __init__(self, rules: Sequence[Automaton], eligible: Bool, length: int, nodes: int) -> None:
        self._rules, self._length, self._pair_nodes = tuple(rules), length, min(PAIR_NODES, nodes)
        columns = np.flatnonzero(eligible)
        seen = [rule.labels()[columns].tolist() for rule in rules]
        place: dict[Labels, int] = {}
        rows = zip(*seen, strict=True) if seen else ((),) * len(columns)
        self.classes: Int64 = np.full(len(eligible), -1)  # of each column; -1 for ineligible ones
        self.classes[columns] = [place.setdefault(row, len(place)) for row in rows]
        self._labels: list[Labels] = list(place)
        self.whole = ClassSearch(rules, self._labels, length, nodes)

    def counts(self, free: Bool) -> Counts:
        """How many candidates of each class are in `free` [C]."""
        inside = self.classes[free]
        return tuple(np.bincount(inside[inside >= 0], minlength=len(self._labels)).tolist())

    def completable(self, t: int, keys: Keys, counts: Counts) -> bool:
        """As `ClassSearch.completable`, after a look at each two rules alone."""
        return self.conflict(t, keys, counts) is None and self.whole.completable(t, keys, counts)

    def conflict(self, t: int, keys: Keys, counts: Counts) -> tuple[str, str] | None:
        """Two rules that no list satisfies together from here on, if there are two and it is soon seen."""
        for one, two, kinds, search in self._pairs:
            merged = [0] * search.classes
            for kind, count in zip(kinds, counts, strict=True):
                merged[kind] += count
            try:
                if not search.completable(t, (keys[one], keys[two]), tuple(merged)):
                    return self._rules[one].name, self._rules[two].name
            except OutOfNodesError:
                continue
        return None

    @cached_property
    def _pairs(self) -> list[tuple[int, int, list[int], ClassSearch]]:
        """Places of two rules, what each class is to them, and their search."""
        found = []
        for one, two in combinations(range(len(self._rules)), 2):
            place: dict[Labels, int] = {}
            kinds = [place.setdefault((row[one], row[two]), len(place)) for row in self._labels]
            rules = (self._rules[one], self._rules[two])
            search = ClassSearch(rules, list(place), self._length, self._pair_nodes)
            found.append((one, two, kinds, search))
        return found
