"""A rule over partial lists: what all automata offer to decoding and to the exact search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int64

Left = Mapping[int, int]  # label -> candidates that are left


class Automaton(ABC):
    """One rule over lists of `length` positions, which count from 0, vectorised over B partial lists.

    A state is an array [B, ...] that nobody changes; `step` makes a new one. For the exact search the rule
    sees candidates through `labels`: two of equal label are alike to it. There a state is a `key`, equal for
    lists that the rule treats alike from position t on.

    Attributes:
        name: of the rule in the document.
        order: place in the order of relaxation; None for never.
        price: of a violation of size 1; 0 for a hard rule.
        length: positions to fill, n.
    """

    def __init__(self, name: str, length: int, order: int | None = None, price: float = 0.0) -> None:
        self.name, self.length, self.order, self.price = name, length, order, price

    def init(self) -> Any:
        """The state of one empty list. [1, ...]"""
        return np.zeros((1, 0), dtype=np.int32)

    @abstractmethod
    def mask(self, state: Any, t: int) -> Bool:
        """What may stand at position t as far as the past says. [B, C] or [1, C]"""

    def step(self, state: Any, t: int, parents: Int64, items: Int64) -> Any:
        """The states of lists `parents` [B'] with candidates `items` [B'] at t. [B', ...]"""
        return state[parents]

    def gone(self, state: Any) -> Bool | None:
        """Which candidates no position will take any more; necessary only. [B, C]; None for none."""
        return None

    def can_finish(self, state: Any, t: int, free: Bool) -> Bool | None:
        """Whether the positions behind t can still be filled if a candidate stands at t; necessary only.

        `free` [B, C] says which candidates are left at t, less those that are `gone`. [B, C] or [1, C]; None
        if nothing can be said.
        """
        return None

    def final_ok(self, state: Any) -> Bool:
        """Whether a complete list that the masks allowed is right as a whole. [B]"""
        return np.ones(len(state), dtype=bool)

    def breaks(self, state: Any, t: int) -> Bool:
        """Which candidates at t would break the rule there, for logs. [B, C] or [1, C]"""
        return ~self.mask(state, t)

    def violation(self, state: Any, t: int) -> Float64:
        """The size of the violation that each candidate at t brings, to be paid for. [B, C] or [1, C]"""
        return self.breaks(state, t).astype(np.float64)

    def crowd(self, within: Bool) -> int:
        """How many candidates of `within` [C] the mask excludes at most at once, the picked ones aside."""
        return 0

    def lack(self, free: Bool) -> str:
        """Why no list of the candidates `free` [C] satisfies even this rule alone; empty if unknown."""
        return ""

    @abstractmethod
    def labels(self) -> Int64:
        """What the rule sees of each candidate. [C]"""

    def key(self, state: Any, beam: int, t: int) -> Hashable:
        """The state of one list before position t."""
        return ()

    @abstractmethod
    def child(self, key: Any, t: int, label: int) -> Hashable | None:
        """The key before t + 1 if a candidate of `label` stands at t; None if it may not."""

    def spent(self, key: Any) -> Collection[int]:
        """Labels that no position will take any more; necessary only, as `gone`."""
        return ()

    def enough(self, key: Any, t: int, left: Left) -> bool:
        """Whether candidates `left` can fill the positions from t on; necessary only."""
        return True

    def done(self, key: Any) -> bool:
        """`final_ok` of a key."""
        return True

    @property
    def limits(self) -> bool:
        """Whether `room` ever says less than all positions."""
        return False

    def room(self, key: Any, t: int, slots: int, label: int) -> int:
        """How many candidates of `label` the positions t..t + slots - 1 take at most; necessary only."""
        return slots

    def urge(self, key: Any, t: int, label: int, left: Left) -> float:
        """How soon a candidate of `label` should come for the rest to stay easy: -1..1, and none is wrong."""
        return 0.0


def everything(columns: int) -> Bool:
    """A mask that forbids nothing. [1, C]"""
    return np.ones((1, columns), dtype=bool)
