"""The highest rates of searches on a hybrid decoder, with records and with a state for each beam.

Everything else is the same: weights, catalogue, scheduler, one request at a time, and the target of P99.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relaygr.bench.beam_case import Prompts, make_catalogues, make_generator
from relaygr.bench.beam_highest import Effort, RateFound, highest_rate
from relaygr.bench.beam_load import WallWatch, alone
from relaygr.bench.beam_rates import scheduled
from relaygr.bench.linear_decode import SHAPE
from relaygr.config.generator import GeneratorConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.generation.opening import choose_kernels
from relaygr.memory.records import BeamRecords
from relaygr.memory.recurrent import PromptState
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.state_beams import MaterialisedStates, StateBeams

Tell = Callable[[str], None]
STATES, RECORDS = "a state a beam", "full system"
_TARGETS = 2.5  # of what the baseline takes alone: what it can keep while others wait for it
_ALONE_RUNS = 5


@dataclass(frozen=True, slots=True)
class StateRatesSpec:
    """What is measured.

    Attributes:
        width, prompt: of the requests.
        sids: of the catalogue.
        limit_s: of each search for a rate.
        target_ms: of P99; None goes by what the baseline takes alone.

    Raises:
        ConfigError: naming the option and the value.
    """

    width: int = 256
    prompt: int = 1024
    sids: int = 10_000
    limit_s: float = 120.0
    target_ms: float | None = None

    def __post_init__(self) -> None:
        if self.limit_s <= 0:
            raise ConfigError("--load-s", f"{self.limit_s:g} must be positive")
        if self.target_ms is not None and self.target_ms <= 0:
            raise ConfigError("--target-ms", f"{self.target_ms:g} must be positive")


class StatesDecoder(Decoder):
    """A decoder whose beams have a state each, in memory that requests leave to those after them.

    Changes: keeps as much of it as requests ever held at a time.

    Attributes:
        lent: states, and the records of the request that they belong to until those are released.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.lent: list[tuple[MaterialisedStates, BeamRecords]] = []

    def state_beams(self, state: PromptState, records: BeamRecords | None = None) -> StateBeams:
        assert self.config.linear is not None
        assert records is not None
        for place, (states, owner) in enumerate(self.lent):
            if owner.released:
                self.lent[place] = states, records
                states.restart(state)
                return states
        made = MaterialisedStates(self.config.linear.spec, state)
        self.lent.append((made, records))
        return made


def measure_state_rates(
    spec: StateRatesSpec, seed: int, tell: Tell, shape: DecoderConfig = SHAPE
) -> tuple[RateFound, ...]:
    """The baseline, then records."""
    prompts, found, first = Prompts(seed + 1), list[RateFound](), 0
    effort, watch, target_ms = Effort(spec.limit_s), WallWatch(), spec.target_ms
    catalogues = make_catalogues(spec.sids, seed)
    for name, kind in ((STATES, StatesDecoder), (RECORDS, Decoder)):
        tell(f"rates: {name}")
        decoder = kind(shape).init_weights(seed).eval().requires_grad_(False)
        choose_kernels(decoder, GeneratorConfig())
        # A CPU computes the requests of a group one by one; states for more of them would not fit most.
        generator = make_generator(
            decoder, catalogues, max_beam_rows=spec.width, max_beam_width=spec.width, beam_width=1
        )
        with scheduled(generator, prompts, spec.prompt, spec.width) as door:
            alone_ms = alone(door, _ALONE_RUNS, first, watch)
            target_ms = target_ms or _TARGETS * alone_ms
            first += _ALONE_RUNS
            found.append(highest_rate(name, spec.sids, door, target_ms, alone_ms, effort, seed, first))
        first += 100_000
    return tuple(found)
