"""Where each beam's ancestors lie: a fork rewrites this index and moves no keys or values."""

from __future__ import annotations

import torch
from torch import Tensor


class Ancestors:
    """The ancestor index of one request.

    Row b of the index names, per depth, the slot that holds the K/V of beam b's ancestor; several beams may
    name one slot. Two buffers take turns, so a fork allocates nothing.

    Changes: `fork` goes one depth deeper. What it returns is a view that stays valid until the next but one.
    Raises: ValueError for parents that are no beams, for more beams than the width, or a fork too many.

    Args:
        rounds: T, how many codes are fed at most.
        width: most beams of a round.
    """

    def __init__(self, rounds: int, width: int) -> None:
        if rounds < 1 or width < 1:
            raise ValueError(f"rounds: {rounds}, width: {width} must be at least 1")
        self.rounds, self.width = rounds, width
        self._buffers = [torch.zeros(width, rounds, dtype=torch.int32) for _ in range(2)]
        self._own = torch.arange(width, dtype=torch.int32)
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
        """Bytes of an index of this size: 4 a beam and round. The second buffer is scratch."""
        return self._buffers[0].nbytes

    @property
    def index(self) -> Tensor:
        """int32 [beams, depth]: column d - 1 is the slot at depth d."""
        return self._buffers[0][: self._beams if self._depth else 0, : self._depth]

    def fork(self, parents: Tensor) -> Tensor:
        """Continue with new beams, new beam b from old beam parents[b]; the first fork is from the root, 0.

        Args:
            parents: int64 [W'], W' <= width, in the new beams' order; any map, repeated parents included.

        Returns:
            The new index int32 [W', depth]; its last column is each beam's own slot, to be written when its
            code is fed.
        """
        if self._depth == self.rounds:
            raise ValueError(f"fork: all {self.rounds} rounds are used")
        count = parents.shape[0]
        if parents.dim() != 1 or count > self.width:
            raise ValueError(f"parents: {tuple(parents.shape)} must be [at most {self.width}]")
        if count and not 0 <= int(parents.min()) <= int(parents.max()) < self._beams:
            raise ValueError(f"parents: must be in [0, {self._beams})")
        old, new = self._buffers
        if self._depth and count:
            new[:count, : self._depth] = old[: self._beams, : self._depth].index_select(0, parents)
        new[:count, self._depth] = self._own[:count]
        self._buffers = [new, old]
        self._beams, self._depth = count, self._depth + 1
        return self.index
