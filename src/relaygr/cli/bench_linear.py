"""`relaygr bench linear`: beams on linear-attention layers, with and without a state for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.linear import QUICK, RATES, LinearReport, LinearSpec, bench_linear, quick_report
from relaygr.bench.linear_operator import OperatorCell
from relaygr.bench.linear_rates import STATES, StateRatesSpec
from relaygr.cli.bench_beam_rates import rates_table
from relaygr.cli.bench_linear_tables import decode_table, milliseconds, prefill_line
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.kernels.recurrent import Family

_DEFAULT, _RATES = LinearSpec(), StateRatesSpec()


def linear(
    *,
    quick: bool = False,
    family: Family = _DEFAULT.family,
    widths: str = ",".join(map(str, _DEFAULT.widths)),
    dims: str = ",".join(map(str, _DEFAULT.dims)),
    heads: str = ",".join(map(str, _DEFAULT.heads)),
    rounds: str = ",".join(map(str, _DEFAULT.rounds)),
    decode_widths: str = ",".join(map(str, _DEFAULT.decode_widths)),
    prompts: str = ",".join(map(str, _DEFAULT.prompts)),
    prefills: str = ",".join(map(str, _DEFAULT.prefills)),
    rates: bool = False,
    load_s: float = _RATES.limit_s,
    target_ms: float | None = None,
    runs: int = _DEFAULT.runs,
    replay: bool = _DEFAULT.replay,
    threads: int = _DEFAULT.threads,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Time beams that share one recurrent state against beams with a state each, and compare their outputs.

    Parameters
    ----------
    quick: bool
        256 beams on 16 heads of 128 x 128, two rounds, searches of 64 and 512 beams behind 2,048 tokens, and
        prompts of 1,024 and 16,384 tokens; the JSON has the ratios only.
    family: Family
        Recurrence: decayed, gated, delta (gated delta rule) or kda.
    widths: str
        Beams, numbers with commas between them.
    dims: str
        Key and value size of a head.
    heads: str
        Key and value heads.
    rounds: str
        Tokens fed to each beam.
    decode_widths: str
        Beams of whole searches on a hybrid decoder of random weights; empty leaves them out.
    prompts: str
        Prompt tokens of these searches.
    prefills: str
        Two numbers: prompt tokens of a decoder of linear layers only, whose cost a token is compared; empty
        leaves it out.
    rates: bool
        Measure only the highest rates at a P99 of requests behind the scheduler, 256 beams behind 1,024
        tokens, with records and with a state for each beam.
    load_s: float
        Seconds of the search for each of these rates.
    target_ms: float | None
        Of P99; by default 2.5 times what a request with a state for each beam takes alone.
    runs: int
        Of each cell, in turns; the median counts.
    replay: bool
        Also time beams that run their suffix again at each step.
    threads: int
        Of the matrix products.
    json: Path | None
        Also write the report to this file.
    """
    if quick and rates:
        raise ConfigError("--quick", "only one of --quick, --rates can be asked for")
    spec = replace(QUICK if quick else RATES, family=family, threads=threads, seed=seed)
    if rates:
        spec = replace(spec, rates=replace(_RATES, limit_s=load_s, target_ms=target_ms))
    elif not quick:
        spec = LinearSpec(
            family=family,
            widths=_numbers("--widths", widths),
            dims=_numbers("--dims", dims),
            heads=_numbers("--heads", heads),
            rounds=_numbers("--rounds", rounds),
            decode_widths=_numbers("--decode-widths", decode_widths),
            prompts=_numbers("--prompts", prompts),
            prefills=_pair("--prefills", prefills),
            runs=runs,
            replay=replay,
            threads=threads,
            seed=seed,
        )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_linear(spec, lambda text: status.update(escape(text)))
    write_json(json, quick_report(report) if quick else report)
    console = Console()
    machine = report.machine
    console.print(f"{machine.cpu}, {machine.threads} threads, fp32, {spec.family}", highlight=False)
    if report.operator:
        console.print(_table(report))
    if report.end_to_end:
        console.print(decode_table(report))
    if report.prefill is not None:
        console.print(prefill_line(report.prefill), highlight=False, soft_wrap=True)
    if report.rates:
        console.print(rates_table(report.rates, STATES, "states"))
        return
    console.print(
        "MiB: of a request's records with the prompt's state, then of a state for each beam", markup=False
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if text.strip())
    except ValueError:
        raise ConfigError(option, f"{text!r} must be whole numbers with commas between them") from None


def _pair(option: str, text: str) -> tuple[int, int]:
    match _numbers(option, text):
        case ():
            return 0, 0
        case (short, long):
            return short, long
    raise ConfigError(option, f"{text!r} must be two numbers with a comma between them")


def _table(report: LinearReport) -> Table:
    title = "One layer's attention, T rounds with reorder: milliseconds, median"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    columns = "T,heads,W,records,states,replay,states/\nrecords,replay/\nrecords,MiB,MiB,max\ndiff"
    for name in columns.split(","):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in report.operator:
        table.add_row(*_row(cell))
    return table


def _row(cell: OperatorCell) -> list[str]:
    times = [cell.records, cell.materialised, cell.replayed]
    replay = cell.replay_ratio
    return [
        str(cell.rounds),
        f"{cell.heads}x{cell.dim}",
        str(cell.width),
        *("-" if t is None else milliseconds(t.median_ms) for t in times),
        f"{cell.ratio:.1f}",
        "-" if replay is None else f"{replay:.1f}",
        f"{cell.record_bytes / MIB:.1f}",
        f"{cell.materialised_bytes / MIB:.0f}",
        f"{cell.max_difference:.0e}",
    ]
