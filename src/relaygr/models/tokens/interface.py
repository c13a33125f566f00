"""What a ranker asks of its tokens: rows of history and of candidates, and which ids it knows."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relaygr.core.errors import RequestError
from relaygr.kernels.interface import Kernel
from relaygr.models.row import RowInput

Int64 = npt.NDArray[np.int64]


class Tokens(nn.Module, ABC):
    """Turns ids and times into rows [n, D] of the residual stream, float32 (float64 when the model is)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the rows."""

    @abstractmethod
    def items(self, ids: Tensor, kernel: Kernel) -> Tensor:
        """What candidates of one item share, and what the head reads: int64 [i] -> [i, any]."""

    @abstractmethod
    def history(self, row: RowInput, kernel: Kernel) -> Tensor:
        """Rows of the history tokens from `row.cached` on, [new, D]."""

    @abstractmethod
    def targets(self, row: RowInput, items: Tensor, kernel: Kernel) -> Tensor:
        """Rows that the head reads, [m, D], from the candidates' `items` [m, any]."""

    def check(self, contextual: Int64, items: Int64, actions: Int64, candidates: Int64) -> int:
        """How many of a request's ids the model does not know.

        Raises:
            RequestError: an id is not known and the model wants such requests refused.
        """
        unknown = self.check_slots(contextual) + self.check_events(items, actions)
        return unknown + self.check_items("candidates", candidates)

    def check_slots(self, contextual: Int64) -> int:
        """`check` of profile values."""
        return 0

    @abstractmethod
    def check_events(self, items: Int64, actions: Int64) -> int:
        """`check` of events."""

    def check_items(self, field: str, items: Int64) -> int:
        """`check` of items alone."""
        return 0


def check_bits(actions: Int64, bits: int) -> None:
    """Refuse actions with bits that have no name."""
    if len(actions) and int(actions.max()) >= 1 << bits:
        raise RequestError("actions", f"{int(actions.max())} has bits above the model's {bits}")
