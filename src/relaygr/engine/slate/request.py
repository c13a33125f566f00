"""What a slate is asked for, and what is known of its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relaygr.core.errors import ConfigError, RequestError
from relaygr.engine.columns import Int64, int64_column
from relaygr.listwise.arrays import Float32, Float64
from relaygr.listwise.items import ItemTable, unit_vectors
from relaygr.listwise.masks import Rules
from relaygr.listwise.pool import Shown
from relaygr.listwise.request import Mode
from relaygr.listwise.rules.document import AnyRule, RuleDocument
from relaygr.listwise.rules.ruleset import RuleSet

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsAsked:
    """Items that come with a request.

    Attributes:
        ids: the items.
        attributes: name -> one integer an item; they stand in front of what the item table says.
        vectors: one an item, of any length above 0; None takes the table's.
    """

    ids: Sequence[int]
    attributes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    vectors: Rows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAsked(ItemsAsked):
    """Items of earlier pages, oldest first; see `Shown`."""

    watch: Sequence[float] | None = None
    survival: float = 1.0
    page: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateRequest:
    """One list; see `SlateAsk` for what has no line here.

    Attributes:
        candidates: the items to choose from.
        shown: what earlier pages held.
        rules: behind those of the server.
        mode: None is the server's.
        explore: as for `SlateAsk`.
    """

    request_id: str
    candidates: ItemsAsked
    length: int
    shown: ShownAsked | None = None
    rules: tuple[AnyRule, ...] = ()
    slots: Sequence[int] = ()
    consumed: int = 0
    mode: Mode | None = None
    unrestricted: bool = False
    allow_short: bool = True
    explore: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """Items with all that the list layer may know of them.

    Attributes:
        unknown: how many of them the item table lacks.
    """

    ids: Int64
    attributes: Mapping[str, Int64]
    vectors: Float32 | None
    unknown: int


def known(prefix: str, asked: ItemsAsked, table: ItemTable | None) -> Known:
    """Attributes and vectors of items; those of the request stand in front of the table's.

    Raises:
        RequestError: naming the field, the value and the limit; fields begin with `prefix`.
    """
    name = f"{prefix}ids" if prefix else "candidates"
    ids = int64_column(name, asked.ids)
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise RequestError(name, f"hold {int(values[counts.argmax()])} {int(counts.max())} times, limit 1")
    facts = None if table is None else table(ids)
    attributes = {} if facts is None else dict(facts.attributes)
    for attribute, column in asked.attributes.items():
        field_name = f"{prefix}attributes.{attribute}"
        attributes[attribute] = int64_column(field_name, column)
        if len(column) != len(ids):
            raise RequestError(field_name, f"{len(column)} values for {len(ids)} items")
    vectors = None if facts is None else facts.vectors
    if asked.vectors is not None:
        vectors = _vectors(f"{prefix}vectors", asked.vectors, len(ids))
    return Known(ids, attributes, vectors, 0 if facts is None else int((~facts.known).sum()))


def shown_of(asked: ShownAsked, items: Known, candidates: Known, given: bool) -> Shown:
    """What was shown, with vectors of the width of the candidates'.

    Args:
        given: whether the candidates' vectors came with the request.

    Raises:
        RequestError: naming the field.
    """
    vectors = items.vectors
    if (asked.vectors is not None) != given and len(items.ids) and candidates.vectors is not None:
        where = ("shown.vectors", "vectors") if given else ("vectors", "shown.vectors")
        raise RequestError(where[0], f"are missing, and {where[1]} come with the request")
    if vectors is not None and candidates.vectors is not None and len(items.ids):
        widths = vectors.shape[1], candidates.vectors.shape[1]
        if widths[0] != widths[1]:
            raise RequestError("shown.vectors", f"have {widths[0]} components, candidates {widths[1]}")
    watch: Float64 | None = None
    if asked.watch is not None:
        watch = np.asarray(asked.watch, dtype=np.float64)
        if not np.isfinite(watch).all():
            raise RequestError("shown.watch", "holds a number that is not finite")
        if len(watch) and not (watch.min() >= 0 and watch.max() <= np.finfo(np.float32).max):
            wrong = watch.min() if watch.min() < 0 else watch.max()
            raise RequestError("shown.watch", f"{wrong:g} is not within 0..{np.finfo(np.float32).max:g}")
    return Shown(
        ids=items.ids,
        attributes=items.attributes,
        vectors=vectors,
        watch=watch,
        survival=asked.survival,
        page=asked.page,
    )


def rules_of(base: RuleSet | None, more: tuple[AnyRule, ...]) -> Rules | None:
    """The server's rules and those of a request behind them; None for none.

    Raises:
        RequestError: a rule of the request makes no sense, or has the name of another.
    """
    if not more:
        return base
    taken = {rule.name for rule in base.document.rules} if base is not None else set()
    try:
        for at, rule in enumerate(more):
            rule.check(f"rules[{at}]")
            if rule.name in taken:
                raise RequestError(f"rules[{at}].name", f"{rule.name!r} is a rule of the server")
        if base is None:
            return RuleSet(RuleDocument(id="request", rules=more))
        return base.extended(more, f"{base.document.id}+request")
    except ConfigError as error:
        raise RequestError(error.path, str(error).removeprefix(f"{error.path}: ")) from error


def _vectors(name: str, rows: Rows, count: int) -> Float32:
    if len(rows) != count:
        raise RequestError(name, f"{len(rows)} vectors for {count} items")
    widths = {len(row) for row in rows}
    if len(widths) > 1 or 0 in widths:
        raise RequestError(name, f"have {sorted(widths)} components, wanted one number above 0")
    vectors = np.array(rows, dtype=np.float64).reshape(count, *widths or (0,))
    units = unit_vectors(vectors)
    wrong = np.flatnonzero(~np.isfinite(units).all(axis=1))
    if len(wrong):
        raise RequestError(f"{name}[{int(wrong[0])}]", "has no length above 0 that is finite")
    return units
