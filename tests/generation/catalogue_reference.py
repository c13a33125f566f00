"""A catalogue as plain sets and lists, to hold the index against; and random rows for both."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from relaygr.generation.catalogue.build import Built, build_index
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.rows import Rows

Sid = tuple[int, ...]


@dataclass
class Row:
    item: int | str
    sid: Sid
    priority: int = 0
    servable: bool = True
    flags: dict[str, bool] = field(default_factory=dict)


def rows_of(rows: list[Row], levels: int) -> Rows:
    names = sorted({name for row in rows for name in row.flags})
    ids = [row.item for row in rows]
    return Rows(
        item_ids=np.array(ids, np.int64)
        if all(isinstance(one, int) for one in ids)
        else [str(i) for i in ids],
        codes=np.array([row.sid for row in rows], np.int64).reshape(-1, levels),
        priority=np.array([row.priority for row in rows]),
        servable=np.array([row.servable for row in rows]),
        flags={name: np.array([row.flags.get(name, False) for row in rows]) for name in names},
    )


def build(rows: list[Row], sizes: tuple[int, ...], *, allow_multi_sid: bool = True) -> Built:
    return build_index(rows_of(rows, len(sizes)), sizes, allow_multi_sid=allow_multi_sid)


def leaves(rows: list[Row]) -> dict[Sid, list[int | str]]:
    """Served items of each semantic id, best first, semantic ids ascending."""
    found: dict[Sid, dict[int | str, int]] = defaultdict(dict)
    for row in rows:
        if row.servable:
            found[row.sid][row.item] = row.priority
    return {sid: sorted(items, key=lambda item: (-items[item], item)) for sid, items in sorted(found.items())}


def prefixes(index: CatalogueIndex) -> list[list[Sid]]:
    """The prefix of every node of every level, found through `children` from the root."""
    found: list[list[Sid]] = [[()]]
    for level in range(1, index.levels + 1):
        starts, ends = index.children(level, np.arange(index.nodes(level - 1)))
        below: list[Sid] = []
        for prefix, start, end in zip(found[-1], starts.tolist(), ends.tolist(), strict=True):
            assert start == len(below)
            below += [(*prefix, int(code)) for code in index.codes[level - 1][start:end]]
        found.append(below)
    return found


@st.composite
def catalogues(
    draw: st.DrawFn, *, wide: bool = False, strings: bool = False, flags: tuple[str, ...] = ()
) -> tuple[list[Row], tuple[int, ...]]:
    """Rows that are accepted, with repeats, shared and several semantic ids; sizes that pack, or do not."""
    levels = draw(st.integers(1, 4))
    top = draw(st.integers(1, 4))
    sizes = tuple(draw(st.integers(top, top + 3)) for _ in range(levels))
    if wide:
        sizes = (*sizes, (1 << 31) - 1, (1 << 31) - 1, 70_000)
    codes = st.tuples(*(st.integers(0, top - 1) for _ in sizes))
    items = st.integers(-5, 20) if not strings else st.text("aé日\U0001f600", min_size=1, max_size=3)
    pairs = draw(st.lists(st.tuples(items, codes), min_size=1, max_size=40))
    known: dict[tuple[int | str, Sid], Row] = {}
    rows: list[Row] = []
    for item, sid in pairs:
        row = known.get((item, sid))
        if row is None:
            row = Row(
                item,
                sid,
                draw(st.integers(-2, 2)),
                draw(st.integers(0, 3)) > 0,
                {name: draw(st.booleans()) for name in flags},
            )
            known[item, sid] = row
        rows.append(row)
    if not any(row.servable for row in rows):
        rows[0].servable = True
    return rows, sizes
