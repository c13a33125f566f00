"""Partial softmax attention on a CPU, with the log-sum-exp that lets parts be merged.

Two routes compute the same; which one serves is measured at start (`kernels.beam_select`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from relaygr.kernels.beams import KeysValues, merge_parts

SCORE_BYTES = 1 << 20  # scores of one tile: half of an L2 of 2 MiB, the rest holds keys and values


class PartRoute(ABC):
    """Attention of a block of queries on one stretch of keys; neither side is changed."""

    name: str

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> KeysValues:
        """q [B, H, n, d]; k, v [B, H, P, d], P >= 1, any strides but the last; scale 1/sqrt(d).

        `causal` hides keys behind a query's own row; then n = P.

        Returns the average [B, H, n, d] and the natural log-sum-exp [B, H, n], both fp32 or wider.
        """


class FlashRoute(PartRoute):
    """torch's fused CPU kernel: tiles of 512 keys, one pass, scores never leave the cache."""

    name = "flash"

    def __init__(self) -> None:
        self._op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    @staticmethod
    def available() -> bool:
        """Whether this build of torch has the kernel and hands out the log-sum-exp."""
        return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> KeysValues:
        out, lse = self._op(q, k, v, 0.0, causal)
        return wide(out), lse


class TiledRoute(PartRoute):
    """Two plain products a tile, tiles merged by their largest score; for builds without the fused kernel.

    Products are fp32 or wider: a bf16 product without hardware for it is many times slower.
    """

    name = "tiled"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> KeysValues:
        queries = wide(q) * q.shape[-1] ** -0.5
        rows, tokens = q.shape[-2], k.shape[-2]
        step = max(SCORE_BYTES // (rows * queries.element_size()), 64)
        total: KeysValues | None = None
        for start in range(0, tokens, step):
            keys, values = (wide(x[..., start : start + step, :]) for x in (k, v))
            scores = queries @ keys.transpose(-1, -2)
            if causal:
                hidden = torch.ones(rows, keys.shape[-2], dtype=torch.bool).triu_(1 - start)
                scores.masked_fill_(hidden, -torch.inf)
            lse = scores.logsumexp(-1)
            # A row that sees nothing of a tile has no largest score to subtract.
            at = lse.masked_fill(lse == -torch.inf, 0.0) if causal else lse
            part = scores.sub_(at[..., None]).exp_() @ values, lse
            total = part if total is None else merge_parts(*total, *part)
        assert total is not None
        return total


def wide(x: Tensor) -> Tensor:
    """At least fp32, for sums."""
    return x if x.dtype == torch.float64 else x.float()
