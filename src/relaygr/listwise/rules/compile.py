"""From rules and the ground of a request to automata; those that no list can break are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.rules.automaton import Automaton
from relaygr.listwise.rules.document import (
    AnyRule,
    Cap,
    Eligible,
    Gap,
    Maximum,
    Minimum,
    Pairs,
    Pin,
    Relaxable,
    Slot,
)
from relaygr.listwise.rules.ground import Ground, among
from relaygr.listwise.rules.pairs import BlockedPairs
from relaygr.listwise.rules.places import PinnedItem, SlotClass
from relaygr.listwise.rules.quota import MaximumQuota, MinimumQuota
from relaygr.listwise.rules.window import WindowCap

Pins = tuple[tuple[int, int], ...]  # (position, column)


def compile_rules(rules: Sequence[AnyRule], ground: Ground, pins: Pins = ()) -> list[Automaton]:
    """Automata of the rules that may matter to a list on this ground, in order.

    `pins` are the hard pins that hold, which caps and pairs leave room for.

    Raises:
        RequestError: a rule names an attribute that is not there.
    """
    made = (compile_rule(rule, ground, pins) for rule in rules)
    return [automaton for automaton in made if automaton is not None]


def compile_rule(rule: AnyRule, ground: Ground, pins: Pins = ()) -> Automaton | None:
    """The automaton of a rule; None if no list on this ground can break it. Made once for each ground."""
    key = rule.name, pins
    if key not in ground.automata:
        ground.automata[key] = _compile(rule, ground, pins)
    return ground.automata[key]


def _compile(rule: AnyRule, ground: Ground, pins: Pins) -> Automaton | None:
    match rule:
        case Gap() | Cap():
            return _window(rule, ground, pins)
        case Minimum():
            return _minimum(rule, ground)
        case Maximum():
            return _maximum(rule, ground, pins)
        case Slot():
            return _slot(rule, ground)
        case Pin():
            return _pin(rule, ground)
        case Pairs():
            return _pairs(rule, ground, pins)
        case Eligible():  # the ground has left the others out
            return None


def pins_of(rules: Sequence[AnyRule], ground: Ground) -> Pins:
    """Where hard pins put which column, by position; those that the list can honour, each once."""
    found = set()
    for rule in rules:
        if isinstance(rule, Pin) and not rule.price:
            position, column = _position(rule, ground), _column(rule, ground)
            if column >= 0 and 0 <= position < ground.length:
                found.add((position, column))
    return tuple(sorted(found))


def _soft(rule: Relaxable) -> tuple[int | None, float]:
    return rule.order, rule.price


def _window(rule: Gap | Cap, ground: Ground, pins: Pins) -> Automaton | None:
    codes, shown = ground.column(rule.name, rule.attribute)
    order, price = _soft(rule)
    most, window = (1, rule.distance) if isinstance(rule, Gap) else (rule.most, rule.window)
    cap = WindowCap(
        rule.name,
        ground.length,
        codes,
        shown,
        ground.eligible,
        most=most,
        window=window,
        values=() if isinstance(rule, Gap) else rule.values,
        pins=pins,
        order=order,
        price=price,
    )
    return None if cap.idle else cap


def _minimum(rule: Minimum, ground: Ground) -> Automaton | None:
    inside, shown = _class(rule, ground)
    order, price = _soft(rule)
    within = ground.length if rule.within is None else rule.within
    start = 0
    if rule.scope == "feed":
        start, within = int(shown[: rule.within].sum()), within - ground.offset
        if within > ground.length:  # a later page may still bring them
            return None
    if within <= 0 or start >= rule.count:
        return None
    within = min(within, ground.length)
    return MinimumQuota(
        rule.name,
        ground.length,
        inside,
        count=rule.count,
        within=within,
        start=start,
        order=order,
        price=price,
    )


def _maximum(rule: Maximum, ground: Ground, pins: Pins) -> Automaton | None:
    inside, shown = _class(rule, ground)
    order, price = _soft(rule)
    start = int(shown.sum()) if rule.scope == "feed" else 0
    quota = MaximumQuota(
        rule.name,
        ground.length,
        inside & ground.eligible,
        count=rule.count,
        start=start,
        pins=pins,
        order=order,
        price=price,
    )
    return None if quota.idle else quota


def _slot(rule: Slot, ground: Ground) -> Automaton | None:
    inside, _ = _class(rule, ground, with_shown=False)
    places = np.arange(ground.length) + (ground.offset if rule.scope == "feed" else 0)
    at = among(places if rule.every is None else places % rule.every, rule.positions)
    if not at.any() and not rule.exclusive:
        return None
    return SlotClass(rule.name, ground.length, inside, at=at, exclusive=rule.exclusive)


def _pin(rule: Pin, ground: Ground) -> Automaton | None:
    position, column = _position(rule, ground), _column(rule, ground)
    if position < 0 or (column < 0 and position >= ground.length):
        return None
    order, price = _soft(rule)
    return PinnedItem(
        rule.name,
        ground.length,
        item=rule.item,
        column=column,
        columns=len(ground.ids),
        position=position,
        order=order,
        price=price,
    )


def _pairs(rule: Pairs, ground: Ground, pins: Pins) -> Automaton | None:
    values, shown = ground.ids, ground.shown_ids
    if rule.attribute is not None:
        values, shown = ground.column(rule.name, rule.attribute)
    listed = np.array(rule.pairs, dtype=np.int64)
    there = listed[np.isin(listed, np.concatenate([values, shown])).all(axis=1)]
    if not len(there):
        return None
    pairs = BlockedPairs(rule.name, ground.length, values, shown, pairs=there, pins=pins)
    return None if pairs.idle else pairs


def _class(rule: Minimum | Maximum | Slot, ground: Ground, *, with_shown: bool = True) -> tuple[Bool, Bool]:
    """Who belongs to the class, of the candidates [C] and of what was shown [S]."""
    if with_shown and rule.scope == "feed":
        values, shown = ground.column(rule.name, rule.attribute)
        return among(values, rule.values), among(shown, rule.values)
    values = ground.candidates(rule.name, rule.attribute)
    return among(values, rule.values), np.zeros(0, dtype=bool)


def _position(rule: Pin, ground: Ground) -> int:
    return rule.position - (ground.offset if rule.scope == "feed" else 0)


def _column(rule: Pin, ground: Ground) -> int:
    found: Int64 = np.flatnonzero((ground.ids == rule.item) & ground.eligible)
    return int(found[0]) if len(found) else -1
