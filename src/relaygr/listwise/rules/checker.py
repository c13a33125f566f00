"""The last check of a finished list: each rule read again from the document, position by position, in plain
Python that shares nothing with the automata."""

from __future__ import annotations

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

    def has(self, attribute: str, values: Sequence[int]) -> bool:
        return self.attributes[attribute] in values

    def value(self, attribute: str | None) -> int | None:
        """The id without an attribute; None where there is no value."""
        if attribute is None:
            return self.id
        found = self.attributes[attribute]
        return None if found == _NO_VALUE else found


def check(document: RuleDocument, shown: Sequence[Item], picks: Sequence[Item]) -> list[Violation]:
    """All violations of all rules, soft ones included, by rule and position."""
    found = list(_twice(shown, picks))
    for rule in document.rules:
        soft = bool(getattr(rule, "price", 0.0))
        found.extend(Violation(rule.name, at, reason, soft) for at, reason in _broken(rule, shown, picks))
    return found


def _twice(shown: Sequence[Item], picks: Sequence[Item]) -> Iterator[Violation]:
    before = {item.id for item in shown}
    for at, item in enumerate(picks):
        if item.id in before:
            yield Violation("list", at, f"item {item.id} was there before")
        before.add(item.id)


def _broken(rule: AnyRule, shown: Sequence[Item], picks: Sequence[Item]) -> Iterator[tuple[int, str]]:
    match rule:
        case Gap():
            yield from _crowded(shown, picks, rule.attribute, 1, rule.distance, ())
        case Cap():
            yield from _crowded(shown, picks, rule.attribute, rule.most, rule.window, rule.values)
        case Minimum():
            yield from _missing(rule, shown, picks)
        case Maximum():
            held = sum(item.has(rule.attribute, rule.values) for item in shown) if rule.scope == "feed" else 0
            for at, item in enumerate(picks):
                held += item.has(rule.attribute, rule.values)
                if item.has(rule.attribute, rule.values) and held > rule.count:
                    yield at, f"holds number {held} of its class, limit {rule.count}"
        case Slot():
            yield from _misplaced(rule, shown, picks)
        case Pin():
            wanted = rule.position - (len(shown) if rule.scope == "feed" else 0)
            for at, item in enumerate(picks):
                if at == wanted and item.id != rule.item:
                    yield at, f"holds item {item.id} in place of {rule.item}"
                if at != wanted and item.id == rule.item and wanted >= 0:
                    yield at, f"holds item {item.id}, which belongs to position {wanted}"
        case Pairs():
            for at, item in enumerate(picks):
                one = item.value(rule.attribute)
                for other in (*shown, *picks[:at]):
                    two = other.value(rule.attribute)
                    if one is not None and two is not None and _paired(rule, one, two):
                        yield at, f"holds {one}, and {two} is there"
        case Eligible():
            for at, item in enumerate(picks):
                if item.has(rule.attribute, rule.values) == rule.deny:
                    yield at, f"item {item.id} has {rule.attribute} {item.attributes[rule.attribute]}"


def _crowded(
    shown: Sequence[Item],
    picks: Sequence[Item],
    attribute: str,
    most: int,
    window: int | None,
    values: Sequence[int],
) -> Iterator[tuple[int, str]]:
    feed = [item.value(attribute) for item in (*shown, *picks)]
    for at in range(len(shown), len(feed)):
        first = 0 if window is None else max(at - window + 1, 0)
        held = sum(other == feed[at] for other in feed[first : at + 1])
        if feed[at] is not None and (not values or feed[at] in values) and held > most:
            width = "the feed" if window is None else f"{window} positions"
            yield at - len(shown), f"{attribute} {feed[at]} stands {held} times in {width}, limit {most}"


def _missing(rule: Minimum, shown: Sequence[Item], picks: Sequence[Item]) -> Iterator[tuple[int, str]]:
    if rule.scope == "feed":
        assert rule.within is not None
        if not len(shown) < rule.within <= len(shown) + len(picks):
            return  # it was due before this list, or it is due behind it
        counted, due = (*shown, *picks)[: rule.within], rule.within - len(shown)
    else:
        due = len(picks) if rule.within is None else min(rule.within, len(picks))
        counted = tuple(picks[:due])
    held = sum(item.has(rule.attribute, rule.values) for item in counted)
    if held < rule.count:
        yield due - 1, f"{held} of its class so far, wanted {rule.count}"


def _misplaced(rule: Slot, shown: Sequence[Item], picks: Sequence[Item]) -> Iterator[tuple[int, str]]:
    for at, item in enumerate(picks):
        place = at + (len(shown) if rule.scope == "feed" else 0)
        if rule.every is not None:
            place %= rule.every
        inside = item.has(rule.attribute, rule.values)
        if place in rule.positions and not inside:
            yield at, f"item {item.id} is not of the class of this position"
        if place not in rule.positions and inside and rule.exclusive:
            yield at, f"item {item.id} is of a class that does not stand here"


def _paired(rule: Pairs, one: int, two: int) -> bool:
    return any({one, two} == set(pair) for pair in rule.pairs)
