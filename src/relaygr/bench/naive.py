"""The dense pass a PyTorch user would write first: one n x n score matrix per head, a masked multiply.

It reads the very parameters of an `HstuRanker`, so its scores must equal the kernel's; it is what
`bench rank` compares against.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.layer import HstuLayer
from relaygr.models.ranker import HstuRanker, RowInput
from relaygr.models.tokens import NO_PREDECESSOR, gap_bucket

_PLAIN = ReferenceKernel()  # only its `linear`, which is F.linear


class NaivePass:
    """Scores rows of one size; the mask is built once, outside of any timing.

    Raises:
        ConfigError: the model has profile slots, a window, a score-time bias or last-seen ages, which this
            pass leaves out.
    """

    def __init__(self, model: HstuRanker, history: int, candidates: int) -> None:
        config = model.config
        for name in ("contextual", "window", "score_time_bias", "last_seen"):
            if getattr(config, name):
                raise ConfigError(f"model.{name}", f"{getattr(config, name)!r}: the dense pass has none")
        self._model = model
        self._history = history
        total = history + candidates
        mask = torch.ones(total, total, dtype=torch.bool).tril()
        # A candidate sees the history and itself, no other candidate.
        mask[history:, history:] = torch.eye(candidates, dtype=torch.bool)
        self._mask = mask.to(model.compute_dtype)  # [n, n]

    def __call__(self, row: RowInput) -> Tensor:
        """Logits [m, tasks] of the row's candidates; its store is ignored."""
        item_tokens = self._model.tokens.item(row.candidates, _PLAIN)
        x = self._embed(row, item_tokens)  # [n, D]
        for layer in self._model.layers:
            assert isinstance(layer, HstuLayer)
            x = self._layer(layer, x)
        logits: Tensor = self._model.head(x[self._history :], item_tokens, _PLAIN)
        return logits

    def _embed(self, row: RowInput, item_tokens: Tensor) -> Tensor:
        tokens, times = self._model.tokens, row.timestamps
        offset = torch.tensor([row.utc_offset_s])
        query = torch.as_tensor(row.query_time).reshape(-1)
        first = torch.full((1,), NO_PREDECESSOR)
        gaps = torch.cat([first, gap_bucket(times.diff())])
        positions = torch.arange(self._history)
        events = tokens.events(row.items, row.actions, times, gaps, positions, offset, _PLAIN)
        end = torch.tensor([self._history])
        gap = gap_bucket(query - times[-1])
        return torch.cat([events, tokens.candidates(item_tokens, end, query, gap, None, offset, _PLAIN)])

    def _layer(self, layer: HstuLayer, x: Tensor) -> Tensor:
        spec = self._model.spec
        mixed = layer.uvqk(layer.input_norm(x), _PLAIN)
        sizes = (layer.value_size, layer.value_size, layer.key_size, layer.key_size)
        u, v, q, k = mixed.split(sizes, dim=-1)
        u = F.silu(u)
        q = q.unflatten(-1, (layer.heads, layer.qk_dim)).transpose(0, 1)  # [H, n, A]
        k = k.unflatten(-1, (layer.heads, layer.qk_dim)).transpose(0, 1)
        v = v.unflatten(-1, (layer.heads, layer.v_dim)).transpose(0, 1)  # [H, n, E]
        scores = torch.matmul(q, k.transpose(1, 2)) * spec.alpha  # [H, n, n]
        weights = F.silu(scores) / spec.divisor * self._mask
        attended = torch.matmul(weights, v).transpose(0, 1).flatten(1)  # [n, H * E]
        gated = u * layer.output_norm(attended)
        out: Tensor = x + layer.output(torch.cat([u, attended, gated], dim=-1), _PLAIN)
        return out
