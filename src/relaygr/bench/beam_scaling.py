"""What a longer prompt costs decoding: time against operations, and against a prompt in every row."""

from __future__ import annotations

import statistics

import msgspec

from relaygr.bench.beam_case import SIZES, Prompts
from relaygr.bench.beam_cells import run_once
from relaygr.engine.generation.generator import Generator
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder


class PromptScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Decode forwards of all rounds at two prompt lengths; milliseconds are medians.

    Attributes:
        flop_ratio: operations at `long` over those at `short`; time_ratio: the same of times.
        replicate_ms: at `long` with the prompt's keys and values in every row.
    """

    width: int
    short: int
    long: int
    short_ms: float
    long_ms: float
    time_ratio: float
    flop_ratio: float
    replicate_ms: float
    replicate_over_shared: float


def decode_flops(shape: DecoderConfig, width: int, prompt: int, rounds: int) -> float:
    """Multiplications and additions of the decode forwards of `rounds` rounds, without the head."""
    size, query = shape.hidden_size, shape.query_size
    dense = 2 * size * (2 * query + 2 * shape.kv_size) + 6 * size * shape.mlp_size
    fed = range(1, rounds)
    attended = sum(4 * query * (prompt + depth) for depth in fed)
    return float(shape.num_layers * width * (len(fed) * dense + attended))


def prompt_scaling(
    generator: Generator, decoder: Decoder, prompts: Prompts, width: int, lengths: tuple[int, int], runs: int
) -> PromptScaling:
    """Both lengths and both ways take turns."""
    short, long = lengths
    variants: dict[tuple[str, int], list[float]] = {
        ("auto", short): [],
        ("auto", long): [],
        ("replicate", long): [],
    }
    before = decoder.mode
    try:
        for number in range(runs + 1):
            for (mode, length), times in variants.items():
                decoder.mode = "replicate" if mode == "replicate" else "auto"
                phases, _ = run_once(generator, prompts, number, length, width)
                if number:  # the first run of each only warms up
                    times.append(phases.forward_ms)
    finally:
        decoder.mode = before
    short_ms, long_ms, replicate_ms = (statistics.median(times) for times in variants.values())
    shape, rounds = decoder.config, len(SIZES)
    return PromptScaling(
        width=width,
        short=short,
        long=long,
        short_ms=short_ms,
        long_ms=long_ms,
        time_ratio=long_ms / short_ms,
        flop_ratio=decode_flops(shape, width, long, rounds) / decode_flops(shape, width, short, rounds),
        replicate_ms=replicate_ms,
        replicate_over_shared=replicate_ms / long_ms,
    )
