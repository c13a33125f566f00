"""`bench linear`: what one shared state with records saves against a recurrent state for every beam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from relaygr.bench.beam_highest import RateFound
from relaygr.bench.linear_decode import DecodeBench, EndToEndCell
from relaygr.bench.linear_operator import OperatorCase, OperatorCell, OperatorShape
from relaygr.bench.linear_prefill import PrefillCase, PrefillCell, only_linear
from relaygr.bench.linear_rates import StateRatesSpec, measure_state_rates
from relaygr.bench.machine import Machine, MatrixGflopsByRoute, MatrixProbe, describe_machine
from relaygr.core.errors import ConfigError
from relaygr.kernels.recurrent import FAMILIES, Family
from relaygr.kernels.threads import serve_with_threads

Tell = Callable[[str], None]
# Decode speed-ups end to end that the OneLA paper states, on hardware and models it does not name.
PUBLISHED_RATIOS = (1.54, 2.46)
_RATE_REPEATS = 5


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """What is measured.

    Attributes:
        family: of the recurrence.
        widths, dims, heads, rounds: the operator's grid; dims are dk and dv, heads are key and value heads.
        decode_widths, prompts: of the searches on a hybrid decoder; no widths leave them out.
        prefills: prompt tokens, short and long, of a decoder of linear layers only; 0 leaves them out.
        rates: of requests under load, and nothing else; None is all the rest.
        runs: of each cell, after one that does not count.
        replay: also measure beams that replay their suffix.
        threads: of the products.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    family: Family = "delta"
    widths: tuple[int, ...] = (64, 128, 256, 512)
    dims: tuple[int, ...] = (64, 128)
    heads: tuple[int, ...] = (8, 16, 32)
    rounds: tuple[int, ...] = (2, 3)
    decode_widths: tuple[int, ...] = (64, 128, 256, 512)
    prompts: tuple[int, ...] = (512, 2048, 8192, 16384)
    prefills: tuple[int, int] = (1024, 16384)
    rates: StateRatesSpec | None = None
    runs: int = 5
    replay: bool = True
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError("--family", f"{self.family!r} is not one of {', '.join(FAMILIES)}")
        for name in ("widths", "dims", "heads", "rounds", "decode_widths", "prompts"):
            numbers = getattr(self, name)
            if (not numbers and name != "decode_widths") or min(numbers, default=1) < 1:
                name = name.replace("_", "-")
                raise ConfigError(f"--{name}", f"{numbers} must be numbers of at least 1")
        if self.prefills != (0, 0) and min(self.prefills) < 1:
            raise ConfigError("--prefills", f"{self.prefills} must be two numbers of at least 1")
        for name in ("runs", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name}", f"{getattr(self, name)} must be at least 1")


QUICK = LinearSpec(
    widths=(256,),
    dims=(128,),
    heads=(16,),
    rounds=(2,),
    decode_widths=(64, 512),
    prompts=(2048,),
    runs=7,
    replay=False,
)
RATES = LinearSpec(rates=StateRatesSpec())


class LinearReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured where.

    Attributes:
        operator: one layer's attention alone, reorder included.
        end_to_end: the decode phase of whole searches; empty if not measured.
        prefill: short and long prompts of linear layers only; None if not measured.
        rates: the highest at a P99, the baseline first; empty if not measured.
        published_ratios: theirs, for comparison with `end_to_end`; the hardware is unknown.
    """

    machine: Machine
    spec: dict[str, Any]
    operator: tuple[OperatorCell, ...]
    end_to_end: tuple[EndToEndCell, ...] = ()
    prefill: PrefillCell | None = None
    rates: tuple[RateFound, ...] = ()
    published_ratios: tuple[float, float] = PUBLISHED_RATIOS

    @property
    def operator_ratio(self) -> float | None:
        """The smallest at 256 beams, or at the width nearest to that."""
        if not self.operator:
            return None
        width = min((c.width for c in self.operator), key=lambda w: (abs(w - 256), w))
        return min(c.ratio for c in self.operator if c.width == width)

    @property
    def decode_ratios(self) -> tuple[float, float] | None:
        """End to end, the smallest at the fewest beams and the largest at the most."""
        if not self.end_to_end:
            return None
        widths = [c.width for c in self.end_to_end]
        least = min(c.decode_ratio for c in self.end_to_end if c.width == min(widths))
        return least, max(c.decode_ratio for c in self.end_to_end if c.width == max(widths))


def bench_linear(spec: LinearSpec, tell: Tell) -> LinearReport:
    """Measure the operator's grid on random tokens, then searches on a decoder of random weights."""
    serve_with_threads(spec.threads)
    tell("measuring the machine")
    probe = MatrixProbe("fp32")
    probe.measure(_RATE_REPEATS)
    rates = () if spec.rates is None else measure_state_rates(spec.rates, spec.seed, tell)
    operator = () if rates else _operator(spec, tell)
    end_to_end = () if rates else _end_to_end(spec, tell)
    prefill = None if rates else _prefill(spec, tell)
    probe.measure(_RATE_REPEATS)
    machine = describe_machine(MatrixGflopsByRoute(fp32=probe.rates()))
    return LinearReport(
        machine=machine,
        spec=msgspec.to_builtins(spec),
        operator=operator,
        end_to_end=end_to_end,
        prefill=prefill,
        rates=rates,
    )


def quick_report(report: LinearReport) -> dict[str, float | None]:
    """The figures by name, as other programs read them; None for what was not measured."""
    least, most = report.decode_ratios or (None, None)
    return {
        "operator_ratio": report.operator_ratio,
        "end_to_end_ratio_min": least,
        "end_to_end_ratio_max": most,
        "prefill_per_token_ratio": None if report.prefill is None else report.prefill.per_token_ratio,
    }


@torch.inference_mode()
def _operator(spec: LinearSpec, tell: Tell) -> tuple[OperatorCell, ...]:
    cells = []
    for rounds in spec.rounds:
        for dim in spec.dims:
            for heads in spec.heads:
                for width in spec.widths:
                    tell(f"operator: {width} beams, {heads} heads of {dim} x {dim}, {rounds} rounds")
                    shape = OperatorShape(spec.family, width, heads, dim, rounds)
                    cells.append(OperatorCase(shape, spec.seed).measure(spec.runs, spec.replay))
    return tuple(cells)


def _end_to_end(spec: LinearSpec, tell: Tell) -> tuple[EndToEndCell, ...]:
    if not spec.decode_widths:
        return ()
    bench, cells = DecodeBench(spec.seed, max(spec.prompts), max(spec.decode_widths)), []
    for prompt in spec.prompts:
        tell(f"search: prefill of {prompt} tokens")
        case = bench.case(prompt, spec.runs)
        for width in spec.decode_widths:
            tell(f"search: {width} beams behind {prompt} tokens")
            cells.append(case.measure(width, spec.runs, spec.replay))
    return tuple(cells)


def _prefill(spec: LinearSpec, tell: Tell) -> PrefillCell | None:
    if not min(spec.prefills):
        return None
    tell(f"prompts of {spec.prefills[0]} and {spec.prefills[1]} tokens, linear layers only")
    return PrefillCase(spec.prefills, spec.seed, only_linear()).measure(spec.runs)
