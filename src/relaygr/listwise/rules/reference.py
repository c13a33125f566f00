"""Brute force over all lists of a small pool: what decoding under rules must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from relaygr.listwise.rules.checker import Item, check
from relaygr.listwise.rules.document import Relaxable, RuleDocument


def lists(
    document: RuleDocument,
    shown: Sequence[Item],
    pool: Sequence[Item],
    length: int,
    dropped: Sequence[str] = (),
) -> list[tuple[int, ...]]:
    """All lists of `length` candidates, as indices, that break no hard rule but the dropped ones."""
    found = []
    for picks in permutations(range(len(pool)), length):
        wrong = check(document, shown, [pool[pick] for pick in picks])
        if all(each.soft or each.rule in dropped for each in wrong):
            found.append(picks)
    return found


def relaxed(
    document: RuleDocument, shown: Sequence[Item], pool: Sequence[Item], length: int
) -> tuple[list[str], int, list[tuple[int, ...]]]:
    """Which rules must go, the length that is left, and all lists that satisfy what is left.

    The length is 0, and nothing is dropped, if even one position cannot be filled.
    """
    order = _order(document)
    for size in range(length, 0, -1):  # all relaxable rules go before the length does
        given_up = list(order)
        if lists(document, shown, pool, size, given_up):
            for name in reversed(order):
                rest = [other for other in given_up if other != name]
                if lists(document, shown, pool, size, rest):
                    given_up = rest
            return given_up, size, lists(document, shown, pool, size, given_up)
    return [], 0, []


def _order(document: RuleDocument) -> list[str]:
    ranked = [
        (rule.order, at, rule.name)
        for at, rule in enumerate(document.rules)
        if isinstance(rule, Relaxable) and not rule.price and rule.order is not None
    ]
    return [name for _, _, name in sorted(ranked)]
