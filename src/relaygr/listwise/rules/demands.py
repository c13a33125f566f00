"""Counting over several rules at once: what minimums demand against what the other rules leave room for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from relaygr.listwise.arrays import Int64
from relaygr.listwise.rules.automaton import Automaton
from relaygr.listwise.rules.quota import MinimumQuota


@dataclass(frozen=True, slots=True)
class _Useful:
    """Classes that serve a demand, the worthiest first.

    Attributes:
        classes: int64 [n].
        worths: how many demands a candidate of each serves.
        labels: of each limiting rule, what it sees of each.
    """

    classes: Int64
    worths: list[int]
    labels: list[list[int]]


class Demands:
    """The minimum quotas among some rules, and the others that limit how often a label may come.

    Args:
        rules: the hard rules.
        labels: int64 [K, R], what each rule sees of each class of candidates.
    """

    def __init__(self, rules: Sequence[Automaton], labels: Int64) -> None:
        self._minimums = [(at, rule) for at, rule in enumerate(rules) if isinstance(rule, MinimumQuota)]
        self._limits = [(at, rule) for at, rule in enumerate(rules) if rule.limits]
        self._labels = labels
        self._useful = cache(self._find)
        self._room = cache(self._rooms)

    def met(self, t: int, keys: Sequence[Hashable], counts: Int64) -> bool:
        """Whether the candidates `counts` [K] can still bring what is demanded from position t on.

        Necessary only: each demand, and all demands together, where a candidate counts once for every demand
        that it serves; against the positions, and against each limiting rule alone.
        """
        asked = []
        for at, rule in self._minimums:
            need = keys[at]
            assert isinstance(need, int)
            if need:
                asked.append((need, rule.within - t, (at,)))
        if len(asked) > 1:
            needs, slots, places = zip(*asked, strict=True)
            asked.append((sum(needs), max(slots), tuple(at for (at,) in places)))
        return all(self._reached(t, keys, counts, *one) for one in asked)

    def _reached(
        self,
        t: int,
        keys: Sequence[Hashable],
        counts: Int64,
        need: int,
        slots: int,
        minimums: tuple[int, ...],
    ) -> bool:
        useful = self._useful(minimums)
        sizes = counts[useful.classes].tolist()
        if _most(slots, sizes, useful.worths) < need:
            return False
        for (at, _), labels in zip(self._limits, useful.labels, strict=True):
            left = dict(self._room(at, keys[at], t, slots))
            taken = []
            for label, size in zip(labels, sizes, strict=True):
                some = min(size, left[label])
                left[label] -= some
                taken.append(some)
            if _most(slots, taken, useful.worths) < need:
                return False
        return True

    def _find(self, minimums: tuple[int, ...]) -> _Useful:
        worth = (self._labels[:, minimums] == 1).sum(axis=1)
        classes = np.argsort(-worth, kind="stable")[: np.count_nonzero(worth)]
        labels = [self._labels[classes, at].tolist() for at, _ in self._limits]
        return _Useful(classes, worth[classes].tolist(), labels)

    def _rooms(self, at: int, key: Hashable, t: int, slots: int) -> dict[int, int]:
        rule = next(rule for place, rule in self._limits if place == at)
        return {label: rule.room(key, t, slots, label) for label in np.unique(self._labels[:, at]).tolist()}


def _most(slots: int, sizes: list[int], worths: list[int]) -> int:
    """What `slots` candidates are worth at most; the worthiest stand first."""
    total = 0
    for size, worth in zip(sizes, worths, strict=True):
        taken = min(size, slots)
        total += taken * worth
        slots -= taken
        if not slots:
            break
    return total
