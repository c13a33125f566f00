"""What a round can select from: children, filters and where their logits will stand.

All of it depends only on the nodes the round before selected, so that it is done on a worker thread while the
forward computes the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relaygr.generation.catalogue.errors import FilterError
from relaygr.generation.catalogue.filters import Filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.columns import HeadColumns, HeadPlan
from relaygr.generation.normalise import Normalization

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The candidates of one round, ordered by (parent rank, code).

    Attributes:
        level: of the candidates.
        nodes: int64 [n].
        codes: [n].
        starts: int64 [W + 1]; candidates of parent b are starts[b] .. starts[b + 1] - 1.
        head: the columns of the head this round needs.
        gather: int64 [n]; where in the flattened [W, columns] logits each candidate's logit stands.
    """

    level: int
    nodes: Int64s
    codes: npt.NDArray[np.integer]
    starts: Int64s
    head: HeadColumns
    gather: Int64s


def prepare(
    index: CatalogueIndex,
    level: int,
    parents: Int64s,
    plan: HeadPlan,
    normalization: Normalization,
    items: Filter | None = None,
) -> Pool:
    """The pool of round `level` under `parents`, nodes of the level above in score order. [W]

    Raises:
        FilterError: the filter gave no mask, or one that leaves a beam nothing although it let it live.
    """
    first, last = index.children(level, parents)
    counts = last - first
    nodes, starts = spread(first, counts)
    if items is not None and not items.everything:
        alive = check_mask(items.alive(level, nodes), nodes.shape, f"of level {level}")
        owners = np.repeat(np.arange(len(parents)), counts)
        nodes, owners = nodes[alive], owners[alive]
        counts = np.bincount(owners, minlength=len(parents))
        starts = offsets(counts)
    # The root alone may be left without children: then no item passes the filters.
    if level > 1 and len(counts) and counts.min() == 0:
        raise FilterError(
            f"level {level}: no child of beam {int(counts.argmin())} passes, though the beam did"
        )
    codes = index.codes[level - 1][nodes]
    head = plan.of(level, normalization, codes)
    gather = np.repeat(np.arange(len(parents)) * head.width, counts)
    gather += codes if head.place is None else head.place[codes]
    return Pool(level, nodes, codes, starts, head, gather)


def spread(first: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Ranges of `counts` numbers from each of `first` on, one behind the other, and `offsets(counts)`."""
    starts = offsets(counts)
    numbers: Int64s = np.repeat(first - starts[:-1], counts)
    numbers += np.arange(len(numbers))
    return numbers, starts


def offsets(counts: Int64s) -> Int64s:
    """Where each of consecutive stretches begins, and where the last ends. [n + 1]"""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def check_mask(mask: object, shape: tuple[int, ...], what: str) -> Bools:
    """`mask` if it is one.

    Raises:
        FilterError: it is not bool or not of `shape`; `what` says whose it should be.
    """
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == shape:
        return mask
    got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
    raise FilterError(f"the mask {what} is {got}, expected bool {shape}")
