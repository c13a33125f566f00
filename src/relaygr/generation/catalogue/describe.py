"""What a catalogue looks like: counts, out-degrees, bytes."""

from __future__ import annotations

import msgspec
import numpy as np

from relaygr.generation.catalogue.index import CatalogueIndex


class LevelShape(msgspec.Struct, frozen=True, kw_only=True):
    """One level: its size V_l, distinct codes in use, nodes n_l, and children of a node above."""

    size: int
    used: int
    nodes: int
    mean_children: float
    p99_children: float
    max_children: int


class CatalogueShape(msgspec.Struct, frozen=True, kw_only=True):
    """The whole; bytes of the tree are without items, `nbytes` is everything.

    Attributes:
        sids: distinct semantic ids; shared_sids: those of several items; max_items: the most items of one.
        items: positions; hidden: items that only have codes.
        flags: how many positions pass each.
    """

    levels: tuple[LevelShape, ...]
    sids: int
    shared_sids: int
    max_items: int
    items: int
    hidden: int
    strings: bool
    flags: dict[str, int]
    tree_bytes: int
    bytes_per_sid: float
    nbytes: int


def describe_index(index: CatalogueIndex) -> CatalogueShape:
    """Count `index`."""
    levels: list[LevelShape] = []
    for size, codes, ptr in zip(index.sizes, index.codes, index.ptr, strict=True):
        children = np.diff(ptr)
        levels.append(
            LevelShape(
                size=size,
                used=len(np.unique(codes)),
                nodes=len(codes),
                mean_children=float(children.mean()),
                p99_children=float(np.quantile(children, 0.99)),
                max_children=int(children.max()),
            )
        )
    items = np.diff(index.item_ptr)
    return CatalogueShape(
        levels=tuple(levels),
        sids=index.n_sids,
        shared_sids=int((items > 1).sum()),
        max_items=int(items.max()),
        items=index.n_items,
        hidden=len(index.hidden_items),
        strings=index.names is not None,
        flags={name: int(index.flag(name).sum()) for name in sorted(index.flags)},
        tree_bytes=index.trie_nbytes,
        bytes_per_sid=index.bytes_per_sid,
        nbytes=index.nbytes,
    )
