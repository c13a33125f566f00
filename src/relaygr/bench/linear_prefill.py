"""What a token of a prompt costs a decoder of linear layers only, in a short and in a long prompt."""

from __future__ import annotations

import msgspec
import torch

from relaygr.bench.linear_decode import SHAPE
from relaygr.bench.linear_operator import Spread
from relaygr.bench.timing import Variant, round_robin
from relaygr.kernels.recurrent_select import choose_recurrent
from relaygr.memory.stores import NoKv
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.linear_config import LinearConfig, layer_kinds
from relaygr.models.decoder.rows import PromptRow

PASS_TOKENS = 1024  # the same for every prompt, so that all passes are alike but for what is behind them


class PrefillCell(msgspec.Struct, frozen=True, kw_only=True):
    """A short and a long prompt of the same decoder, in turns.

    Attributes:
        layers: of linear attention, and no others.
        tokens: of the short prompt, of the long one.
        short, long: of the whole prompts.
        state_bytes: what a prompt leaves behind, states and convolution rows, at either length.
    """

    layers: int
    tokens: tuple[int, int]
    short: Spread
    long: Spread
    state_bytes: int

    @property
    def per_token_ratio(self) -> float:
        """How many times the time of the short prompt's tokens those of the long one take."""
        short, long = self.tokens
        return (self.long.median_ms / long) / (self.short.median_ms / short)


def only_linear(shape: DecoderConfig = SHAPE, layers: int = 2) -> DecoderConfig:
    """A decoder like this one, of so many linear layers and nothing else."""
    assert shape.linear is not None
    linear: LinearConfig = msgspec.structs.replace(shape.linear, layer_types=layer_kinds(layers, layers + 1))
    return msgspec.structs.replace(shape, num_layers=layers, linear=linear)


class PrefillCase:
    """A decoder of random weights, and a random prompt of each length."""

    def __init__(self, tokens: tuple[int, int], seed: int, shape: DecoderConfig) -> None:
        config = msgspec.structs.replace(shape, max_positions=max(tokens))
        model = Decoder(config, recurrent=choose_recurrent().kernel).init_weights(seed)
        self.model, self.tokens = model.eval().requires_grad_(False), tokens
        generator = torch.Generator().manual_seed(seed)
        self._prompt = torch.randint(config.vocab_size, (max(tokens),), generator=generator)

    @torch.inference_mode()
    def measure(self, runs: int) -> PrefillCell:
        """Both lengths in turns, the short one once untimed before."""
        short, long = self.tokens
        left = self.prefill(short)
        variants = [
            Variant("short", lambda: self.prefill(short)),
            Variant("long", lambda: self.prefill(long)),
        ]
        times = [Spread.of(timing) for timing in round_robin(variants, runs)]
        return PrefillCell(
            layers=self.model.config.num_layers,
            tokens=self.tokens,
            short=times[0],
            long=times[1],
            state_bytes=left,
        )

    def prefill(self, tokens: int) -> int:
        """The first tokens of the prompt, from nothing on -> bytes of what they leave behind."""
        state, store = self.model.empty_state(), NoKv()
        assert state is not None
        for start in range(0, tokens, PASS_TOKENS):
            part = self._prompt[start : min(start + PASS_TOKENS, tokens)]
            self.model.prefill([PromptRow(part, start, store, state)])
        return state.nbytes.total
