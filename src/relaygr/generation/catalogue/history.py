"""From the items of a user's history to their codes, those that are no longer served included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue.index import Bools, CatalogueIndex, Int64s, ItemId

Unknown: TypeAlias = Literal["reject", "skip"]


@dataclass(frozen=True, slots=True, eq=False)
class CodedHistory:
    """Codes [n, L] of the known items, oldest first, and how many items were unknown and left out."""

    codes: Int64s
    skipped: int


def code_history(
    index: CatalogueIndex, ids: Sequence[ItemId], unknown: Unknown = "reject", field: str = "history"
) -> CodedHistory:
    """The codes of `ids`. An item under several semantic ids gets its lowest served one.

    Raises:
        RequestError: an id of another kind than the catalogue's or, with `reject`, an unknown one, with its
            place in `field`.
    """
    entries, possible = index.internal(field, ids)
    codes = np.zeros((len(ids), index.levels), np.int64)
    known = possible.copy()
    served, place = _find(index.by_id, entries)
    served &= possible
    # Equal ids stand in ascending order of position, so the first is in the lowest leaf.
    codes[served] = index.sids(index.leaves_of(index.order[place[served]]))
    hidden, place = _find(index.hidden_items, entries)
    hidden &= possible & ~served
    codes[hidden] = index.hidden_codes[place[hidden]]
    known &= served | hidden
    if unknown == "reject" and not known.all():
        at = int(np.argmin(known))
        raise RequestError(f"{field}[{at}]", f"item {ids[at]!r} is not in the catalogue")
    return CodedHistory(codes[known], len(ids) - int(known.sum()))


def _find(ascending: Int64s, entries: Int64s) -> tuple[Bools, Int64s]:
    """(whether it is there, its first place) of each entry. [n], [n]"""
    place = np.searchsorted(ascending, entries).astype(np.int64)
    if not len(ascending):
        return np.zeros(len(entries), np.bool_), place
    place = np.minimum(place, len(ascending) - 1)
    return ascending[place] == entries, place
