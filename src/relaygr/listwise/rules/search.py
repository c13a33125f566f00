"""Exact look-ahead: can a partial list be completed under all hard rules?

Candidates that every rule sees alike form a class, so that a state is small: position, keys of the rules,
what is left of each class. Depth-first over the classes in order of value, dead states remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.rules.automaton import Automaton

Keys: TypeAlias = tuple[Hashable, ...]
Counts: TypeAlias = tuple[int, ...]
Node: TypeAlias = tuple[int, Keys, Counts]


class OutOfNodesError(Exception):
    """The node budget ended before there was an answer; internal to the look-ahead."""


class Search:
    """Remembers which states are dead or alive, for all calls of one request.

    Args:
        rules: the hard rules.
        eligible: bool [C]; columns are in order of value.
        length: positions to fill.
        nodes: states to expand, all calls together; counts down.
    """

    def __init__(self, rules: Sequence[Automaton], eligible: Bool, length: int, nodes: int) -> None:
        self._rules, self._length, self.nodes = tuple(rules), length, nodes
        columns = np.flatnonzero(eligible)
        # A column of zeros in front, as numpy finds no unique rows in rows of nothing.
        seen = np.zeros((len(columns), 1 + len(rules)), dtype=np.int64)
        for at, rule in enumerate(rules, 1):
            seen[:, at] = rule.labels()[columns]
        # Classes by their best column: the first candidate of a class is where its row first occurs.
        found, first, group = np.unique(seen, axis=0, return_index=True, return_inverse=True)
        rank = np.empty(len(found), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(found))
        self.classes: Int64 = np.full(len(eligible), -1)  # of each column; -1 for ineligible ones
        self.classes[columns] = rank[group.reshape(-1)]
        self._labels: list[tuple[int, ...]] = [tuple(row[1:]) for row in found[np.argsort(first)].tolist()]
        self._columns = [tuple(row[at] for row in self._labels) for at in range(len(rules))]
        self._dead: set[Node] = set()
        self._alive: set[Node] = set()

    def counts(self, free: Bool) -> Counts:
        """How many candidates of each class are in `free` [C]."""
        inside = self.classes[free]
        return tuple(np.bincount(inside[inside >= 0], minlength=len(self._labels)).tolist())

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
        slots = self._length - t
        return (
            t,
            keys,
            tuple(count if count < slots else slots for count in counts),
        )  # more makes no difference

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


def conflict(rules: Sequence[Automaton], eligible: Bool, length: int, nodes: int) -> tuple[str, str] | None:
    """Two rules that no list satisfies together, if there are two.

    Two rules alone see few classes, so that a search with `nodes` mostly decides what would take all rules
    together much longer.
    """
    for one, two in combinations(rules, 2):
        search = Search((one, two), eligible, length, nodes)
        keys = tuple(rule.key(rule.init(), 0, 0) for rule in (one, two))
        try:
            if not search.completable(0, keys, search.counts(eligible)):
                return one.name, two.name
        except OutOfNodesError:
            continue
    return None
