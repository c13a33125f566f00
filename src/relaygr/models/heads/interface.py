"""What a ranker asks of its head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from relaygr.kernels.interface import Kernel
from relaygr.models.row import RowInput


class Head(nn.Module, ABC):
    """Target rows and items -> logits."""

    @abstractmethod
    def forward(
        self, rows: Tensor, items: Tensor, where: Tensor | None, inputs: Sequence[RowInput], kernel: Kernel
    ) -> Tensor:
        """Logits [m, tasks] of all candidates of a batch, at least float32.

        Args:
            rows: target rows of all requests, [targets, D].
            items: what the tokens know of candidate items, [i, any].
            where: int64 [m], which of the items each candidate is; None for one a candidate.
        """


def at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype.itemsize >= 4 else logits.float()
