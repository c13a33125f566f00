"""The decoder: prompts to keys and values, beams one code further, and an autograd pass over whole rows.

While serving on a CPU every request is computed by itself: the bits of a product's row depend on how many
rows there are, so a request's answer could otherwise change with its batch mates. The products of one request
fill a CPU's cores already. Prompt rows also have the same bits in whatever chunks they come: see
`kernels.linear.steady`. On other devices the rows of a batch share their products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relaygr.kernels.beams import BeamKernel, Mode
from relaygr.kernels.cpu import CpuBeams
from relaygr.kernels.cpu.recurrent import CpuRecurrent
from relaygr.kernels.linear import Linear, choose_linear, steady
from relaygr.kernels.recurrent import RecurrentKernel
from relaygr.memory.records import BeamRecords
from relaygr.memory.recurrent import PromptState
from relaygr.models.decoder.attention import AttentionLayer
from relaygr.models.decoder.batch import Kernels, beam_batch, joined, prompt_batch, wide
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.delta import Convolution, Decay, DeltaLayer
from relaygr.models.decoder.head import ColumnScores
from relaygr.models.decoder.layer import DecoderLayer, Projection, make_norm
from relaygr.models.decoder.linear_config import LayerKind
from relaygr.models.decoder.rope import RopeTable, Rotation
from relaygr.models.decoder.rows import BeamRows, PromptRow
from relaygr.models.decoder.state_beams import (
    MaterialisedStates,
    RecordedBeams,
    ReplayedStates,
    StateBeams,
    StateMode,
)
from relaygr.models.dense import RmsNorm

_Row = TypeVar("_Row", PromptRow, BeamRows)


class Decoder(nn.Module):
    """A Qwen3, Qwen2, Llama or Qwen3-Next style decoder.

    Args:
        config: its shape.
        kernel: attention back-end.
        mode: how beams attend to their shared prompt.
        recurrent: linear-attention back-end, for a model with such layers.

    Attributes:
        state_mode: how beams know what came before them on linear layers; all but "records" are baselines.

    Serving calls run without autograd, change no weights, and raise ValueError for rows that do not fit the
    model or their stores. Their result for a request does not depend on the other rows of the call.
    """

    def __init__(
        self,
        config: DecoderConfig,
        kernel: BeamKernel | None = None,
        mode: Mode = "auto",
        recurrent: RecurrentKernel | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.kernel: BeamKernel = CpuBeams() if kernel is None else kernel
        self.mode: Mode = mode
        self.recurrent: RecurrentKernel = CpuRecurrent() if recurrent is None else recurrent
        self.state_mode: StateMode = "records"
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            _layers(config)
        )
        self.norm = make_norm(config, config.hidden_size)
        size, tied = config.hidden_size, config.tie_embeddings
        self.head = None if tied else Projection(size, config.vocab_size, False)
        self._scores = ColumnScores()
        self.rope = RopeTable(config.rope, config.rotary_dim, config.max_positions)

    def init_weights(self, seed: int, deviation: float = 0.02) -> Decoder:
        """Normal weights, norms that change nothing, zero biases; the same for a seed."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        with torch.no_grad():
            for name, weight in sorted(self.named_parameters()):
                module = self.get_submodule(name.rpartition(".")[0])
                if isinstance(module, RmsNorm):
                    weight.fill_(module.neutral)
                elif isinstance(module, (Decay, Convolution)):
                    continue
                elif name.endswith("bias"):
                    weight.zero_()
                else:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)
            for module in self.modules():
                if isinstance(module, (Decay, Convolution)):
                    module.init_weights(generator)
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
        """Matrices and biases in `dtype`; norms and decays stay in fp32."""
        with torch.no_grad():
            for module in self.modules():
                if not isinstance(module, (RmsNorm, Decay)):
                    for weight in module.parameters(recurse=False):
                        weight.data = weight.data.to(dtype)
        return self

    def empty_state(self) -> PromptState | None:
        """What linear layers keep of a prompt, before its first token; None if there are no such layers."""
        layout = self.config.recurrent_layout(self.dtype)
        return None if layout is None else PromptState(layout, self.device)

    def state_beams(self, state: PromptState, records: BeamRecords | None = None) -> StateBeams:
        """How the beams of one request, behind its prompt's state, are to know their linear layers' past.

        Args:
            records: the request's own, for the mode "records".
        """
        if self.config.linear is None:
            raise ValueError("state: this model has no linear layers")
        spec = self.config.linear.spec
        if self.state_mode == "materialise":
            return MaterialisedStates(spec, state)
        if self.state_mode == "replay":
            return ReplayedStates(spec, state)
        if records is None:
            raise ValueError("records: must be given")
        return RecordedBeams(self.recurrent, spec, state, records)

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
        once = self.rope.run(0, length, self.device)
        rotation = Rotation(once.cos.repeat(batch, 1, 1), once.sin.repeat(batch, 1, 1))
        x = self._embedded([tokens.flatten()])
        for layer in self.layers:
            x = layer.whole(x, batch, rotation)
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
        return joined(parts)

    def _linear(self) -> Linear:
        return choose_linear(self.dtype, self.device.type).linear

    def _kernels(self) -> Kernels:
        return Kernels(self.kernel, self.recurrent, self.mode)

    def _prompt(self, rows: Sequence[PromptRow], output: bool) -> Tensor | None:
        alone = self._linear()
        linear = steady(alone) if self.device.type == "cpu" else alone
        x = self._embedded([row.tokens for row in rows])
        places = [self.rope.run(row.cached, len(row.tokens), self.device) for row in rows]
        batch = prompt_batch(rows, places, linear, alone, self._kernels())
        *early, final = self.layers
        for layer in early:
            x = layer.prompt(x, batch)
        out: Tensor | None = None
        if output:
            out = self.norm(final.last(x, batch))
        else:
            final.remember(x, batch)
        batch.commit()
        return out

    def _beams(self, rows: Sequence[BeamRows]) -> Tensor:
        x = self._embedded([row.tokens for row in rows])
        places = [self.rope.run(row.position, 1, self.device) for row in rows]
        batch = beam_batch(rows, places, self._linear(), self._kernels())
        for layer in self.layers:
            x = layer.beams(x, batch)
        out: Tensor = self.norm(x)
        return out

    def _embedded(self, tokens: Sequence[Tensor]) -> Tensor:
        """Rows of the table, as fp32 or wider: what the layers add up is not rounded on its way."""
        return wide(F.embedding(joined(tokens), self.embed.weight))


def _layers(config: DecoderConfig) -> Iterator[DecoderLayer]:
    counts: Counter[LayerKind] = Counter()
    for kind in config.layer_types:
        if kind == "linear_attention" and config.linear is not None:
            yield DeltaLayer(config, counts[kind], config.linear)
        else:
            yield AttentionLayer(config, counts[kind])
        counts[kind] += 1
