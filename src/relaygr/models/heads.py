"""Multi-task heads: candidate rows and item tokens -> one logit a task (`hstu.md` section 8)."""

from __future__ import annotations

from torch import Tensor, nn

from relaygr.kernels.interface import Kernel
from relaygr.models.config import HstuConfig
from relaygr.models.dense import Norm, SwishNormStack

HEAD_WIDTH = 512


class MultiTaskHead(nn.Module):
    """LN(user row) * LN(stack(item token)), then a stack to the tasks; task order is the configuration's."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.post_norm = Norm(config.hidden_size, 1e-5)
        self.item = SwishNormStack(config.hidden_size, HEAD_WIDTH, config.hidden_size)
        self.item_norm = Norm(config.hidden_size, 1e-5)
        self.predict = SwishNormStack(config.hidden_size, HEAD_WIDTH, len(config.tasks))

    def forward(
        self, rows: Tensor, item_tokens: Tensor, kernel: Kernel, where: Tensor | None = None
    ) -> Tensor:
        """rows [m, D], item_tokens [m, D] -> logits [m, tasks], at least float32.

        Args:
            where: int64 [m], which of the item tokens [i, D] is each row's; None for one a row.
        """
        item = self.item_norm(self.item(item_tokens, kernel))
        item = item if where is None else item[where]
        logits: Tensor = self.predict(self.post_norm(rows) * item, kernel)
        return logits if logits.dtype.itemsize >= 4 else logits.float()
