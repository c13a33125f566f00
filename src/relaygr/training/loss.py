"""The loss: each positive against its cut's negatives on the first task, and every task's bit by itself.

Negatives come from a mix that favours popular and recent items. Both terms subtract the log of how often
an item is drawn, so that a logit estimates the log probability of an item, not its ratio to the sampler.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.training.batch import Batch

BITS_WEIGHT = 0.1  # order comes from the softmax; the bits keep the level of the logits


def ranking_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Scalar loss per cut.

    Args:
        logits: [candidates, tasks] of all rows of the batch, in order.
    """
    corrected = logits - batch.log_expected[:, None]
    return contrast(corrected[:, 0], batch) + BITS_WEIGHT * bits(corrected, batch)


def contrast(scores: Tensor, batch: Batch) -> Tensor:
    """Softmax cross-entropy of each positive among itself and the usable negatives of its cut."""
    negatives = scores[batch.negative].masked_fill(~batch.usable, float("-inf"))  # [cuts, N]
    rest = torch.logsumexp(negatives, dim=1)[batch.cut]  # [p]
    losses = F.softplus(rest - scores[batch.positive])
    return (losses * batch.weight).sum() / batch.weight.sum()


def bits(scores: Tensor, batch: Batch) -> Tensor:
    """Binary cross-entropy of every task: a positive's action bits, 0 for negatives; mean over tasks."""
    tasks = torch.arange(scores.shape[1])
    wanted = ((batch.actions[:, None] >> tasks) & 1).to(scores.dtype)
    own = F.binary_cross_entropy_with_logits(scores[batch.positive], wanted, reduction="none")
    others = F.softplus(scores[batch.negative[batch.usable]])
    return ((own * batch.weight[:, None]).sum() + others.sum()) / (batch.weight.sum() * len(tasks))
