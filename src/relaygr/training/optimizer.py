"""Two optimisers: AdamW for the dense weights, row-wise Adagrad for the item table, and their schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relaygr.models.ranker import Ranker
from relaygr.models.tokens.relay import RelayTokens


class RowwiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator a row, for sparse gradients: rows that no event touched never move.

    Source: the per-row mean of squares of TensorFlow and TorchRec embedding optimisers
    (Duchi, Hazan, Singer 2011, with a shared step size per row).
    """

    def __init__(self, params: list[Tensor], lr: float, eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, table.grad.coalesce(), group["lr"], group["eps"])

    def _update(self, table: Tensor, grad: Tensor, lr: float, eps: float) -> None:
        state = self.state[table]
        if not state:
            state["sum"] = torch.zeros(table.shape[0])
        rows, values = grad.indices()[0], grad.values()
        state["sum"].index_add_(0, rows, values.square().mean(dim=1))
        scale = lr / (state["sum"][rows].sqrt() + eps)
        table.index_add_(0, rows, values * -scale[:, None])


class Optimizers:
    """Both optimisers as one; `model`'s item table gives sparse gradients from now on."""

    def __init__(self, model: Ranker, lr: float, table_lr: float, weight_decay: float) -> None:
        assert isinstance(model.tokens, RelayTokens)
        table = model.tokens.item.table
        table.sparse = True
        dense = [p for p in model.parameters() if p is not table.weight]
        # Only true matrices are pulled to zero: norms, biases, positions and times are not.
        matrices = {id(m.weight) for m in model.modules() if hasattr(m, "cast") and m is not model}
        self._dense = dense
        self._adam = torch.optim.AdamW(
            [
                {"params": [p for p in dense if id(p) in matrices], "weight_decay": weight_decay},
                {"params": [p for p in dense if id(p) not in matrices], "weight_decay": 0.0},
            ],
            lr=lr,
            betas=(0.9, 0.98),
        )
        self._table = RowwiseAdagrad([table.weight], table_lr)
        self._lr, self._table_lr = lr, table_lr

    def step(self, share: float, clip_norm: float) -> float:
        """One update at `share` of both learning rates; returns the dense gradient's norm before clipping.

        The table is not clipped: its step size is already relative to its own gradients.
        """
        norm = torch.nn.utils.clip_grad_norm_(self._dense, clip_norm)
        for group in self._adam.param_groups:
            group["lr"] = self._lr * share
        for group in self._table.param_groups:
            group["lr"] = self._table_lr * share
        self._adam.step()
        self._table.step()
        self._adam.zero_grad(set_to_none=True)
        self._table.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        return {"dense": self._adam.state_dict(), "table": self._table.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["dense"])
        self._table.load_state_dict(state["table"])


def lr_share(step: int, warmup_steps: int, done: float) -> float:
    """Share of the learning rate: linear over the first steps, then a cosine to 0 as `done` goes to 1."""
    warm = min((step + 1) / max(warmup_steps, 1), 1.0)
    return warm * 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))
