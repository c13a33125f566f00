"""Head of the `nvidia` variant: the candidate's row at unit length, through a ReLU network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from relaygr.kernels.interface import Kernel
from relaygr.models.dense import ReluStack
from relaygr.models.heads.interface import Head, at_least_float32
from relaygr.models.heads.multitask import unit_length
from relaygr.models.hstu import HstuConfig
from relaygr.models.row import RowInput


class MlpHead(Head):
    """The item enters through its row only."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        sizes = (config.hidden_size, *config.head_sizes, len(config.tasks))
        self.predict = ReluStack(*sizes, last=config.relu_last)

    def forward(
        self, rows: Tensor, items: Tensor, where: Tensor | None, inputs: Sequence[RowInput], kernel: Kernel
    ) -> Tensor:
        logits: Tensor = self.predict(unit_length(rows), kernel)
        return at_least_float32(logits)
