"""Where each beam's ancestors lie: a fork rewrites this index and moves no keys or values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Ancestors:
    """The ancestor index of one request.

    Row b of the index names, per depth, the slot that holds the K/V of beam b's ancestor; several beams may
    name one slot. Slots count from 0 in each depth. Two buffers take turns, so a fork allocates nothing.

    Changes: `fork` goes one depth deeper. What it returns is a view that stays valid until the next but one.
    Raises: ValueError for parents that are no beams, for more beams than the width, or a fork too many.

    Args:
        widths: most beams of each depth, that is of each round whose codes are fed.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        if not widths or min(widths) < 1:
            raise ValueError(f"widths: {tuple(widths)} must be one or more numbers of at least 1")
        self._widths = tuple(widths)
        self._buffers = [torch.zeros(max(widths), len(widths), dtype=torch.int32) for _ in range(2)]
        self._own = torch.arange(max(widths), dtype=torch.int32)
        self._beams = 1  # the root, which owns no slot
        self._depth = 0

    @property
    def depth(self) -> int:
        """Depths of the index: forks so far."""
        return self._depth

    @property
    def beams(self) -> int:
        return self._beams

    @property
    def nbytes(self) -> int:
        """Of the index: 4 a round and beam of the widest. The second buffer is scratch."""
        return self._buffers[0].nbytes

    @property
    def index(self) -> Tensor:
        """int32 [beams, depth]: column d - 1 is the slot at depth d."""
        return self._buffers[0][: self._beams if self._depth else 0, : self._depth]

    def fork(self, parents: Tensor) -> Tensor:
        """Continue with new beams, new beam b from old beam parents[b]; the first fork is from the root, 0.

        Args:
            parents: int64 [W'], W' at most the depth's width, in the new beams' order; any map, repeated
                parents included.

        Returns:
            The new index int32 [W', depth]; its last column is each beam's own slot, to be written when its
            code is fed.
        """
        if self._depth == len(self._widths):
            raise ValueError(f"fork: all {self._depth} rounds are used")
        count, most = parents.shape[0], self._widths[self._depth]
        if parents.dim() != 1 or count > most:
            raise ValueError(f"parents: {tuple(parents.shape)} must be [at most {most}]")
        if count and not 0 <= int(parents.min()) <= int(parents.max()) < self._beams:
            raise ValueError(f"parents: must be in [0, {self._beams})")
        old, new = self._buffers
        if self._depth and count:
            new[:count, : self._depth] = old[: self._beams, : self._depth].index_select(0, parents)
        new[:count, self._depth] = self._own[:count]
        self._buffers = [new, old]
        self._beams, self._depth = count, self._depth + 1
        return self.index
