"""The highest rates of the system, of the system with one thing taken back, and of the baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from relaygr.bench.beam_case import BASES, Prompts, make_catalogues, make_generator
from relaygr.bench.beam_highest import Effort, RateFound, highest_rate
from relaygr.bench.beam_load import Door, WallWatch, alone
from relaygr.bench.beam_naive import HostMaskSearch, NaiveBeams, SortingSearch, tree_of
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.models.decoder.decoder import Decoder

Tell = Callable[[str], None]
TREE_SIDS = 200_000  # a tree of dictionaries for more takes gigabytes
NAIVE = "naive"
VARIANTS = (NAIVE, "full system", "replicate", "host mask", "full sort", "continuous")
_TARGETS = 2.5  # of what the baseline takes alone: what it can keep while others wait for it
_ALONE_RUNS = 3
_BEAM_BYTES = 64 * MIB  # of the baseline


@dataclass(frozen=True, slots=True)
class RatesSpec:
    """What is measured.

    Attributes:
        width, prompt: of the requests.
        sids: of each catalogue; the baseline's takes the smallest.
        variants: some of `VARIANTS`.
        limit_s: of each search; 0 leaves all out.
        target_ms: of P99; None goes by what the baseline takes alone.

    Raises:
        ConfigError: naming the option and the value.
    """

    width: int = 256
    prompt: int = 1024
    sids: tuple[int, ...] = (10_000, 1_500_000)
    variants: tuple[str, ...] = VARIANTS
    limit_s: float = 240.0
    target_ms: float | None = None

    def __post_init__(self) -> None:
        if self.limit_s < 0:
            raise ConfigError("--load-s", f"{self.limit_s:g} must not be negative")
        if self.target_ms is not None and self.target_ms <= 0:
            raise ConfigError("--target-ms", f"{self.target_ms:g} must be positive")
        if not self.sids or min(self.sids) < 1:
            raise ConfigError("--ids", f"{self.sids} must be numbers of at least 1")
        for name in self.variants:
            if name not in VARIANTS:
                raise ConfigError("--variants", f"{name!r} is not one of {', '.join(VARIANTS)}")


def naive_beams(decoder: Decoder, catalogues: Catalogues) -> NaiveBeams:
    """The baseline over the catalogue that is served."""
    with catalogues.pin() as pinned:
        return NaiveBeams(decoder, tree_of(pinned.index), BASES, _BEAM_BYTES)


@contextmanager
def scheduled(generator: Generator, prompts: Prompts, length: int, width: int) -> Iterator[Door]:
    """The generator behind its scheduler."""
    scheduler = GenerateScheduler(generator, generator.config)
    group = max(generator.config.max_beam_rows // width, 1)
    try:
        yield Door(
            lambda number: scheduler.generate(prompts.asked(number, length, width), 60_000.0), 2 * group
        )
    finally:
        scheduler.close()
        generator.close()


@contextmanager
def one_by_one(naive: NaiveBeams, prompts: Prompts, length: int, width: int) -> Iterator[Door]:
    """The baseline, one request after the other."""
    with ThreadPoolExecutor(1) as thread:
        try:
            yield Door(lambda number: thread.submit(naive.generate, prompts.tokens(number, length), width), 1)
        finally:
            thread.shutdown(wait=True, cancel_futures=True)


def measure_rates(spec: RatesSpec, decoder: Decoder, seed: int, tell: Tell) -> list[RateFound]:
    """All variants over all catalogues, at one target."""
    prompts, found, first = Prompts(seed + 1), list[RateFound](), 0
    effort, watch = Effort(spec.limit_s), WallWatch()
    target_ms = spec.target_ms
    for sids in sorted(spec.sids):
        tell(f"building a catalogue of {sids:,} semantic ids")
        catalogues = make_catalogues(sids, seed)
        if target_ms is None:  # the first, and smallest, catalogue
            tell("what the baseline takes alone")
            with one_by_one(naive_beams(decoder, catalogues), prompts, spec.prompt, spec.width) as door:
                target_ms = _TARGETS * alone(door, _ALONE_RUNS, first, watch)
            first += _ALONE_RUNS
        for name in spec.variants:
            if name == NAIVE and sids > TREE_SIDS:
                continue
            tell(f"rates over {sids:,} semantic ids: {name}")
            decoder.mode = "replicate" if name == "replicate" else "auto"
            try:
                with _open(name, decoder, catalogues, prompts, spec) as door:
                    alone_ms = alone(door, _ALONE_RUNS, first, watch)
                    first += _ALONE_RUNS
                    one = highest_rate(name, sids, door, target_ms, alone_ms, effort, seed, first)
            finally:
                decoder.mode = "auto"
            first += 100_000
            found.append(one)
    return found


def _open(
    name: str, decoder: Decoder, catalogues: Catalogues, prompts: Prompts, spec: RatesSpec
) -> AbstractContextManager[Door]:
    if name == NAIVE:
        return one_by_one(naive_beams(decoder, catalogues), prompts, spec.prompt, spec.width)
    changes: dict[str, dict[str, Any]] = {
        "host mask": {"kind": HostMaskSearch},
        "full sort": {"kind": SortingSearch},
        "continuous": {"scheduling": "continuous"},
    }
    generator = make_generator(decoder, catalogues, **changes.get(name, {}))
    return scheduled(generator, prompts, spec.prompt, spec.width)
