"""The scorer of `one_shot` in torch, with the arrays and the formulas of `listwise.generators.one_shot`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relaygr.listwise.generators.one_shot import OneShot
from relaygr.training.slate.array_module import ArrayModule


class OneShotNet(ArrayModule):
    """Scores of the candidates of many requests at once.

    Args:
        start: the arrays to begin with.
    """

    def __init__(self, start: OneShot) -> None:
        super().__init__(start.tensors)
        self.config = start.config

    def forward(
        self, inputs: Tensor, standard: Tensor, cosine: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores [N, m] of candidates, -inf where there is none, and repulsions [N, 1 + attributes, m].

        Args:
            inputs: [N, m, P]; standard: [N, m]; cosine: [N, m, m]; there: bool [N, m].
        """
        better = torch.ones_like(cosine[0]).tril(-1)
        h = torch.tanh(inputs @ self.of("in.weight").T + self.of("in.bias"))
        for block in range(self.config.blocks):
            prefix = f"blocks.{block}."
            q, k, v = (h @ self.of(f"{prefix}{name}.weight").T for name in "qkv")
            logits = q @ k.transpose(1, 2) / math.sqrt(self.config.width)
            if self.config.similarity:
                logits = logits + self.of(f"{prefix}cosine") * cosine
            logits = logits + self.of(f"{prefix}better") * better
            weights = logits.masked_fill(~there[:, None], -torch.inf).softmax(2)
            h = h + (weights @ v) @ self.of(f"{prefix}o.weight").T
            up = torch.tanh(h @ self.of(f"{prefix}up.weight").T + self.of(f"{prefix}up.bias"))
            h = h + up @ self.of(f"{prefix}down.weight").T
        scores = self.of("base") * standard + (h @ self.of("out.weight").T)[..., 0]
        repulsion = h @ self.of("repel.weight").T + self.of("repel.bias")
        return scores.masked_fill(~there, -torch.inf), repulsion.transpose(1, 2)

    def model(self) -> OneShot:
        """The arrays as they are now, as serving reads them."""
        return OneShot(self.config, self.arrays())


def list_likelihood(
    scores: Tensor, repulsion: Tensor, cosine: Tensor, same: Tensor, lists: Tensor, window: int
) -> Tensor:
    """Log-likelihood of lists under Plackett-Luce: each pick by softmax over what is left of the scores.

    Args:
        scores: [N, m]; repulsion: [N, 1 + A, m]; cosine: [N, m, m].
        same: bool [N, A, m, m], equal values of each attribute.
        lists: int64 [N, G, L], columns.

    Returns:
        [N, G].
    """
    n = torch.arange(len(lists))[:, None, None]
    L = lists.shape[2]
    left = scores[:, None, None]  # [N, G, L, m] from here on
    rows = cosine[n, lists].clamp_min(0.0)
    near = torch.zeros_like(rows)
    for back in range(1, min(window, L - 1) + 1):
        near[:, :, back:] = torch.maximum(near[:, :, back:], rows[:, :, :-back])
    left = left - repulsion[:, 0][:, None, None] * near
    for at in range(same.shape[1]):
        equal = same[:, at][n, lists].to(scores.dtype)
        left = left - repulsion[:, 1 + at][:, None, None] * (equal.cumsum(2) - equal)
    picked = left.gather(3, lists[..., None])[..., 0]  # [N, G, L]
    used = torch.zeros_like(near).scatter(3, lists[..., None], 1.0)
    before = (used.cumsum(2) - used) > 0
    return (picked - left.masked_fill(before, -torch.inf).logsumexp(3)).sum(2)
