"""From logged lists to training rows: one a consumed position, with the features that serving computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.listwise.context import NEVER
from relaygr.listwise.features import FeatureTable, Kind
from relaygr.listwise.pool import MISSING, HeadKind, sigmoid
from relaygr.training.slate.logs import LoggedLists

_CHUNK = 2000  # lists whose features are computed at once, fewer where earlier pages are long
_CELLS = 8_000_000  # pairs of a position and an item of its line that are held at once


@dataclass(frozen=True, slots=True)
class Rows:
    """R consumed positions.

    Attributes:
        context: float64 [R, F]; base: float64 [R, K], outputs of the ranker.
        labels: float64 [R, K]; leave: float64 [R]. NaN where unknown.
        weight: float64 [R].
        position, surface, users: int64 [R].
        lists: int64 [R], the logged list of each.
    """

    context: Float64
    base: Float64
    labels: Float64
    leave: Float64
    weight: Float64
    position: Int64
    surface: Int64
    users: Int64
    lists: Int64

    def __len__(self) -> int:
        """R."""
        return len(self.leave)


def training_rows(
    features: FeatureTable,
    logs: LoggedLists,
    watch_head: str | None = None,
    clip_weights: float | None = None,
) -> Rows:
    """The consumed positions of all lists; nothing behind an exit is looked at.

    Args:
        clip_weights: weight each row by min(1 / probability of the pick, this); 1 without.

    Raises:
        ConfigError: features need what the logs lack.
    """
    seen, found = logs.observed, context_of(features, logs, watch_head)
    lists, position = np.nonzero(seen)
    weight = np.ones(len(lists))
    if clip_weights is not None:
        if not logs.explored.all():
            raise ConfigError("clip_weights", "needs a propensity for every shown position")
        weight = np.minimum(np.exp(-logs.log_propensity[seen]), clip_weights)
    return Rows(
        context=found[seen],
        base=logs.outputs[seen].astype(np.float64),
        labels=logs.labels[seen].astype(np.float64),
        leave=logs.leaves()[seen],
        weight=weight,
        position=position,
        surface=logs.surface[lists],
        users=logs.users[lists],
        lists=lists,
    )


def context_of(features: FeatureTable, logs: LoggedLists, watch_head: str | None = None) -> Float64:
    """The features of every position behind those before it. [N, L, F]

    What stands behind a position never enters its features.
    """
    L = logs.items.shape[1]
    line = L if logs.earlier is None else L + logs.earlier.there.shape[1]
    size = min(max(_CELLS // (L * line), 1), _CHUNK)
    parts = [
        _context(features, logs.select(slice(first, first + size)), watch_head)
        for first in range(0, len(logs), size)
    ]
    return np.concatenate(parts)


def _context(features: FeatureTable, logs: LoggedLists, watch_head: str | None) -> Float64:
    N, L = logs.items.shape
    earlier = logs.earlier
    P = 0 if earlier is None else earlier.there.shape[1]
    there = np.ones((N, L), dtype=bool)
    if earlier is not None:
        there = np.concatenate([earlier.there, there], axis=1)  # [N, P + L], the line of all items
    number = there[:, :P].sum(axis=1)  # [N], items of earlier pages
    before = (np.arange(P + L)[None, :] < P + np.arange(L)[:, None])[None] & there[:, None]  # [N, L, P + L]
    out = np.empty((N, L, len(features)))
    positions = np.arange(L, dtype=np.float64)
    same = {name: _same(name, logs) & before for name in features.attributes}
    similar = _similarities(features.window, logs, before) if features.has(Kind.SIMILARITY) else {}
    for at, one in enumerate(features.features):
        match one.kind:
            case Kind.SIMILARITY:
                out[..., at] = similar[one.argument]
            case Kind.COUNT:
                out[..., at] = same[one.argument].sum(2)
            case Kind.RECENCY:
                last = np.where(same[one.argument], np.arange(P + L), NEVER).max(2)
                out[..., at] = 1.0 / (P + positions - last)
            case Kind.POSITION:
                out[..., at] = positions / logs.asked[:, None]
            case Kind.WATCH:
                out[..., at] = _watch(logs, watch_head)
            case Kind.SESSION:
                out[..., at] = np.log1p((logs.session + number)[:, None] + positions)
            case Kind.PAGE:
                out[..., at] = logs.page[:, None]
            case Kind.SLOT:
                out[..., at] = 0.0 if logs.slots is None else logs.slots == one.number
            case Kind.VECTOR:
                vectors = _vectors(logs, "vectors")[0]
                if one.number >= vectors.shape[2]:
                    width = vectors.shape[2]
                    raise ConfigError(
                        "vectors", f"have {width} components, and the model reads that of {one.number}"
                    )
                out[..., at] = vectors[..., one.number]
    return out


def _same(name: str, logs: LoggedLists) -> Bool:
    """Which items of the line share the value of each pick. bool [N, L, P + L]"""
    if name not in logs.attributes:
        raise ConfigError("attributes", f"the logs lack {name!r}, which the step model wants")
    values = line = logs.attributes[name]
    if logs.earlier is not None:
        line = np.concatenate([logs.earlier.attributes[name], values], axis=1)
    same: Bool = (values[:, :, None] == line[:, None, :]) & (values != MISSING)[:, :, None]
    return same


def _similarities(window: int, logs: LoggedLists, before: Bool) -> dict[str, Float64]:
    """Largest and mean cosine to the `window` items before; 0 if there is none. [N, L] each"""
    mine, line = _vectors(logs, "similarities")
    cosine = mine @ line.swapaxes(1, 2)  # [N, L, P + L]
    # Items that are there, counted from the position backwards: the window holds those up to `window`.
    back = before[..., ::-1].cumsum(axis=2)[..., ::-1]
    near = before & (back <= window)
    count = near.sum(2)
    largest = np.where(near, cosine, -np.inf).max(2)
    mean = np.where(near, cosine, 0.0).sum(2) / np.maximum(count, 1)
    return {"max": np.where(count > 0, largest, 0.0), "mean": mean}


def _vectors(logs: LoggedLists, reader: str) -> tuple[Float64, Float64]:
    """Vectors of the picks [N, L, Dv] and of the line [N, P + L, Dv], of length 1 up to float64."""
    if logs.vectors is None:
        raise ConfigError("vectors", f"the logs have none, and the step model's {reader} need them")
    mine = _unit(logs.vectors)
    if logs.earlier is None:
        return mine, mine
    if logs.earlier.vectors is None:
        raise ConfigError("earlier.vectors", f"there are none, and the step model's {reader} need them")
    return mine, np.concatenate([_unit(logs.earlier.vectors), mine], axis=1)


def _unit(vectors: Any) -> Float64:
    exact = vectors.astype(np.float64)
    squares = np.einsum("nld,nld->nl", exact, exact)
    scaled: Float64 = exact / np.sqrt(np.where(squares > 0, squares, 1.0))[..., None]
    return scaled


def _watch(logs: LoggedLists, watch_head: str | None) -> Float64:
    """log(1 + watch so far), as the ranker sees the picks and as observed of earlier pages. [N, L]"""
    names = [head.name for head in logs.heads]
    if watch_head not in names:
        raise ConfigError("watch_head", f"{watch_head!r} is none of {', '.join(names)}")
    at = names.index(watch_head)
    output = logs.outputs[..., at].astype(np.float64)
    watch = output if logs.heads[at].kind is HeadKind.REGRESSION else sigmoid(output)
    first = np.zeros(len(logs)) if logs.earlier is None else logs.earlier.watch
    sums = np.cumsum(np.concatenate([first[:, None], watch], axis=1), axis=1)
    logs_so_far: Float64 = np.log1p(sums[:, :-1])
    return logs_so_far
