"""The last check of a finished list: each rule read again from the document, position by position, in plain
Python that shares nothing with the automata. One pass over what was shown and the picks for each rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from relaygr.listwise.rules.document import (
    AnyRule,
    Cap,
    Eligible,
    Gap,
    Maximum,
    Minimum,
    Pairs,
    Pin,
    RuleDocument,
    Slot,
)

_NO_VALUE = -1


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a list breaks.

    Attributes:
        rule: its name; `list` for what every list must be.
        position: from 0.
        reason: what is wrong there.
        soft: whether the rule is priced, so that this is allowed and paid for.
    """

    rule: str
    position: int
    reason: str
    soft: bool = False

    def __str__(self) -> str:
        return f"{self.rule}: position {self.position}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Item:
    """What the rules may look at."""

    id: int
    attributes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Items:
    """The same of several items, oldest first, a column an attribute."""

    ids: Sequence[int]
    attributes: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, items: Sequence[Item]) -> Items:
        names = items[0].attributes if items else ()
        return cls(
            [item.id for item in items], {name: [item.attributes[name] for item in items] for name in names}
        )

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, attribute: str | None) -> list[int]:
        """The ids without an attribute."""
        return list(self.ids if attribute is None else self.attributes[attribute] if self.ids else ())


def check(document: RuleDocument, shown: Sequence[Item], picks: Sequence[Item]) -> list[Violation]:
    """All violations of all rules, soft ones included, by rule and position."""
    return check_columns(document, Items.of(shown), Items.of(picks))


def check_columns(document: RuleDocument, shown: Items, picks: Items) -> list[Violation]:
    """As `check`."""
    found = list(_twice(shown, picks))
    for rule in document.rules:
        soft = bool(getattr(rule, "price", 0.0))
        found.extend(Violation(rule.name, at, reason, soft) for at, reason in _broken(rule, shown, picks))
    return found


def _twice(shown: Items, picks: Items) -> Iterator[Violation]:
    before = set(shown.ids)
    for at, item in enumerate(picks.ids):
        if item in before:
            yield Violation("list", at, f"item {item} was there before")
        before.add(item)


def _broken(rule: AnyRule, shown: Items, picks: Items) -> Iterator[tuple[int, str]]:
    match rule:
        case Gap():
            yield from _crowded(shown, picks, rule.attribute, 1, rule.distance, ())
        case Cap():
            yield from _crowded(shown, picks, rule.attribute, rule.most, rule.window, rule.values)
        case Minimum():
            yield from _missing(rule, shown, picks)
        case Maximum():
            values, held = set(rule.values), 0
            if rule.scope == "feed":
                held = sum(value in values for value in shown.column(rule.attribute))
            for at, value in enumerate(picks.column(rule.attribute)):
                held += value in values
                if value in values and held > rule.count:
                    yield at, f"holds number {held} of its class, limit {rule.count}"
        case Slot():
            yield from _misplaced(rule, shown, picks)
        case Pin():
            wanted = rule.position - (len(shown) if rule.scope == "feed" else 0)
            for at, item in enumerate(picks.ids):
                if at == wanted and item != rule.item:
                    yield at, f"holds item {item} in place of {rule.item}"
                if at != wanted and item == rule.item and wanted >= 0:
                    yield at, f"holds item {item}, which belongs to position {wanted}"
        case Pairs():
            yield from _paired(rule, shown, picks)
        case Eligible():
            values = set(rule.values)
            for at, value in enumerate(picks.column(rule.attribute)):
                if (value in values) == rule.deny:
                    yield at, f"item {picks.ids[at]} has {rule.attribute} {value}"


def _crowded(
    shown: Items, picks: Items, attribute: str, most: int, window: int | None, values: Sequence[int]
) -> Iterator[tuple[int, str]]:
    feed, wanted = shown.column(attribute) + picks.column(attribute), set(values)
    first = 0 if window is None else max(len(shown) - window + 1, 0)
    held = Counter(feed[first : len(shown)])  # of the window that ends at the position before
    for at in range(len(shown), len(feed)):
        value = feed[at]
        held[value] += 1
        if value != _NO_VALUE and (not wanted or value in wanted) and held[value] > most:
            width = "the feed" if window is None else f"{window} positions"
            yield at - len(shown), f"{attribute} {value} stands {held[value]} times in {width}, limit {most}"
        if window is not None and at - window + 1 >= 0:
            held[feed[at - window + 1]] -= 1


def _missing(rule: Minimum, shown: Items, picks: Items) -> Iterator[tuple[int, str]]:
    column, values = picks.column(rule.attribute), set(rule.values)
    if rule.scope == "feed":
        assert rule.within is not None
        if not len(shown) < rule.within <= len(shown) + len(picks):
            return  # it was due before this list, or it is due behind it
        due = rule.within - len(shown)
        column = shown.column(rule.attribute) + column[:due]
    else:
        due = len(picks) if rule.within is None else min(rule.within, len(picks))
        column = column[:due]
    held = sum(value in values for value in column)
    if held < rule.count:
        yield due - 1, f"{held} of its class so far, wanted {rule.count}"


def _misplaced(rule: Slot, shown: Items, picks: Items) -> Iterator[tuple[int, str]]:
    values, positions = set(rule.values), set(rule.positions)
    for at, value in enumerate(picks.column(rule.attribute)):
        place = at + (len(shown) if rule.scope == "feed" else 0)
        if rule.every is not None:
            place %= rule.every
        if place in positions and value not in values:
            yield at, f"item {picks.ids[at]} is not of the class of this position"
        if place not in positions and value in values and rule.exclusive:
            yield at, f"item {picks.ids[at]} is of a class that does not stand here"


def _paired(rule: Pairs, shown: Items, picks: Items) -> Iterator[tuple[int, str]]:
    column = picks.column(rule.attribute)
    mine, before = set(column), set(shown.column(rule.attribute))
    partners: dict[int, set[int]] = {}
    for one, two in rule.pairs:
        if one in mine:
            partners.setdefault(one, set()).add(two)
        if two in mine:
            partners.setdefault(two, set()).add(one)
    for at, value in enumerate(column):
        for other in sorted(partners[value] & before) if value in partners else ():
            if rule.attribute is None or _NO_VALUE not in (value, other):
                yield at, f"holds {value}, and {other} is there"
        before.add(value)
