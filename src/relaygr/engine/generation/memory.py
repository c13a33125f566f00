"""The memory of one generator: what its settings leave to pages, to recurrent states and to beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from relaygr.config.generator import GeneratorConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.generation.asks import ELEMENT_BYTES, KvUse, Room
from relaygr.memory.beams import BeamKv, BeamPool
from relaygr.memory.layout import KvLayout
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.recurrent import RecurrentLayout
from relaygr.memory.state_snapshots import SnapshotRule
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes of one memory for keys and values, and for recurrent states."""

    pages: int
    states: int


@dataclass(slots=True, eq=False)
class BeamMemory:
    """What the beams of one request leave behind at every depth, on both kinds of layers."""

    kv: BeamKv
    records: BeamRecords | None

    def release(self) -> None:
        """Again a no-op."""
        self.kv.release()
        if self.records is not None:
            self.records.release()


class GeneratorMemory:
    """Pools of beams, and how large the others are to be; one thread reserves.

    A model without full attention has one number a token on pages, so that books, leases and tiers count its
    tokens like anybody's.

    Attributes:
        layout: of keys and values.
        states: of what linear layers keep; None without.

    Raises:
        ConfigError: a memory is too small for one of what it is to hold.
    """

    def __init__(self, shape: DecoderConfig, dtype: torch.dtype, config: GeneratorConfig) -> None:
        page = config.page_tokens
        self.layout = shape.kv_layout(dtype, page) if shape.full_layers else KvLayout(1, 1, 1, 1, dtype, page)
        self.states: RecurrentLayout | None = shape.recurrent_layout(dtype)
        self._config = config
        self.device = self._split("device_bytes", config.device_bytes)
        self.host = self._split("host_bytes", config.host_bytes) if config.host_bytes else Split(0, 0)
        layout, records = self.layout, 0 if self.states is None else self.states.slot_bytes.total
        self.slot_bytes = layout.token_bytes + records
        slots = config.beam_bytes // self.slot_bytes
        if not slots:
            message = f"{config.beam_bytes} is less than one slot, {self.slot_bytes}"
            raise ConfigError(config.key("beam_bytes"), message)
        self._beams = BeamPool(
            layout.layers, layout.heads, layout.qk_dim, layout.dtype, slots * layout.token_bytes
        )
        self._records = None if self.states is None else RecordPool(self.states, slots * records)

    @property
    def room(self) -> Room:
        """Of all requests together."""
        records = 0 if self._records is None else self._records.nbytes
        pages = self.device.pages // self.layout.page_bytes
        return Room(pages, self._beams.nbytes + records, self._config.scratch_bytes)

    @property
    def state_bytes(self) -> int:
        """Of one prompt's recurrent state, at any length."""
        return 0 if self.states is None else self.states.prompt_bytes.total

    @property
    def beam_bytes(self) -> int:
        """That beams hold now."""
        return self._beams.used_bytes + (0 if self._records is None else self._records.used_bytes)

    def use(self, pages: int, fed: Sequence[int], rows: int = 0, scratch: int = 0) -> KvUse:
        """By the formula, of a request.

        Args:
            fed: most beams of each round whose codes are fed.
            rows: of its widest round; scratch: bytes of that one's logits.
        """
        slots = sum(fed)
        return KvUse(
            shared=pages * self.layout.page_bytes,
            unshared=slots * self.layout.token_bytes,
            index=ELEMENT_BYTES * rows * len(fed),
            scratch=scratch,
            state=self.state_bytes,
            records=slots * (self.slot_bytes - self.layout.token_bytes),
        )

    def reserve(self, fed: Sequence[int]) -> BeamMemory | None:
        """Slots of a request's beams on all layers; None if they do not fit now."""
        kv = self._beams.reserve(fed)
        if kv is None or self._records is None:
            return None if kv is None else BeamMemory(kv, None)
        records = self._records.reserve(fed)
        if records is None:
            kv.release()
            return None
        return BeamMemory(kv, records)

    def _split(self, name: str, total: int) -> Split:
        """Where `state_share` says nothing: two states for the pages of half a longest prompt."""
        if self.states is None:
            return Split(total, 0)
        config, one = self._config, self.state_bytes
        pages = self.layout.token_bytes * config.max_prompt_tokens // 2
        share = config.state_share or 2 * one / (2 * one + pages)
        states = max(int(share * total), one)
        if total < states + self.layout.page_bytes:
            if name == "host_bytes":
                return Split(total, 0)
            message = f"{total} has no room for a page, {self.layout.page_bytes}, beside states of {one}"
            raise ConfigError(config.key(name), message)
        return Split(total - states, states)


def snapshot_rule(decoder: Decoder, config: GeneratorConfig) -> SnapshotRule | None:
    """None for a model without linear layers."""
    linear = decoder.config.linear
    if linear is None or not linear.layers:
        return None
    grain = decoder.recurrent.grain(linear.spec)
    return SnapshotRule(config.state_snapshot_tokens, config.state_snapshots, grain)
