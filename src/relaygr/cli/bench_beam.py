"""`relaygr bench beam`: generation, one request at a time and under load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.beam import QUICK, RATES, SELECTION, BeamReport, BeamSpec, bench_beam, quick_report
from relaygr.bench.beam_cells import BeamCell
from relaygr.bench.beam_rates import VARIANTS, RatesSpec
from relaygr.bench.beam_selection import SelectionCell
from relaygr.bench.beam_waits import WaitsSpec
from relaygr.cli.bench_beam_modes import numbers
from relaygr.cli.bench_beam_rates import rates_table, short
from relaygr.cli.bench_beam_waits import report_waits
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError

_RATES = RatesSpec()


def beam(
    *,
    quick: bool = False,
    dtype: Literal["fp32", "bf16"] = "bf16",
    peers: bool = True,
    rates: bool = False,
    load_s: float | None = None,
    target_ms: float | None = None,
    variants: str = ",".join(VARIANTS),
    ids: str = ",".join(map(str, _RATES.sids)),
    selection: bool = False,
    waits: bool = False,
    threads: int = 2,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Time beam search over a catalogue against rows without any of it, and against `transformers`.

    The decoder has 4 layers, width 256, a vocabulary of 24,640 and random weights; catalogues have 3 levels.

    Parameters
    ----------
    quick: bool
        Widths 128 and 512 on prompts of 1,024 tokens only; the JSON has these two.
    dtype: Literal["fp32", "bf16"]
        Of weights, keys and values.
    peers: bool
        Run `transformers`, where it is installed; its beam search takes ten seconds and more.
    rates: bool
        Measure only the highest rates at a P99.
    load_s: float | None
        Seconds of the search for the highest rate, for each variant and catalogue, 240 by default; 0 leaves
        them out. The less, the shorter the loads and the wider the bounds.
    target_ms: float | None
        Of P99, for all rates; by default 2.5 times what the baseline takes alone.
    variants: str
        That rates are measured of: names with commas between them.
    ids: str
        Semantic ids of the catalogues that they are measured over.
    selection: bool
        Measure only single rounds of selection over 1.5 million semantic ids, on one core.
    waits: bool
        Measure only what the scheduler adds: to single requests, under load, to an idle machine.
    threads: int
        Of the matrix products.
    json: Path | None
        Also write the report to this file.
    """
    check_file("--json", json)
    if threads < 1:
        raise ConfigError("--threads", f"{threads} must be at least 1")
    if quick + rates + selection + waits > 1:
        raise ConfigError("--quick", "only one of --quick, --rates, --selection, --waits can be asked for")
    if waits:
        report_waits(WaitsSpec(dtype=dtype, threads=threads, seed=seed), json)
        return
    base = QUICK if quick else RATES if rates else SELECTION if selection else BeamSpec()
    loads = replace(
        base.rates,
        limit_s=base.rates.limit_s if load_s is None else load_s,
        target_ms=target_ms,
        variants=tuple(name.strip() for name in variants.split(",")),
        sids=numbers("--ids", ids),
    )
    spec = replace(base, dtype=dtype, threads=threads, seed=seed, rates=loads)
    if not peers:
        spec = replace(spec, peer_widths=())
    console = Console()
    with Console(stderr=True).status("starting") as status:
        report = bench_beam(spec, lambda text: status.update(escape(text)))
    write_json(json, quick_report(report) if quick else report)
    _print(console, report)


def _print(console: Console, report: BeamReport) -> None:
    machine = report.machine
    console.print(f"{machine.cpu}, {machine.threads} threads, {report.spec['dtype']}", highlight=False)
    if report.cells:
        console.print(_ours(report.cells))
    if any(cell.naive_ms or cell.transformers_prefill_ms for cell in report.cells):
        console.print(_others(report.cells))
    if (scaling := report.scaling) is not None:
        console.print(
            f"decoding at width {scaling.width}: prompt {scaling.long:,} over {scaling.short:,} takes "
            f"{scaling.time_ratio:.2f}x the time and {scaling.flop_ratio:.2f}x the operations; with the "
            f"prompt in every row {scaling.replicate_over_shared:.1f}x",
            highlight=False,
        )
    if report.selection:
        console.print(_selection(report.selection))
    if report.rates:
        console.print(rates_table(report.rates))


def _ours(cells: tuple[BeamCell, ...]) -> Table:
    table = Table(title="milliseconds of one request")
    for name in ("ids", "P", "W", "prompt", "rounds", "head", "select", "total", "/ prompt"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        ours = cell.ours
        times = (ours.prefill_ms, ours.forward_ms, ours.head_ms, ours.selection_ms, ours.total_ms)
        table.add_row(
            short(cell.sids),
            f"{cell.prompt:,}",
            str(cell.width),
            *(_ms(time) for time in times),
            f"{cell.total_over_prefill:.2f}",
        )
    return table


def _others(cells: tuple[BeamCell, ...]) -> Table:
    table = Table(title="beside others, milliseconds")
    for name in ("ids", "P", "W", "ours", "naive", "transformers", "its prompt"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        others = (cell.naive_ms, cell.transformers_ms)
        if others == (None, None) and cell.transformers_prefill_ms is None:
            continue
        table.add_row(
            short(cell.sids),
            f"{cell.prompt:,}",
            str(cell.width),
            _ms(cell.total_ms),
            *(_times(other, cell.total_ms) for other in others),
            _times(cell.transformers_prefill_ms, cell.prefill_ms),
        )
    return table


def _selection(cells: tuple[SelectionCell, ...]) -> Table:
    table = Table(
        title=f"milliseconds of a round over {cells[0].sids:,} ids, one core, logits given",
        caption="both: prepare and select; denied: both, without one item in 750; looped: prepare, by a loop "
        "in Python; sorted: select, by a sort of all",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in (
        "W",
        "level",
        "scores",
        "candidates",
        "prepare",
        "select",
        "both",
        "denied",
        "looped",
        "sorted",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        table.add_row(
            str(cell.width),
            str(cell.level),
            cell.normalization,
            f"{cell.candidates:,}",
            _ms(cell.prepare_ms),
            _ms(cell.select_ms),
            _ms(cell.both_ms),
            _ms(cell.denied_ms),
            _ms(cell.looped_ms),
            _ms(cell.sorted_ms),
        )
    return table


def _times(other_ms: float | None, ours_ms: float) -> str:
    return "-" if other_ms is None else f"{other_ms:,.0f} ({other_ms / ours_ms:.1f}x)"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
