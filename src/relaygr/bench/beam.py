"""`relaygr bench beam`: beams over a catalogue, one request at a time and under load, with alternatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from relaygr.bench.beam_case import SHAPE, Prompts, make_catalogues, make_decoder, make_generator
from relaygr.bench.beam_cells import BeamCell, measure
from relaygr.bench.beam_highest import RateFound
from relaygr.bench.beam_peer import open_peer
from relaygr.bench.beam_rates import TREE_SIDS, RatesSpec, measure_rates, naive_beams
from relaygr.bench.beam_scaling import PromptScaling, prompt_scaling
from relaygr.bench.beam_selection import SelectionCell, measure_selection
from relaygr.bench.machine import Machine, MatrixGflopsByRoute, MatrixProbe, describe_machine
from relaygr.kernels.threads import serve_with_threads
from relaygr.models.decoder.decoder import Decoder

Tell = Callable[[str], None]
_RATE_REPEATS = 5
_SELECTION_RUNS = 21
_SCALING_SIDS = 10_000


@dataclass(frozen=True, slots=True)
class BeamSpec:
    """What is measured.

    Attributes:
        sids: of each catalogue.
        runs: of each cell.
        peer_widths: at which the peer's beam search runs, on prompts of `peer_prompt` tokens.
        naive: whether the baseline runs on these prompts, over the smaller catalogue.
        scaling: whether the cost of a longer prompt is measured, at width 256.
        selection_widths: of single rounds over `selection_sids` semantic ids, on one core.
        rates: of requests under load.
        threads: of the products.
    """

    widths: tuple[int, ...] = (32, 128, 256, 512)
    prompts: tuple[int, ...] = (256, 512, 1024, 4096)
    sids: tuple[int, ...] = (10_000, 1_500_000)
    runs: int = 7
    dtype: str = "bf16"
    peer_widths: tuple[int, ...] = (32, 128)
    peer_prompt: int = 1024
    naive: bool = True
    scaling: bool = True
    selection_widths: tuple[int, ...] = (256, 512)
    selection_sids: int = 1_500_000
    rates: RatesSpec = field(default_factory=RatesSpec)
    threads: int = 2
    seed: int = 0


QUICK = BeamSpec(
    widths=(128, 512),
    prompts=(1024,),
    sids=(1_500_000,),
    runs=9,
    peer_widths=(128,),
    naive=False,
    scaling=False,
    selection_widths=(),
    rates=RatesSpec(limit_s=0.0),
)
# What can be measured alone.
SELECTION = BeamSpec(sids=(), peer_widths=(), scaling=False, rates=RatesSpec(limit_s=0.0))
RATES = BeamSpec(sids=(), peer_widths=(), scaling=False, selection_widths=())


class BeamReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured where.

    Attributes:
        shape: of the decoder.
        cells: medians of single requests.
        rates: highest rates at the target, the baseline first.
        scaling: what a longer prompt costs; None where that was left out.
        selection: of single rounds.
    """

    machine: Machine
    shape: dict[str, Any]
    spec: dict[str, Any]
    cells: tuple[BeamCell, ...]
    rates: tuple[RateFound, ...]
    scaling: PromptScaling | None = None
    selection: tuple[SelectionCell, ...] = ()


def bench_beam(spec: BeamSpec, tell: Tell) -> BeamReport:
    """Measure single rounds, all cells, then the rates; weights, catalogues and prompts are random."""
    serve_with_threads(spec.threads)
    probe = MatrixProbe(spec.dtype) if spec.sids else None
    if probe is not None:
        tell("measuring the machine")
        probe.measure(_RATE_REPEATS)
    widths = spec.selection_widths
    selection = (
        measure_selection(spec.selection_sids, widths, _SELECTION_RUNS, spec.seed, tell) if widths else ()
    )
    cells, scaling, rates = _searches(spec, tell)
    if probe is not None:
        probe.measure(_RATE_REPEATS)
    measured = {} if probe is None else {spec.dtype: probe.rates()}
    machine = describe_machine(MatrixGflopsByRoute(**measured))
    shape: dict[str, Any] = msgspec.to_builtins(SHAPE)
    described: dict[str, Any] = msgspec.to_builtins(spec)
    return BeamReport(
        machine=machine,
        shape=shape,
        spec=described,
        cells=cells,
        rates=rates,
        scaling=scaling,
        selection=tuple(selection),
    )


def quick_report(report: BeamReport) -> dict[str, dict[str, float | None]]:
    """The cells by name, as other programs read them."""
    return {
        f"w{cell.width}_p{cell.prompt}": {
            "prefill_ms": cell.prefill_ms,
            "total_ms": cell.total_ms,
            "transformers_prefill_ms": cell.transformers_prefill_ms,
            "transformers_ms": cell.transformers_ms,
        }
        for cell in report.cells
    }


def _searches(
    spec: BeamSpec, tell: Tell
) -> tuple[tuple[BeamCell, ...], PromptScaling | None, tuple[RateFound, ...]]:
    """Whatever needs a decoder."""
    if not (spec.sids or spec.scaling or spec.rates.limit_s):
        return (), None, ()
    tell("making a decoder")
    decoder = make_decoder(spec.dtype, spec.seed)
    peer = open_peer(decoder) if spec.peer_widths else None
    cells = [cell for sids in spec.sids for cell in _cells(spec, decoder, peer, sids, tell)]
    scaling = _scaling(spec, decoder, tell) if spec.scaling else None
    rates = measure_rates(spec.rates, decoder, spec.seed, tell) if spec.rates.limit_s else []
    return tuple(cells), scaling, tuple(rates)


def _cells(spec: BeamSpec, decoder: Decoder, peer: Any | None, sids: int, tell: Tell) -> list[BeamCell]:
    tell(f"building a catalogue of {sids:,} semantic ids")
    catalogues = make_catalogues(sids, spec.seed)
    generator = make_generator(decoder, catalogues)
    naive = naive_beams(decoder, catalogues) if spec.naive and sids <= TREE_SIDS else None
    prompts, first, found = Prompts(spec.seed), 0, list[BeamCell]()
    try:
        for length in spec.prompts:
            for width in spec.widths:
                tell(f"{sids:,} semantic ids, prompt {length:,}, width {width}")
                compared = peer is not None and length == spec.peer_prompt and sids == max(spec.sids)
                searched = compared and width in spec.peer_widths
                found.append(
                    measure(
                        generator,
                        sids,
                        width,
                        length,
                        spec.runs,
                        prompts,
                        naive=naive if length == spec.peer_prompt else None,
                        peer=peer if compared else None,
                        peer_runs=1 if searched else 0,
                        first=first,
                    )
                )
                first += spec.runs + 1
    finally:
        generator.close()
    return found


def _scaling(spec: BeamSpec, decoder: Decoder, tell: Tell) -> PromptScaling:
    tell("what a longer prompt costs")
    generator = make_generator(decoder, make_catalogues(_SCALING_SIDS, spec.seed))
    try:
        return prompt_scaling(generator, decoder, Prompts(spec.seed + 2), 256, (512, 4096), spec.runs)
    finally:
        generator.close()
