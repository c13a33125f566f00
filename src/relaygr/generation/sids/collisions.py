"""What to do with items whose codes are all equal: share the id, number them, or move them to free codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.generation.sids.nearest import Float32s, Float64s, Int32s, Int64s
from relaygr.generation.sids.quantise import Codebooks


@dataclass(frozen=True, slots=True)
class Moves:
    """What `reassign` did.

    Attributes:
        moved: items that got another last code.
        left: items that still share an id, because no free code was among their nearest.
        added: squared distance that the moves added, summed.
    """

    moved: int
    left: int
    added: float


def ids_of(codes: Int32s) -> tuple[Int64s, Int64s]:
    """(number of each item's semantic id [n], items of each id [m]); ids are in lexicographic order."""
    _, which, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    return which.reshape(-1).astype(np.int64), counts.astype(np.int64)


def digits(codes: Int32s, priority: Float64s, item_ids: Int64s, taken: Int32s | None = None) -> Int64s:
    """A number for each item [n] inside its semantic id, best first: priority descending, then item id.

    Args:
        codes: int32 [n, L].
        taken: int32 [m, L], ids of items that have their numbers already; numbers go on behind them.
    """
    before = 0 if taken is None else len(taken)
    which, _ = ids_of(codes if taken is None else np.concatenate([taken, codes]))
    offset = np.bincount(which[:before], minlength=int(which.max(initial=-1)) + 1)
    mine = which[before:]
    order = np.lexsort((item_ids, -priority, mine))
    place = np.arange(len(order))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.diff(mine[order]) != 0
    out = np.empty(len(order), dtype=np.int64)
    out[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return out + offset[mine]


def reassign(
    books: Codebooks, embeddings: Float32s, codes: Int32s, neighbours: int, taken: Int32s | None = None
) -> tuple[Int32s, Moves]:
    """Codes with surplus items of each id moved to the next-nearest free code of the last level.

    The item nearest to its centroid keeps the id, the lower row among equal ones. Moves are made in order of
    least added distance over all surplus items of one prefix; an item moves at most once.

    Args:
        codes: int32 [n, L] as `books.encode` gives them.
        neighbours: nearest codes of the last level that an item may be moved to.
        taken: int32 [m, L], ids that are in use and stay as they are.
    """
    level = len(books.centroids) - 1
    residuals = books.prepare(embeddings) - books.decode(codes, level)
    fixed = np.zeros((0, level + 1), dtype=np.int32) if taken is None else taken
    out = codes.copy()
    moved, added = 0, 0.0
    for rows, used in _crowded(codes, fixed):
        last, extra = _spread(residuals[rows], books.centroids[level], out[rows, level], used, neighbours)
        changed = last != out[rows, level]
        moved += int(changed.sum())
        added += extra
        out[rows, level] = last
    which, _ = ids_of(np.concatenate([fixed, out]))
    counts = np.bincount(which)
    return out, Moves(moved, int((counts[which[len(fixed) :]] > 1).sum()), added)


def _crowded(codes: Int32s, fixed: Int32s) -> list[tuple[Int64s, Int64s]]:
    """(items, last codes of `fixed`) of each prefix in which some id has more than one item."""
    everything = np.concatenate([fixed, codes])
    prefixes, _ = ids_of(everything[:, :-1]) if codes.shape[1] > 1 else (np.zeros(len(everything), int), None)
    ids, counts = ids_of(everything)
    crowded = np.unique(prefixes[(counts[ids] > 1) & (np.arange(len(everything)) >= len(fixed))])
    order = np.argsort(prefixes, kind="stable")
    bounds = np.searchsorted(prefixes[order], [crowded, crowded + 1])
    found = []
    for low, high in bounds.T.tolist():
        members = order[low:high]
        old = members[members < len(fixed)]
        found.append((members[members >= len(fixed)] - len(fixed), fixed[old, -1].astype(np.int64)))
    return found


def _spread(
    residuals: Float32s, centroids: Float32s, last: Int32s, used: Int64s, neighbours: int
) -> tuple[Int32s, float]:
    """(last codes [m] with as few equal ones as allowed, squared distance added) inside one prefix."""
    own = np.square(residuals.astype(np.float64) - centroids[last]).sum(axis=1)
    occupied = np.zeros(len(centroids), dtype=bool)
    occupied[used] = True
    out = last.copy()
    surplus: list[int] = []
    for item in np.lexsort((np.arange(len(last)), own)).tolist():
        if occupied[last[item]]:
            surplus.append(item)
        occupied[last[item]] = True
    if not surplus:
        return out, 0.0
    spare = np.array(sorted(surplus))
    distances = np.square(residuals[spare, None, :].astype(np.float64) - centroids).sum(axis=2)  # [s, V]
    near = np.argsort(distances, axis=1, kind="stable")[:, : neighbours + 1]
    cost = np.take_along_axis(distances, near, axis=1) - own[spare, None]
    who = np.repeat(np.arange(len(spare)), near.shape[1])
    placed = np.zeros(len(spare), dtype=bool)
    added = 0.0
    for at in np.lexsort((near.ravel(), who, cost.ravel())).tolist():
        item, code = int(who[at]), int(near.ravel()[at])
        if not placed[item] and not occupied[code]:
            placed[item] = occupied[code] = True
            out[spare[item]] = code
            added += float(cost.ravel()[at])
    return out, added
