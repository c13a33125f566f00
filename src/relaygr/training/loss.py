"""The loss: each positive against its cut's negatives on the first task, and every task's bit by itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.training.batch import Batch

BCE_WEIGHT = 0.1  # the bits keep logits readable as probabilities; order comes from the softmax


def ranking_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Scalar loss of a batch.

    Args:
        logits: [candidates, tasks] of all rows of the batch, in order.
    """
    return contrast(logits[:, 0], batch) + BCE_WEIGHT * bits(logits, batch)


def contrast(scores: Tensor, batch: Batch) -> Tensor:
    """Softmax cross-entropy of each positive among itself and the usable negatives of its cut; per cut."""
    negatives = scores[batch.negative].masked_fill(~batch.usable, float("-inf"))  # [cuts, N]
    rest = torch.logsumexp(negatives, dim=1)[batch.cut]  # [p]
    losses = F.softplus(rest - scores[batch.positive])
    return (losses * batch.weight).sum() / batch.weight.sum()


def bits(logits: Tensor, batch: Batch) -> Tensor:
    """Binary cross-entropy of every task: a positive's action bits, 0 for negatives; kinds weigh the same.

    Without the balance the loss would be about the number of negatives, which is arbitrary.
    """
    tasks = torch.arange(logits.shape[1])
    wanted = ((batch.actions[:, None] >> tasks) & 1).to(logits.dtype)
    own = F.binary_cross_entropy_with_logits(logits[batch.positive], wanted)
    others = logits[batch.negative[batch.usable]]
    return own + F.binary_cross_entropy_with_logits(others, torch.zeros_like(others))
