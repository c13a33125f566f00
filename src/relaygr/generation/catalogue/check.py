"""Whether arrays that came from a file are an index at all: a wrong pointer would answer with wrong items."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from relaygr.generation.catalogue.index import CatalogueIndex, Int32s, Int64s
from relaygr.generation.catalogue.names import Names


def find_fault(index: CatalogueIndex) -> str | None:
    """The first thing that is wrong with `index`, None for a sound one. Shapes and types are right."""
    return next(_faults(index), None)


def _faults(index: CatalogueIndex) -> Iterator[str]:
    for level, size in enumerate(index.sizes, start=1):
        codes, ptr = index.codes[level - 1], index.ptr[level - 1]
        yield from _ranges(f"ptr_{level}", ptr, len(codes))
        if int(codes.max()) >= size or int(codes.min()) < 0:
            yield f"codes_{level}: {int(codes.max())}, limit {size - 1}"
        rising = codes[1:] > codes[:-1]
        # Codes may fall only where the next parent's children begin.
        rising[ptr[1:-1] - 1] = True
        if not rising.all():
            yield f"codes_{level}: not ascending at node {int(np.argmin(rising)) + 1}"
    yield from _ranges("item_ptr", index.item_ptr, index.n_items)
    yield from _permutation(index)
    hidden = index.hidden_items
    if bool((hidden[1:] < hidden[:-1]).any()):
        yield "hidden_items: not ascending"
    wrong = (index.hidden_codes < 0) | (index.hidden_codes >= np.array(index.sizes))
    if bool(wrong.any()):
        yield f"hidden_codes: out of range at row {int(np.argmax(wrong.any(axis=1)))}"
    if index.names is not None:
        yield from _strings(index.names, (index.by_id, hidden))


def _ranges(name: str, starts: Int32s, end: int) -> Iterator[str]:
    """Starts of consecutive ranges that are none of them empty and together all of 0 .. end."""
    if starts[0] != 0 or starts[-1] != end:
        yield f"{name}: from {starts[0]} to {starts[-1]}, expected 0 to {end}"
    elif bool((starts[1:] <= starts[:-1]).any()):
        yield f"{name}: not ascending at {int(np.argmax(starts[1:] <= starts[:-1])) + 1}"


def _permutation(index: CatalogueIndex) -> Iterator[str]:
    if bool((index.by_id[1:] < index.by_id[:-1]).any()):
        yield "by_id: not ascending"
    order = index.order
    if int(order.min()) < 0 or int(order.max()) >= index.n_items:
        yield f"order: {int(order.min())} to {int(order.max())}, limit 0 to {index.n_items - 1}"
        return
    seen = np.zeros(index.n_items, np.bool_)
    seen[order] = True
    if not seen.all():
        yield f"order: position {int(np.argmin(seen))} is missing"
    elif not np.array_equal(index.items[order], index.by_id):
        yield "order: does not lead from by_id to items"


def _strings(names: Names, rows: tuple[Int64s, ...]) -> Iterator[str]:
    offsets = names.offsets
    if offsets[0] != 0 or offsets[-1] != len(names.blob) or bool((offsets[1:] <= offsets[:-1]).any()):
        yield "names_offsets: not ascending from 0 to the end of names_blob"
        return
    for one in rows:
        if len(one) and (int(one.min()) < 0 or int(one.max()) >= len(names)):
            yield f"items: row {int(one.max())} of the strings, limit {len(names) - 1}"
    starts = names.blob[offsets[:-1]]
    try:
        names.blob.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        yield f"names_blob: byte {error.start} is not UTF-8"
    if bool(((starts & 0xC0) == 0x80).any()):
        yield "names_offsets: one is inside a character"
    whole, ends = names.blob.tobytes(), offsets.tolist()
    raws = [whole[low:high] for low, high in pairwise(ends)]
    if not all(map(operator.lt, raws, raws[1:])):
        yield "names: not ascending"
