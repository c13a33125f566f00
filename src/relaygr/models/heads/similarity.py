"""Head of the `meta_research` variant: cosine between the user's row and an item's vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaygr.kernels.interface import Kernel
from relaygr.models.heads.interface import Head, at_least_float32
from relaygr.models.heads.multitask import unit_length
from relaygr.models.row import RowInput


class SimilarityHead(Head):
    """One row a request; a user without events has none, and every candidate scores 0."""

    def forward(
        self, rows: Tensor, items: Tensor, where: Tensor | None, inputs: Sequence[RowInput], kernel: Kernel
    ) -> Tensor:
        vectors = unit_length(items if where is None else items[where]).to(rows.dtype)
        users = unit_length(rows)
        logits, first, target = [], 0, 0
        for row in inputs:
            mine = vectors[first : first + len(row.candidates)]
            first += len(row.candidates)
            if not len(row.items) or not len(mine):
                logits.append(mine.new_zeros(len(mine)))
                continue
            # A sum over a fixed axis: its order does not depend on how many candidates there are.
            logits.append((mine * users[target]).sum(-1))
            target += 1
        return at_least_float32(torch.cat(logits)[:, None])
