"""Negative log-likelihoods of what a head says, shared by everything that learns from logged lists."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bernoulli(logits: Tensor, labels: Tensor) -> Tensor:
    """Of labels 0 or 1, by logits."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def exponential(logs: Tensor, labels: Tensor) -> Tensor:
    """Of quantities from 0 on, by logarithms of means."""
    return logs + labels * torch.exp(-logs)
