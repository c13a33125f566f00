"""What rules need of one request: attributes of the candidates and of what was shown, and who is eligible."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.arrays import Bool, Int64
from relaygr.listwise.pool import Pool, Shown
from relaygr.listwise.rules.automaton import Automaton
from relaygr.listwise.rules.document import Eligible, RuleDocument


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Candidates are columns in pointwise order; shown items stand at the positions -S..-1.

    Attributes:
        ids: int64 [C].
        attributes: name -> int64 [C].
        shown_ids: int64 [S].
        shown_attributes: name -> int64 [S].
        eligible: bool [C], candidates that may be picked at all.
        length: positions to fill, n.
        automata: of rules that were compiled on this ground, by name and pins; None if it cannot be broken.
    """

    ids: Int64
    attributes: Mapping[str, Int64]
    shown_ids: Int64
    shown_attributes: Mapping[str, Int64]
    eligible: Bool
    length: int
    automata: dict[Hashable, Automaton | None] = field(default_factory=dict, init=False)

    @property
    def offset(self) -> int:
        """S, the position of the list's first item in the feed."""
        return len(self.shown_ids)

    def column(self, rule: str, attribute: str) -> tuple[Int64, Int64]:
        """Values of an attribute of the candidates [C] and of what was shown [S].

        Raises:
            RequestError: the pool or what was shown lacks it.
        """
        shown = np.empty(0, dtype=np.int64)
        if self.offset:
            shown = _column(rule, attribute, "shown.attributes", self.shown_attributes)
        return self.candidates(rule, attribute), shown

    def candidates(self, rule: str, attribute: str) -> Int64:
        """Values of an attribute of the candidates [C]; RequestError as `column`."""
        return _column(rule, attribute, "attributes", self.attributes)

    def narrow(self, columns: Int64) -> Ground:
        """The candidates `columns` [m] alone."""
        return Ground(
            self.ids[columns],
            {name: values[columns] for name, values in self.attributes.items()},
            self.shown_ids,
            self.shown_attributes,
            self.eligible[columns],
            self.length,
        )


def open_ground(document: RuleDocument, pool: Pool, length: int, shown: Shown | None) -> Ground:
    """The ground of a request; ineligible candidates and those that were shown are left out for good."""
    shown_ids = np.empty(0, dtype=np.int64) if shown is None else shown.ids
    shown_attributes: Mapping[str, Int64] = {} if shown is None else shown.attributes
    eligible = ~np.isin(pool.ids, shown_ids) if len(shown_ids) else np.ones(len(pool), dtype=bool)
    for rule in document.rules:
        if isinstance(rule, Eligible):
            values = _column(rule.name, rule.attribute, "attributes", pool.attributes)
            eligible &= among(values, rule.values) ^ rule.deny
    return Ground(pool.ids, pool.attributes, shown_ids, shown_attributes, eligible, length)


def among(values: Int64, wanted: Sequence[int]) -> Bool:
    """Which of `values` [n] are in `wanted`. [n]"""
    if len(wanted) > 8:
        found: Bool = np.isin(values, wanted)
        return found
    found = values == wanted[0]  # numpy sorts first, which takes longer than this
    for value in wanted[1:]:
        found |= values == value
    return found


def _column(rule: str, attribute: str, field: str, attributes: Mapping[str, Int64]) -> Int64:
    if attribute not in attributes:
        known = excerpt(", ".join(sorted(attributes))) or "none"
        raise RequestError(
            f"{field}.{attribute}", f"is missing, and rule {rule!r} needs it; there are: {known}"
        )
    return attributes[attribute]
