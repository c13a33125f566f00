"""Exact look-ahead: can a partial list be completed under all hard rules?

Candidates that every rule sees alike form a class, so that a state is small: position, keys of the rules,
what is left of each class. Depth-first over the classes in order of value, dead states remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
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
        nodes: states to expand, all calls together.
    """

    def __init__(self, rules: Sequence[Automaton], eligible: Bool, length: int, nodes: int) -> None:
        self._rules, self._length, self._nodes = tuple(rules), length, nodes
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

    def after(self, t: int, keys: Keys, counts: Counts, cls: int) -> tuple[Keys, Counts] | None:
        """Keys and counts once a candidate of the class stands at t; None if it may not."""
        made: list[Hashable] = []
        for rule, key, label in zip(self._rules, keys, self._labels[cls], strict=True):
            child = rule.child(key, t, label)
            if child is None:
                return None
            made.append(child)
        return tuple(made), (*counts[:cls], counts[cls] - 1, *counts[cls + 1 :])

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
        for at, (rule, key) in enumerate(zip(self._rules, keys, strict=True)):
            left: dict[int, int] = {}
            for labels, count in zip(self._labels, counts, strict=True):
                if count:
                    left[labels[at]] = left.get(labels[at], 0) + count
            if not rule.enough(key, t, left):
                return False
        return True

    def _children(self, node: Node) -> Iterator[Node]:
        if not self._nodes:
            raise OutOfNodesError
        self._nodes -= 1
        t, keys, counts = node
        for cls, count in enumerate(counts):
            if count and (made := self.after(t, keys, counts, cls)) is not None:
                yield self._node(t + 1, *made)
