"""Cross entropy of items' codes, each level among its own codes, as scores are normalised when serving."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.generation.catalogue.tokens import SidTokenMap
from relaygr.models.decoder.decoder import Decoder
from relaygr.training.sid_windows import SidBatch


def sid_loss(model: Decoder, batch: SidBatch, tokens: SidTokenMap) -> Tensor:
    """Weighted mean over the counted items of -log p(item's codes), in nats."""
    hidden = model.hidden(batch.tokens).flatten(0, 1)
    weights = batch.weights / batch.weights.sum().clamp(min=1e-9)
    total = hidden.new_zeros(())
    for level, (places, codes) in enumerate(zip(batch.places, batch.codes, strict=True), start=1):
        columns = tokens.columns(level)
        chosen = columns if isinstance(columns, slice) else torch.from_numpy(columns)
        logits = F.linear(hidden[places], model.head_weight[chosen])
        total = total + (F.cross_entropy(logits, codes, reduction="none") * weights).sum()
    return total
