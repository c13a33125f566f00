"""Hybrid decoders with what a request brings to them: keys and values, a state, beams with records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from decoder_cases import pool, store
from torch import Tensor

from relaygr.generation.ancestors import Ancestors
from relaygr.kernels.interface import KvStore
from relaygr.memory.beams import NoBeamKv
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.recurrent import PromptState
from relaygr.memory.stores import NoKv
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, BeamStore, PromptRow


@dataclass
class Prompt:
    """A prompt's stores."""

    kv: KvStore
    state: PromptState

    def row(self, tokens: Tensor) -> PromptRow:
        return PromptRow(tokens, self.state.tokens, self.kv, self.state)


def empty(model: Decoder, tokens: int) -> Prompt:
    kv = store(model, tokens) if model.config.full_layers else NoKv()
    state = model.empty_state()
    assert state is not None
    return Prompt(kv, state)


def hybrid_prefilled(model: Decoder, tokens: Tensor, cuts: tuple[int, ...] = ()) -> tuple[Tensor, Prompt]:
    """Hidden state of the last token of a prompt that comes in chunks ending at `cuts`."""
    held = empty(model, len(tokens))
    ends = [*cuts, len(tokens)]
    hidden = torch.empty(0)
    for start, end in zip([0, *ends], ends, strict=False):
        hidden = model.prefill([held.row(tokens[start:end])])
    return hidden, held


class Beams:
    """Beams of one request, one step after another."""

    def __init__(self, model: Decoder, held: Prompt, widths: tuple[int, ...]) -> None:
        self.model, self.held, self.position = model, held, held.state.tokens
        self.ancestors, self.width = Ancestors(widths), max(widths)
        own = pool(model, sum(widths)).reserve(widths) if model.config.full_layers else NoBeamKv()
        assert own is not None
        self.own: BeamStore = own
        self.records = record_pool(model, sum(widths)).reserve(widths)
        assert self.records is not None
        self.linear = model.state_beams(held.state, self.records)

    def rows(self, parents: Tensor, codes: Tensor) -> BeamRows:
        anc = self.ancestors.fork(parents)
        return self.at(codes, anc)

    def at(self, codes: Tensor, anc: Tensor) -> BeamRows:
        depth, tokens = anc.shape[1], self.held.state.tokens
        place = self.position + depth - 1
        return BeamRows(codes, place, depth, self.held.kv, tokens, self.own, anc, self.linear)

    def step(self, parents: Tensor, codes: Tensor) -> Tensor:
        return self.model.step([self.rows(parents, codes)])


def record_pool(model: Decoder, slots: int) -> RecordPool:
    layout = model.config.recurrent_layout(model.dtype)
    assert layout is not None
    return RecordPool(layout, slots * layout.slot_bytes.total)


def records_of(beams: Beams) -> BeamRecords:
    assert beams.records is not None
    return beams.records
