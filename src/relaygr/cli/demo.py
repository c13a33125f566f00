"""`relaygr demo`: train a small ranker, replay held-out requests, and show what the relay buys."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Literal

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.demo import SYNTH, DemoSpec, run_demo, train_settings
from relaygr.bench.demo_html import demo_html
from relaygr.bench.demo_result import DemoReport, LatencySection, ModeStats, Quality
from relaygr.bench.demo_stats import unbeaten
from relaygr.cli.report import write_json
from relaygr.cli.steps import Steps
from relaygr.config.paths import check_file, check_folder


def demo(
    *,
    events: Path | None = None,
    git: Path | None = None,
    out: Path = Path("out"),
    max_minutes: float = 1.5,
    max_steps: int | None = None,
    requests: int = 200,
    preset: str = "hstu-tiny",
    dtype: Literal["fp32", "bf16", "auto"] = "fp32",
    seed: int = 0,
    history: int = 0,
    model: Path | None = None,
    lead_ms: float = 80.0,
    large_preset: str = "hstu-small",
    large_requests: int = 24,
) -> None:
    """Show the relay on this machine: train shortly, then serve held-out requests with and without it.

    Parameters
    ----------
    events: Path | None
        Folder of a dataset; without one, long synthetic histories are made in OUT/events.
    git: Path | None
        Make OUT/events from the history of this local repository instead: authors are users, paths are items.
    out: Path
        Folder of demo.json, demo.html, and what was made on the way.
    max_minutes: float
        Wall-clock limit of the training run.
    max_steps: int | None
        Limit on its steps. A run that ends by steps is reproducible up to rounding, by the clock
        not.
    requests: int
        Held-out requests to replay, in time order.
    preset: str
        Size of the model that is trained.
    history: int
        Use only so many latest events of a user; 0 uses all.
    model: Path | None
        Use this ranker and train nothing.
    lead_ms: float
        Modelled work between retrieval and ranking, which other machines would do: a plain wait.
    large_preset: str
        Also time this size, with random weights; "" does not.
    large_requests: int
        Requests for it.
    """
    data, page = out / "demo.json", out / "demo.html"
    check_folder("--out", out)
    for file in (data, page):
        check_file("--out", file)
    made = msgspec.structs.replace(SYNTH, seed=seed)
    spec = DemoSpec(
        out=out,
        events=events,
        git=git,
        model=model,
        synth=made,
        train=train_settings(max_minutes, max_steps, seed),
        preset=preset,
        dtype=dtype,
        requests=requests,
        lead_ms=lead_ms,
        history=history,
        large_preset=large_preset,
        large_requests=large_requests,
        seed=seed,
        command=shlex.join(["relaygr", *sys.argv[1:]]),
    )
    with Steps() as steps:
        report = run_demo(spec, steps.show)
    write_json(data, report, "--out")
    page.write_text(demo_html(report), encoding="utf-8")
    console = Console()
    _print(console, report)
    _print_next(console, report, model or out / "model", data, page)


def _print(console: Console, report: DemoReport) -> None:
    for section in report.latency:
        console.print(_latency_table(section))
        console.print(_bucket_table(section))
    console.print(_quality_table(report.quality))
    lost = unbeaten(report.quality)
    if lost:
        console.print(f"The ranker does not beat: {', '.join(lost)}.", style="yellow", highlight=False)
    cascade, machine = report.cascade, report.machine
    console.print(
        f"Real: prefetch thread, retrieval ({cascade.retrieval_ms_p50:.2f} ms over "
        f"{cascade.catalogue_items:,} items, recall {cascade.recall:.0%}) and ranking, on {machine.cpu}, "
        f"{machine.cores} cores, {machine.threads} thread(s). Modelled: {cascade.lead_ms:g} ms of upstream "
        "work, a plain wait.",
        highlight=False,
    )
    training = report.training
    if training is not None and not training.reproducible:
        console.print(
            f"Training ended by the clock after {training.steps} steps: weights, and so quality, differ from "
            "run to run.",
            style="yellow",
            highlight=False,
        )


def _latency_table(section: LatencySection) -> Table:
    title = f"rank latency, {section.model} ({section.weights} weights), {section.dtype}"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("mode", no_wrap=True)
    for name in ("P50", "P99", "mean", "max", "total", "tokens", "ahead", "READY", "differ", "top10"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in section.modes:
        table.add_row(
            row.mode.replace("relay, ", ""),
            *(
                _ms(ms)
                for ms in (
                    row.rank_p50_ms,
                    row.rank_p99_ms,
                    row.rank_mean_ms,
                    row.rank_max_ms,
                    row.total_p50_ms,
                )
            ),
            f"{row.rank_computed:,.0f}",
            f"{row.prefetch_computed:,.0f}",
            f"{row.ready:.0%}" if row.prefetch_p50_ms else "-",
            f"{row.largest_difference:.0e}",
            f"{row.top10_same:.0%}",
        )
    table.caption = (
        f"{section.modes[0].requests} requests; ms; total: P50 from arrival, lead included; tokens, "
        "ahead: mean history tokens computed in the rank call and before it; differ: largest logit "
        "difference to inline"
    )
    return table


def _bucket_table(section: LatencySection) -> Table:
    title = "P50 ms and READY share by events in the history; gain: inline / relay"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("events", no_wrap=True)
    for name in ("n", "inline", "relay", "returning", "gain", "READY", "returning"):
        table.add_column(name, justify="right", no_wrap=True)
    for bucket in section.buckets:
        inline, relay, returning = bucket.modes
        table.add_row(
            f"{bucket.low + 1:,}-{bucket.high:,}",
            f"{inline.requests}",
            *(_ms(each.rank_p50_ms) for each in bucket.modes),
            _ratio(inline, relay),
            f"{relay.ready:.0%}",
            f"{returning.ready:.0%}",
        )
    return table


def _ms(ms: float) -> str:
    return f"{ms:.1f}" if ms < 100 else f"{ms:,.0f}"


def _ratio(inline: ModeStats, relay: ModeStats) -> str:
    return f"{inline.rank_p50_ms / relay.rank_p50_ms:.1f}x"


def _quality_table(rows: tuple[Quality, ...]) -> Table:
    table = Table(title="quality against the items that came next", box=box.SIMPLE_HEAD)
    table.add_column("candidates")
    table.add_column("order")
    for name in ("requests", "NDCG@10", "HR@10"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.candidates, row.order, f"{row.requests}", f"{row.ndcg:.4f}", f"{row.hr:.4f}")
    return table


def _print_next(console: Console, report: DemoReport, model: Path, data: Path, page: Path) -> None:
    lines = [
        f"Everything took {report.seconds:.0f} s. Results: {data} and {page}",
        "With your own events (a CSV file with a header, one row an event):",
        "  relaygr data csv clicks.csv --user-column user_id --item-column item_id --time-column timestamp "
        "--out mydata",
        "  relaygr train ranker --events mydata --out mymodel --max-minutes 10",
        "  relaygr verify --model mymodel --events mydata",
        "  relaygr demo --events mydata --model mymodel --out out-mine",
        "Check the model of this run:",
        f"  relaygr verify --model {shlex.quote(str(model))} --events {shlex.quote(report.data.path)}",
    ]
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
