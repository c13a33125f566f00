"""What a client says of a returned list: how far the user got, what was observed there, what it was worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.listwise.pool import Head, HeadKind
from relaygr.listwise.value import ValueFunction
from relaygr.serving.slate.outcomes import realised
from relaygr.serving.slate.wire import OutcomeBody

Labels = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """As `Feedback` of a log: positions that the user got to, labels [consumed, K], and the next page."""

    consumed: int
    labels: Labels
    more: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """One outcome.

    Attributes:
        worth: the list's realised utility; None where too little was observed to say.
        seen: what a log holds of it; None where nothing was said of positions.
        said_by: the field that says how many positions, for messages.
    """

    worth: float | None
    seen: Seen | None
    said_by: str


def observed(one: OutcomeBody, value: ValueFunction, at: int, positions: int | None = None) -> Observed:
    """Check one outcome.

    Args:
        at: place in the request, for messages.
        positions: of the list; None if it is not remembered.

    Raises:
        RequestError: naming the field, the value and the limit.
    """
    field, heads = f"outcomes[{at}]", value.heads
    if one.labels is not None and one.heads is not None:
        raise RequestError(field, "wants either heads or labels")
    if one.labels is None and (one.consumed is None or one.utility is not None or one.heads is not None):
        worth: float | None = realised(one, value, at, positions)
    else:
        worth = one.utility
    columns: dict[str, list[float | None]] | None = one.labels
    if one.heads is not None:
        columns = {name: list(seen) for name, seen in one.heads.items()}
    if one.labels is not None:
        _check_labels(f"{field}.labels", one.labels, heads)
    consumed = _consumed(field, one, columns)
    if consumed is None:
        if one.more:
            raise RequestError(f"{field}.more", "needs consumed, heads or labels beside it")
        return Observed(worth, None, "utility")
    columns = columns or {}
    missing: list[float | None] = [None] * consumed
    rows = zip(*(columns.get(head.name, missing) for head in heads), strict=True)
    labels: Labels = tuple(rows) if consumed else ()
    if worth is None and one.labels is not None:
        worth = _worth(value, labels)
    said_by = "consumed" if one.consumed is not None else "heads" if one.heads is not None else "labels"
    return Observed(worth, Seen(consumed, labels, one.more), said_by)


def _consumed(field: str, one: OutcomeBody, columns: dict[str, list[float | None]] | None) -> int | None:
    """Positions that the user got to; None where nothing says so."""
    lengths = {name: len(seen) for name, seen in (columns or {}).items()}
    if not lengths:
        return one.consumed
    name, length = next(iter(lengths.items()))
    if len(set(lengths.values())) > 1:
        raise RequestError(f"{field}.labels", f"lengths {sorted(set(lengths.values()))} differ")
    if one.consumed not in (None, length):
        raise RequestError(f"{field}.consumed", f"{one.consumed} positions, {length} are of head {name}")
    return length


def _check_labels(field: str, labels: dict[str, list[float | None]], heads: tuple[Head, ...]) -> None:
    kinds = {head.name: head.kind for head in heads}
    for name, seen in labels.items():
        if name not in kinds:
            raise RequestError(field, f"{name[:64]!r} is none of the heads {', '.join(kinds)}")
        most = 1.0 if kinds[name] is HeadKind.BINARY else float(np.finfo(np.float32).max)
        for position, label in enumerate(seen):
            if label is not None and not 0 <= label <= most:
                raise RequestError(
                    f"{field}.{name}[{position}]",
                    f"{label:g} is not from 0 to {most:g}, as {kinds[name]} heads are",
                )


def _worth(value: ValueFunction, labels: Labels) -> float | None:
    """Of labels of every head that the value function reads; None where one is missing."""
    needed = [at for at, head in enumerate(value.heads) if head.name in value.reads]
    if any(row[at] is None for row in labels for at in needed):
        return None
    known = [[0.0 if label is None else label for label in row] for row in labels]
    table = np.array(known, dtype=np.float64).reshape(len(labels), len(value.heads))
    return float(value(np.ascontiguousarray(table.T)).sum())
