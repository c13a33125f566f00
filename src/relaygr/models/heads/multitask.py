"""Multi-task head: user row times item vector, then a small network to the tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaygr.kernels.interface import Kernel
from relaygr.models.config import RankerConfig
from relaygr.models.dense import Dense, Norm, SwishNormStack
from relaygr.models.heads.interface import Head, at_least_float32
from relaygr.models.row import RowInput

_HOUR_S, _DAY_S = 3600, 86_400
_CLOCK = ((_HOUR_S, 24), (_DAY_S, 7))
_TWO_PI = 2 * 3.14  # as the published head has it


class MultiTaskHead(Head):
    """post(user row) * LN(stack(item)), then a stack to the tasks; task order is the configuration's.

    Args:
        item_size: width of the items.
        post: "norm" is a layer norm, "time_norm" combines the row with the clock at query time first, "l2"
            divides by the length.
    """

    def __init__(self, config: RankerConfig, item_size: int, post: str = "norm") -> None:
        super().__init__()
        size, width = config.hidden_size, config.head_size
        self.post = post
        self.post_norm = Norm(size, 1e-5) if post in ("norm", "time_norm") else None
        self.combine = Dense(size + 2 * len(_CLOCK), size) if post == "time_norm" else None
        self.item = SwishNormStack(item_size, width, size)
        self.item_norm = Norm(size, 1e-5)
        self.predict = SwishNormStack(size, width, len(config.tasks))

    def forward(
        self, rows: Tensor, items: Tensor, where: Tensor | None, inputs: Sequence[RowInput], kernel: Kernel
    ) -> Tensor:
        item = self.item_norm(self.item(items, kernel))
        item = item if where is None else item[where]
        logits: Tensor = self.predict(self._post(rows, inputs, kernel) * item, kernel)
        return at_least_float32(logits)

    def _post(self, rows: Tensor, inputs: Sequence[RowInput], kernel: Kernel) -> Tensor:
        if self.post == "l2":
            return unit_length(rows)
        if self.combine is not None:
            times = [torch.as_tensor(row.query_time).expand(len(row.candidates)) for row in inputs]
            clock = clock_angles(torch.cat(times)).to(rows.dtype)
            rows = self.combine(torch.cat([rows, clock], dim=-1), kernel).to(rows.dtype)
        normed: Tensor = rows if self.post_norm is None else self.post_norm(rows)
        return normed


def unit_length(rows: Tensor) -> Tensor:
    """Rows divided by their lengths, or by 1e-6 if that is more."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / length.clamp(min=1e-6)


def clock_angles(timestamps: Tensor) -> Tensor:
    """Cosine and sine of hour of day and day of week, int64 [n] -> float64 [n, 4].

    Whole units are counted in float32, as the published head does: within some 64 s of a full hour that is
    the hour beside it.
    """
    parts = []
    for unit, period in _CLOCK:
        units = torch.div(timestamps.float(), float(unit), rounding_mode="floor")
        angle = torch.remainder(units, float(period)).double() / period * _TWO_PI
        parts += [angle.cos(), angle.sin()]
    return torch.stack(parts, dim=-1)
