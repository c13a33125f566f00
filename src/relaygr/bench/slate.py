"""The list layer: milliseconds by rules, width and pool, beside ranking; rules that hold; what lists gain.

Times are of one process on one core: 200 candidates with three heads, four attributes and vectors, a step
model of random weights, and the generators and settings that a server has by default. Gains are those of
trained step models in worlds of known truth.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from relaygr.bench.machine import Machine, MatrixGflopsByRoute, describe_machine
from relaygr.bench.slate_beside import Beside, measure_beside
from relaygr.bench.slate_openings import OpeningCell, measure_openings
from relaygr.bench.slate_rules import count_violations
from relaygr.bench.slate_world import RULES, SlateWorld
from relaygr.bench.timing import Timing
from relaygr.core.errors import ConfigError
from relaygr.listwise.request import SlateAsk
from relaygr.training.slate.gain_rows import DEFAULT, RERANKERS, GainOptions, GainsReport
from relaygr.training.slate.gains import gains

Tell = Callable[[str], None]
LOGGED = 8000  # lists that the step model of the default's gain is trained on
_WARM = 20  # requests before the first that counts


class SlateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure.

    Attributes:
        candidates, length: of a request.
        widths: B, lists that the beam keeps; tops: m, candidates that it looks at.
        requests: timed ones of each cell.
        checked: random requests under random rules whose lists the independent checker reads.
        beside: requests that are ranked, with a list and without.
        openings: requests of each kind whose many or tight rules are opened; 0 for none.
        worlds: of known truth, in which gains are measured, each with models of its own; 0 for none.
        users: requests of each world.
        compared: whether logs of 600 lists, over-fitted models, choices and inflation are measured as well.
        processes: that measure gains.
    """

    candidates: int = 200
    length: int = 10
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    tops: tuple[int, ...] = (30, 60, 120)
    requests: int = 1000
    checked: int = 100_000
    beside: int = 200
    openings: int = 20
    worlds: int = 5
    users: int = 1000
    compared: bool = True
    processes: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("candidates", 1, 16_384),
            ("length", 1, 500),
            ("requests", 1, 10_000_000),
            ("checked", 0, 10_000_000),
            ("beside", 0, 1_000_000),
            ("openings", 0, 1_000_000),
            ("worlds", 0, 1000),
            ("users", 1, 1_000_000),
            ("processes", 1, 256),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"--{name}", f"{value} is outside [{low}, {high}]")
        for name in ("widths", "tops"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise ConfigError(f"--{name}", f"{list(values)} must be numbers from 1, at least one")


QUICK = SlateSpec(
    widths=(4,), tops=(30,), requests=300, checked=500, beside=60, openings=5, users=300, compared=False
)


class LatencyCell(msgspec.Struct, frozen=True, kw_only=True):
    """One list, from scores to the explanation.

    Attributes:
        rules: how many, by name; width, top: B and m.
        p50_ms, p99_ms: on the clock; cpu_p50_ms, cpu_p99_ms: of the processor, which others do not move.
        stage_ms: medians.
        steps: light steps of the step model, lists times candidates.
    """

    rules: str
    width: int
    top: int
    p50_ms: float
    p99_ms: float
    cpu_p50_ms: float
    cpu_p99_ms: float
    stage_ms: dict[str, float]
    steps: int


class SlateReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; `rule_violations` of lists that random requests got. None for what was not measured."""

    machine: Machine
    spec: dict[str, Any]
    cells: tuple[LatencyCell, ...]
    beside: Beside | None
    openings: tuple[OpeningCell, ...]
    rule_violations: int | None
    lists_checked: int
    gains: GainsReport | None

    @property
    def main(self) -> LatencyCell:
        """The cell of four lists, 30 candidates and no rules, or the nearest to it."""
        return min(self.cells, key=lambda c: (c.rules != "none", abs(c.top - 30), abs(c.width - 4)))


def bench_slate(spec: SlateSpec, tell: Tell) -> SlateReport:
    """Measure; the process stays on one core while lists are timed."""
    with one_core():
        cells = tuple(_cells(spec, tell))
        tell("ranking, with a list and without")
        beside = measure_beside(spec.beside, spec.candidates, spec.length, spec.seed) if spec.beside else None
        openings = tuple(measure_openings(spec.openings, tell)) if spec.openings else ()
    violations, lists = None, 0
    if spec.checked:
        violations, lists = count_violations(
            spec.checked,
            lambda done: tell(f"random requests under random rules: {done:,} of {spec.checked:,}"),
        )
    found = None
    if spec.worlds:
        found = gains(range(spec.seed, spec.seed + spec.worlds), _gain_options(spec), tell, spec.processes)
    return SlateReport(
        machine=describe_machine(MatrixGflopsByRoute()),
        spec=msgspec.to_builtins(spec),
        cells=cells,
        beside=beside,
        openings=openings,
        rule_violations=violations,
        lists_checked=lists,
        gains=found,
    )


def _gain_options(spec: SlateSpec) -> GainOptions:
    if not spec.compared:
        return GainOptions(requests=spec.users, lists=(LOGGED,), oracle=False)
    return GainOptions(requests=spec.users, lists=(LOGGED, 600), free=True, members=5, probed=200)


def quick_report(report: SlateReport) -> dict[str, float | int | None]:
    """The figures by name, as other programs read them; None for what was not measured."""
    found = report.gains
    return {
        "rule_violations": report.rule_violations,
        "p99_ms": report.main.p99_ms,
        "cpu_p99_ms": report.main.cpu_p99_ms,
        "extra_share": None if report.beside is None else report.beside.extra_share,
        "gain_over_pointwise": None if found is None else found.row(DEFAULT, LOGGED).gain,
        **{f"gain_{each}": None if found is None else found.family(each).gain for each in RERANKERS},
    }


@contextmanager
def one_core() -> Iterator[None]:
    """The process on one core of those it may use, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cells(spec: SlateSpec, tell: Tell) -> Iterator[LatencyCell]:
    world = SlateWorld(spec.candidates, spec.seed)
    for rules in RULES:
        for top in spec.tops:
            for width in spec.widths:
                tell(f"lists: rules {rules}, {width} lists of the top {top}")
                yield _cell(spec, world, rules, width, top)


def _cell(spec: SlateSpec, world: SlateWorld, rules: str, width: int, top: int) -> LatencyCell:
    slates, held = world.slates(width, top), world.rules(rules)
    wall, cpu, stages = list[float](), list[float](), dict[str, list[float]]()
    for at in range(spec.requests + _WARM):
        ask = SlateAsk(request_id=str(at), length=spec.length, rules=held, budget_ms=1000.0)
        pool = world.pool(at)
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        result = slates.serve(ask, pool)
        ended_s, used_s = time.perf_counter(), time.process_time()
        if at < _WARM:
            continue
        wall.append((ended_s - begun_s) * 1e3)
        cpu.append((used_s - cpu_s) * 1e3)
        for stage, milliseconds in result.stage_ms.items():
            stages.setdefault(str(stage), []).append(milliseconds)
    clock, processor = Timing("wall", tuple(wall)), Timing("cpu", tuple(cpu))
    return LatencyCell(
        rules=rules,
        width=width,
        top=top,
        p50_ms=clock.median_ms,
        p99_ms=clock.percentile_ms(99),
        cpu_p50_ms=processor.median_ms,
        cpu_p99_ms=processor.percentile_ms(99),
        stage_ms={stage: float(np.median(values)) for stage, values in stages.items()},
        steps=spec.length * width * min(top, spec.candidates),
    )
