"""The rules of requests: open walks over candidates, check what comes back, price the soft ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from relaygr.listwise.arrays import Float64, Int32, Int64
from relaygr.listwise.masks import Relaxation, Walk, structural_violations
from relaygr.listwise.pool import Pool, Shown
from relaygr.listwise.rules.checker import Item, check
from relaygr.listwise.rules.document import AnyRule, RuleDocument
from relaygr.listwise.rules.relax import open_walk
from relaygr.listwise.rules.walk import RuleWalk


@dataclass(frozen=True, slots=True)
class RulePrice:
    """What one soft rule took from a list.

    Attributes:
        rule: its name.
        paid: what the violations cost, each weighted with the survival to its position.
        with_rule: U of the list.
        without: U of the same list if the rule had no price.
    """

    rule: str
    paid: float
    with_rule: float
    without: float


class RuleSet:
    """A checked document as the `Rules` of requests; immutable."""

    def __init__(self, document: RuleDocument) -> None:
        document.check()
        self.document = document
        digest = hashlib.blake2b(msgspec.json.encode(document), digest_size=4).hexdigest()
        self.version = f"{document.id}@{digest}"  # so that two documents of one id are told apart

    def extended(self, rules: Iterable[AnyRule], id: str | None = None) -> RuleSet:
        """With the rules of one request (pins, for example) behind these; ConfigError if they do not fit."""
        return RuleSet(self.document.extended(rules, id))

    def open(
        self, pool: Pool, value: Float64, length: int, shown: Shown | None = None, allow_short: bool = True
    ) -> RuleWalk:
        """As `Rules.open`."""
        return open_walk(self.document, pool, length, shown, allow_short=allow_short)

    def violations(
        self, pool: Pool, picks: Int32, length: int, shown: Shown | None, relaxed: Sequence[Relaxation]
    ) -> tuple[str, ...]:
        """As `Rules.violations`: what breaks a hard rule that was not relaxed."""
        wrong = structural_violations(pool, picks, length, shown)
        if any(not 0 <= pick < len(pool) for pick in picks.tolist()):
            return wrong
        listed = _items(pool.ids[picks], {name: column[picks] for name, column in pool.attributes.items()})
        before = [] if shown is None else _items(shown.ids, shown.attributes)
        excused = {entry.rule for entry in relaxed}
        found = check(self.document, before, listed)
        broken = [
            each for each in found if not each.soft and each.rule not in excused and each.rule != "list"
        ]
        return (*wrong, *map(str, broken))


def prices(walk: Walk, picks: Int32, survival: Float64, total: float) -> tuple[RulePrice, ...]:
    """What each soft rule took from a list [n] of value `total`, prices paid included.

    Args:
        survival: s_t, probability that position t is reached. [n]
    """
    paid: dict[str, float] = {}
    marks = walk.start()
    for t, item in enumerate(picks.tolist()):
        for effect in walk.effects(marks, t, 0, item) if walk.priced else ():
            paid[effect.rule] = paid.get(effect.rule, 0.0) + float(survival[t]) * effect.price
        marks = walk.step(marks, t, np.zeros(1, dtype=np.int64), np.array([item]))
    return tuple(RulePrice(rule, cost, total, total + cost) for rule, cost in paid.items())


def _items(ids: Int64, attributes: Mapping[str, Int64]) -> list[Item]:
    columns = {name: column.tolist() for name, column in attributes.items()}
    return [
        Item(item, {name: column[at] for name, column in columns.items()})
        for at, item in enumerate(ids.tolist())
    ]
