"""The rules of requests: they open walks over candidates, and check what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from relaygr.listwise.arrays import Float64, Int32, Int64
from relaygr.listwise.masks import Relaxation, never, structural_violations
from relaygr.listwise.pool import Pool, Shown
from relaygr.listwise.rules.checker import Items, check_columns
from relaygr.listwise.rules.document import AnyRule, RuleDocument
from relaygr.listwise.rules.relax import open_walk
from relaygr.listwise.rules.walk import RuleWalk


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
        self,
        pool: Pool,
        value: Float64,
        length: int,
        shown: Shown | None = None,
        allow_short: bool = True,
        late: Callable[[], bool] = never,
    ) -> RuleWalk:
        """As `Rules.open`."""
        return open_walk(self.document, pool, length, shown, allow_short=allow_short, late=late)

    def violations(
        self, pool: Pool, picks: Int32, length: int, shown: Shown | None, relaxed: Sequence[Relaxation]
    ) -> tuple[str, ...]:
        """As `Rules.violations`: what breaks a hard rule that was not relaxed."""
        wrong = structural_violations(pool, picks, length, shown)
        if any(not 0 <= pick < len(pool) for pick in picks.tolist()):
            return wrong
        listed = _items(pool.ids[picks], {name: column[picks] for name, column in pool.attributes.items()})
        before = Items([], {}) if shown is None else _items(shown.ids, shown.attributes)
        excused = {entry.rule for entry in relaxed}
        found = check_columns(self.document, before, listed)
        broken = [
            each for each in found if not each.soft and each.rule not in excused and each.rule != "list"
        ]
        return (*wrong, *map(str, broken))


def _items(ids: Int64, attributes: Mapping[str, Int64]) -> Items:
    return Items(ids.tolist(), {name: column.tolist() for name, column in attributes.items()})
