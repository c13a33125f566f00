"""Beam rows moved in place, for kernels that need each beam's keys and values in one contiguous row.

Nearly every row moves, so this is a full copy; the ancestor index (`generation.ancestors`) moves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StorageOrder:
    """Survivors as they are stored: by parent row, not by score.

    Attributes:
        parents: int64 [W'], non-decreasing; the old row that storage row i continues.
        ranks: int64 [W'], the score rank of storage row i, for ties and for results.
    """

    parents: Tensor
    ranks: Tensor


def storage_order(parents: Tensor) -> StorageOrder:
    """Order survivors, given in score order with their parents' storage rows, so that rows move in place."""
    ranks = torch.argsort(parents, stable=True)
    return StorageOrder(parents[ranks], ranks)


def compact(rows: Tensor, parents: Sequence[int]) -> int:
    """Make row i what row parents[i] was, in place and without scratch memory.

    First the rows that come from above, upwards, then those from below, downwards. A row that the first pass
    overwrites is needed by no later one: p(r) > r and n > r give p(n) >= p(r) > r.

    Args:
        rows: [R, ...], beam-major; R at least both the old and the new number of beams.
        parents: non-decreasing old rows, one a new row.

    Returns:
        Bytes moved.

    Raises:
        ValueError: a map that is not monotone, or rows that are not there. Nothing was moved then.
    """
    count = len(parents)
    if count > rows.shape[0]:
        raise ValueError(f"parents: {count} new rows in a buffer of {rows.shape[0]}")
    for i in range(1, count):
        if parents[i] < parents[i - 1]:
            raise ValueError(
                f"parents: row {i} comes from {parents[i]}, the one before from {parents[i - 1]}"
            )
    if count and (parents[0] < 0 or parents[-1] >= rows.shape[0]):
        raise ValueError(f"parents: {parents[0]}..{parents[-1]} must be in [0, {rows.shape[0]})")
    moved = 0
    for new in range(count):
        if parents[new] > new:
            rows[new].copy_(rows[parents[new]])
            moved += 1
    for new in reversed(range(count)):
        if parents[new] < new:
            rows[new].copy_(rows[parents[new]])
            moved += 1
    return moved * rows[0].nbytes if moved else 0
