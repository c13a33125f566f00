"""Scores of chosen tokens, in fp32 whatever the dtype of the matrices.

A product rounded to bf16 leaves two to three digits of a score, so that many of a wide level's codes tie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.kernels.linear import choose_linear

_KEPT_PARTS = 8  # column ranges with a wide copy; one for each level of an item's code


class ColumnScores:
    """Products with some rows of an output matrix [V, D].

    Changes: keeps wide copies of the ranges asked for last, of a matrix narrower than fp32, until the matrix
    changes.
    """

    def __init__(self) -> None:
        self._wide: dict[tuple[int, int], tuple[Tensor, int, Tensor]] = {}

    def __call__(self, matrix: Tensor, hidden: Tensor, columns: slice | Tensor | None) -> Tensor:
        """hidden [n, D] -> float32 [n, columns]."""
        if isinstance(columns, Tensor):
            part = _wide(matrix.index_select(0, columns))
        else:
            start, stop, step = (columns or slice(None)).indices(len(matrix))
            if step != 1:
                raise ValueError(f"columns: step {step} of a slice must be 1")
            part = self._range(matrix, start, stop)
        linear = choose_linear(part.dtype, part.device.type).linear
        return linear(hidden.to(part.dtype), part, None).float()

    def _range(self, matrix: Tensor, start: int, stop: int) -> Tensor:
        if matrix.dtype in (torch.float32, torch.float64):
            return matrix[start:stop]
        version = 0 if matrix.is_inference() else matrix._version
        kept = self._wide.pop((start, stop), None)
        if kept is None or kept[0].data_ptr() != matrix.data_ptr() or kept[1] != version:
            # The narrow alias keeps its memory from being reused under the same address.
            kept = matrix.detach(), version, _wide(matrix[start:stop])
        self._wide[start, stop] = kept
        for oldest in list(self._wide)[:-_KEPT_PARTS]:
            self._wide.pop(oldest, None)
        return kept[2]


def _wide(part: Tensor) -> Tensor:
    return part if part.dtype == torch.float64 else part.float()
