"""The decoder: prompts to keys and values, beams one code further, and an autograd pass over whole rows.

While serving on a CPU every request is computed by itself: the bits of a product's row depend on how many
rows there are, so a request's answer could otherwise change with its batch mates. The products of one request
fill a CPU's cores already. Prompt rows also have the same bits in whatever chunks they come: see
`kernels.linear.steady`. On other devices the rows of a batch share their products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.beams import BeamKernel, Mode
from relaygr.kernels.cpu import CpuBeams
from relaygr.kernels.linear import Linear, choose_linear, steady
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.head import ColumnScores
from relaygr.models.decoder.layer import DecoderLayer, Projection
from relaygr.models.decoder.rope import RopeTable, Rotation
from relaygr.models.decoder.rows import BeamRows, PromptRow
from relaygr.models.dense import RmsNorm

_Row = TypeVar("_Row", PromptRow, BeamRows)


class Decoder(nn.Module):
    """A Qwen3, Qwen2 or Llama style decoder.

    Args:
        config: its shape.
        kernel: attention back-end.
        mode: how beams attend to their shared prompt.

    Serving calls run without autograd, change no weights, and raise ValueError for rows that do not fit the
    model or their stores. Their result for a request does not depend on the other rows of the call.
    """

    def __init__(self, config: DecoderConfig, kernel: BeamKernel | None = None, mode: Mode = "auto") -> None:
        super().__init__()
        self.config = config
        self.kernel: BeamKernel = CpuBeams() if kernel is None else kernel
        self.mode: Mode = mode
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            DecoderLayer(config) for _ in range(config.num_layers)
        )
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)
        size, tied = config.hidden_size, config.tie_embeddings
        self.head = None if tied else Projection(size, config.vocab_size, False)
        self._scores = ColumnScores()
        self.rope = RopeTable(config.rope, config.head_dim, config.max_positions)

    def init_weights(self, seed: int, deviation: float = 0.02) -> Decoder:
        """Normal weights, unit norms, zero biases; the same for a seed."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        with torch.no_grad():
            for name, weight in sorted(self.named_parameters()):
                if name.endswith("bias"):
                    weight.zero_()
                elif weight.dim() == 1:
                    weight.fill_(1.0)
                else:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)
        return self

    @property
    def head_weight(self) -> Tensor:
        """The output matrix [V, D], which may be the embedding table."""
        return self.embed.weight if self.head is None else self.head.weight

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrices and of keys and values; norms, sums over layers, softmax and logits are fp32."""
        return self.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def cast(self, dtype: torch.dtype) -> Decoder:
        """Matrices and biases in `dtype`; the scales of the norms stay in fp32."""
        with torch.no_grad():
            for module in self.modules():
                if not isinstance(module, RmsNorm):
                    for weight in module.parameters(recurse=False):
                        weight.data = weight.data.to(dtype)
        return self

    @torch.inference_mode()
    def prefill(self, rows: Sequence[PromptRow]) -> Tensor:
        """Write the K/V of new prompt tokens to their stores.

        Returns:
            float32 [rows, D], the normalised hidden state of each row's last token.
        """
        out = [self._prompt(group, output=True) for group in self._groups(rows)]
        return self._stacked([part for part in out if part is not None])

    @torch.inference_mode()
    def remember(self, rows: Sequence[PromptRow]) -> None:
        """As `prefill`, but K/V is all that is computed."""
        for group in self._groups(rows):
            self._prompt(group, output=False)

    @torch.inference_mode()
    def step(self, rows: Sequence[BeamRows]) -> Tensor:
        """Feed each beam its last code; K/V go to the beams' own slots.

        Returns:
            float32 [sum of W, D], normalised hidden states, request by request.
        """
        return self._stacked([self._beams(group) for group in self._groups(rows)])

    @torch.inference_mode()
    def logits(self, hidden: Tensor, columns: slice | Tensor | None = None) -> Tensor:
        """Scores of some tokens, in fp32 also where the matrices are narrower.

        Call it for each request apart, as bits depend on the number of rows.

        Args:
            hidden: [n, D] of `prefill` or `step`.
            columns: which tokens, by slice or int64 [cols]; None for the whole vocabulary.

        Returns:
            float32 [n, cols].
        """
        return self._scores(self.head_weight, hidden, columns)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Normalised hidden states [B, n, D] of whole rows, int64 [B, n], under autograd."""
        batch, length = tokens.shape
        config = self.config
        once = self.rope.run(0, length, self.device)
        rotation = Rotation(once.cos.repeat(batch, 1, 1), once.sin.repeat(batch, 1, 1))
        x = self._embedded([tokens.flatten()])
        for layer in self.layers:
            q, k, v = (
                part.reshape(batch, length, -1, config.head_dim).transpose(1, 2)
                for part in layer.project(x, rotation, F.linear)
            )
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = layer.finish(x, attended.transpose(1, 2).flatten(0, 1), F.linear)
        out: Tensor = self.norm(x).view(batch, length, -1)
        return out

    def train_logits(self, tokens: Tensor, columns: slice | None = None) -> Tensor:
        """Scores [B, n, V] of what follows each token of whole rows, int64 [B, n], under autograd.

        Rows shorter than n are filled up behind their end, where nothing looks back from.
        """
        weight = self.head_weight if columns is None else self.head_weight[columns]
        return F.linear(self.hidden(tokens), weight)

    def _groups(self, rows: Sequence[_Row]) -> list[Sequence[_Row]]:
        """Which rows share their products."""
        if self.device.type == "cpu":
            return [[row] for row in rows]
        return [rows] if rows else []

    def _stacked(self, parts: list[Tensor]) -> Tensor:
        if not parts:
            return torch.empty(0, self.config.hidden_size, device=self.device)
        return _joined(parts)

    def _linear(self) -> Linear:
        return choose_linear(self.dtype, self.device.type).linear

    def _prompt(self, rows: Sequence[PromptRow], output: bool) -> Tensor | None:
        alone, spans = self._linear(), _spans([len(row.tokens) for row in rows])
        linear = steady(alone) if self.device.type == "cpu" else alone
        x = self._embedded([row.tokens for row in rows])
        places = [self.rope.run(row.cached, len(row.tokens), self.device) for row in rows]
        rotation = Rotation(_joined([p.cos for p in places]), _joined([p.sin for p in places]))
        *early, final = self.layers
        for i, layer in enumerate(early):
            q, k, v = layer.project(x, rotation, linear)
            attended = [
                self._causal(i, row, q[at], k[at], v[at]) for row, at in zip(rows, spans, strict=True)
            ]
            x = layer.finish(x, _joined(attended), linear)
        k, v = final.remember(x, rotation, linear)
        for row, at in zip(rows, spans, strict=True):
            row.store.write(len(early), row.cached, k[at], v[at])
        if not output:
            return None
        last = torch.tensor([at.stop - 1 for at in spans], device=self.device)
        at_last = Rotation(rotation.cos[last], rotation.sin[last])
        q = final.query(x[last], at_last, alone)
        attended = [
            self._causal_last(len(early), row, q[i : i + 1], k[at], v[at])
            for i, (row, at) in enumerate(zip(rows, spans, strict=True))
        ]
        out: Tensor = self.norm(final.finish(x[last], _joined(attended), alone))
        return out

    def _beams(self, rows: Sequence[BeamRows]) -> Tensor:
        linear, spans = self._linear(), _spans([len(row.tokens) for row in rows])
        x = self._embedded([row.tokens for row in rows])
        places = [self.rope.run(row.position, 1, self.device) for row in rows]
        widths = [at.stop - at.start for at in spans]
        rotation = places[0] if len(rows) == 1 else _repeated(places, widths)
        slots = [row.own.rows(row.anc) for row in rows]
        for i, layer in enumerate(self.layers):
            q, k, v = layer.project(x, rotation, linear)
            attended = []
            for row, at, anc in zip(rows, spans, slots, strict=True):
                row.own.write(i, row.depth, k[at], v[at])
                shared = row.prompt.read(i, row.prompt_tokens)
                own = row.own.keys(i), row.own.values(i)
                attended.append(self.kernel.beams(q[at], shared, row.prompt_tokens, *own, anc, self.mode))
            x = layer.finish(x, _joined(attended), linear)
        out: Tensor = self.norm(x)
        return out

    def _causal(self, layer: int, row: PromptRow, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        row.store.write(layer, row.cached, k, v)
        past = row.store.read(layer, row.cached + len(k)) if row.cached else None
        return self.kernel.causal(q, k, v, past, row.cached)

    def _causal_last(self, layer: int, row: PromptRow, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the row's last token [1, Hq, d] alone: a single beam, which owns that token."""
        before = row.cached + len(k) - 1
        shared = row.store.read(layer, before + 1)
        anc = torch.zeros(1, 1, dtype=torch.int32, device=q.device)
        return self.kernel.beams(q, shared, before, k[-1:], v[-1:], anc, "split")

    def _embedded(self, tokens: Sequence[Tensor]) -> Tensor:
        """Rows of the table, as fp32 or wider: what the layers add up is not rounded on its way."""
        return _wide(F.embedding(_joined(tokens), self.embed.weight))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _spans(lengths: Sequence[int]) -> list[slice]:
    spans, start = [], 0
    for length in lengths:
        spans.append(slice(start, start + length))
        start += length
    return spans


def _repeated(places: Sequence[Rotation], widths: Sequence[int]) -> Rotation:
    """One position a request, for each of its beams."""
    counts = torch.tensor(widths, device=places[0].cos.device)
    cos, sin = (torch.cat([getattr(p, name) for p in places]) for name in ("cos", "sin"))
    return Rotation(cos.repeat_interleave(counts, 0), sin.repeat_interleave(counts, 0))
