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
        self, inputs: Tensor, standard: Tensor, cosine: Tensor, same: Tensor, there: Tensor, length: int
    ) -> list[Tensor]:
        """Scores [N, m] of candidates after the blocks and after each pass; -inf where there is none.

        Args:
            inputs: [N, m, P]; standard: [N, m]; cosine: [N, m, m]; there: bool [N, m].
            same: bool [N, attributes, m, m], which candidates have equal values.
            length: L.
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
        found = [scores.masked_fill(~there, -torch.inf)]
        for number in range(self.config.passes):
            prefix = f"passes.{number}."
            context = self.context(found[-1].detach(), cosine, same, length)
            hidden = torch.cat([h, context], 2) @ self.of(f"{prefix}hidden.weight").T
            units = torch.tanh(hidden + self.of(f"{prefix}hidden.bias"))
            scores = self.of(f"{prefix}base") * standard + (units @ self.of(f"{prefix}out.weight").T)[..., 0]
            found.append(scores.masked_fill(~there, -torch.inf))
        return found

    def context(self, scores: Tensor, cosine: Tensor, same: Tensor, length: int) -> Tensor:
        """As `OneShot.context`, of many requests. [N, m, Q]"""
        m, window = scores.shape[1], self.config.window
        order = torch.argsort(-scores, dim=1, stable=True)
        places = torch.arange(m)
        ends = places.clamp_max(length)
        listed = order[:, :length]
        distance = ends[:, None] - places[:length]
        n = torch.arange(len(scores))[:, None, None]
        columns = [(ends / length).expand(len(scores), m)]
        if self.config.similarity:
            near = (distance > 0) & (distance <= window)
            looked = cosine[n, order[:, :, None], listed[:, None]]
            count = ends.clamp_max(window)
            largest = looked.masked_fill(~near, -torch.inf).amax(2)
            columns.append(torch.where(count > 0, largest, torch.zeros_like(largest)))
            columns.append((looked * near).sum(2) / count.clamp_min(1))
        for at in range(same.shape[1]):
            equal = same[:, at][n, order[:, :, None], listed[:, None]] & (distance > 0)
            columns.append(torch.log1p(equal.sum(2)))
            columns.append((equal / distance.clamp_min(1)).amax(2))
        ordered = torch.stack(columns, 2).to(scores.dtype)
        back = torch.argsort(order, 1)
        return ordered.gather(1, back[..., None].expand_as(ordered))

    def model(self) -> OneShot:
        """The arrays as they are now, as serving reads them."""
        return OneShot(self.config, self.arrays())


def list_likelihood(scores: Tensor, lists: Tensor) -> Tensor:
    """Log-likelihood of lists under Plackett-Luce: each pick by softmax over what is left.

    Args:
        scores: [N, m]; lists: int64 [N, G, L], columns.

    Returns:
        [N, G].
    """
    N, G, L = lists.shape
    wide = scores[:, None].expand(N, G, scores.shape[1])
    picked = wide.gather(2, lists)  # [N, G, L]
    total = torch.zeros(N, G, dtype=scores.dtype)
    left = wide
    for t in range(L):
        total = total + picked[..., t] - left.logsumexp(2)
        left = left.scatter(2, lists[..., t : t + 1], -torch.inf)
    return total
