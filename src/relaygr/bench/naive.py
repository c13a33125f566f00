"""The dense pass a PyTorch user would write first: whole score matrices, a masked multiply.

It reads the very parameters of a `Ranker`, so its scores must equal the kernel's; it is what
`bench rank` compares against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.layers.hstu import HstuLayer
from relaygr.models.ranker import Ranker, RowInput

_PLAIN = ReferenceKernel()


DensePass = Callable[[RowInput], Tensor]


def dense_pass(model: Ranker, history: int, candidates: int) -> DensePass:
    """The dense pass of a model: `NaivePass` for `relay` models, the reference kernel for all others."""
    config = model.config
    if isinstance(config, HstuConfig) and config.variant == "relay":
        return NaivePass(model, history, candidates)
    return lambda row: model([replace(row, store=None, cached=0)], _PLAIN)[0]


class NaivePass:
    """Scores rows of one size; the mask is built once, outside of any timing.

    Raises:
        ConfigError: the model is no HSTU `relay` model, or has profile slots, a window or a score-time bias,
            which this pass leaves out.
    """

    def __init__(self, model: Ranker, history: int, candidates: int) -> None:
        config = model.config
        if not isinstance(config, HstuConfig) or config.variant != "relay":
            raise ConfigError("model.variant", "the dense pass is that of HSTU models of variant 'relay'")
        for name in ("contextual", "window", "score_time_bias"):
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
        tokens = self._model.tokens
        item_tokens = tokens.items(row.candidates, _PLAIN)
        x = torch.cat([tokens.history(row, _PLAIN), tokens.targets(row, item_tokens, _PLAIN)])  # [n, D]
        for layer in self._model.layers:
            assert isinstance(layer, HstuLayer)
            x = self._layer(layer, x)
        logits: Tensor = self._model.head(x[self._history :], item_tokens, None, [row], _PLAIN)
        return logits

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
