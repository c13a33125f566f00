"""The generator: a decoder over semantic ids, its memory, and how its requests are batched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB, MIB

Normalization = Literal["full", "level", "valid"]
Attention = Literal["auto", "split", "joint", "replicate"]


class GeneratorConfig(Section, frozen=True, kw_only=True):
    """One decoder, its catalogue, and the memory and budgets of its requests.

    Attributes:
        model: folder of the decoder; empty serves none.
        catalogue: folder of the catalogue.
        device_bytes: what prompts may take of the device: pages of keys and values, recurrent states.
        page_tokens: prompt tokens in one page.
        beam_bytes: what beams may leave behind, all requests together: keys and values, and records of linear
            layers.
        scratch_bytes: what logits and ancestor indexes may take, all requests together.
        host_bytes: host memory for prompts that the device has no room for; 0 turns it off. How states lie
            there and move is what `host` says.
        state_share: of both, for the recurrent states of a model with linear layers; 0 goes by its shape and
            `max_prompt_tokens`.
        state_snapshot_tokens: between two copies of a prompt's recurrent state; a prompt that changed goes on
            from the last one before the change.
        state_snapshots: most of one prompt.
        max_prompt_tokens: longest prompt.
        anchor_stride: share of a full history window that is dropped at once, so that its start seldom moves.
        max_beam_width: of one round; max_results: rows of one answer; beam_width: of requests that name none.
        max_batch_tokens, max_beam_rows: prompt tokens to compute, and beams in their widest round, of the
            requests that run together.
        max_wait_ms: how long a busy engine lets the oldest request wait for others to run with.
        max_bypass_ms: how long smaller requests may pass one that there is no room for.
        queue_max, prefetch_queue_max: waiting requests, and prompts waiting to be encoded ahead; further ones
            are refused.
        prefill_chunk_tokens: prompt tokens of one step, between which rankings have their turn.
        scheduling: `fixed` runs a group to its end; with `continuous` requests join at every round.
        deadline_ms: of requests that name none; deadline_max_ms: longest that one may name.
        yield_ms: how long rankings may go before a generation that waits for the processor.
        normalization: of scores, where a request names none.
        attention: how beams read the prompt; `auto` goes by what was measured at the start.
        dtype: of weights, keys and values.
        max_filter_items: of one request's `allow`, and of its `deny`; the history of `exclude_seen` is apart.
        max_items, max_items_per_sid: items of an answer, and of one semantic id, where a request names none.
        unknown_items: what becomes of a prompt with items that the catalogue does not know.
        keep_versions: catalogues kept, the serving one included, so that one call can go back.
        min_share: a new catalogue with less than this share of the items of the one before is refused.
    """

    PATH: ClassVar[str] = "generator"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "device_bytes": Range(MIB, 16 * 1024 * GIB),
        "page_tokens": Range(8, 256, power_of_two=True),
        "beam_bytes": Range(1 << 16, 16 * 1024 * GIB),
        "scratch_bytes": Range(1 << 16, 1024 * GIB),
        "host_bytes": Range(0, 16 * 1024 * GIB),
        "state_share": Range(0, 1),
        "state_snapshot_tokens": Range(1, 1 << 20),
        "state_snapshots": Range(1, 64),
        "max_prompt_tokens": Range(1, 1 << 20),
        "anchor_stride": Range(0, 1, open_low=True),
        "beam_width": Range(1, 65_536),
        "max_beam_width": Range(1, 65_536),
        "max_results": Range(1, 1 << 20),
        "max_batch_tokens": Range(1, 1 << 24),
        "max_beam_rows": Range(1, 1 << 20),
        "max_wait_ms": Range(0, 1000),
        "max_bypass_ms": Range(0, 600_000),
        "queue_max": Range(1, 1 << 20),
        "prefetch_queue_max": Range(0, 1 << 20),
        "prefill_chunk_tokens": Range(1, 1 << 20),
        "deadline_ms": Range(1, 3_600_000),
        "deadline_max_ms": Range(1, 3_600_000),
        "yield_ms": Range(0, 60_000),
        "max_filter_items": Range(1, 1 << 24),
        "max_items": Range(1, 1 << 24),
        "max_items_per_sid": Range(1, 1 << 24),
        "keep_versions": Range(1, 64),
        "min_share": Range(0, 1),
    }

    model: str = ""
    catalogue: str = ""
    device_bytes: int = GIB
    page_tokens: int = 32
    beam_bytes: int = 512 * MIB
    scratch_bytes: int = 256 * MIB
    host_bytes: int = 256 * MIB
    state_share: float = 0.0
    state_snapshot_tokens: int = 1024
    state_snapshots: int = 4
    max_prompt_tokens: int = 8192
    anchor_stride: float = 0.25
    beam_width: int = 128
    max_beam_width: int = 1024
    max_results: int = 1024
    max_batch_tokens: int = 10_240
    max_beam_rows: int = 1024
    max_wait_ms: float = 4.0
    max_bypass_ms: float = 200.0
    queue_max: int = 256
    prefetch_queue_max: int = 256
    prefill_chunk_tokens: int = 1024
    scheduling: Literal["fixed", "continuous"] = "fixed"
    deadline_ms: float = 10_000.0
    deadline_max_ms: float = 60_000.0
    yield_ms: float = 50.0
    normalization: Normalization = "level"
    attention: Attention = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    max_filter_items: int = 100_000
    max_items: int = 1000
    max_items_per_sid: int = 50
    unknown_items: Literal["skip", "reject"] = "skip"
    keep_versions: int = 2
    min_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("model", "catalogue"):
            if "\0" in getattr(self, name):
                raise ConfigError(self.key(name), f"{getattr(self, name)!r} contains NUL")
        if self.model and not self.catalogue:
            raise ConfigError(self.key("catalogue"), f"is empty; {self.key('model')} needs one")
        # Otherwise requests would be accepted that no group has room for.
        for name, limit in (
            ("max_prompt_tokens", "max_batch_tokens"),
            ("beam_width", "max_beam_width"),
            ("beam_width", "max_results"),
            ("max_beam_width", "max_beam_rows"),
            ("deadline_ms", "deadline_max_ms"),
        ):
            value, most = getattr(self, name), getattr(self, limit)
            if value > most:
                raise ConfigError(self.key(name), f"{value:g} must be at most {self.key(limit)} = {most:g}")
