"""`relaygr calibrate`: time a model on this machine and print what its passes and budgets are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from relaygr.config.paths import check_file
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.calibrate import LONG_S, MAX_S, calibrate
from relaygr.engine.engine import Engine
from relaygr.relay.budgets import TAU_CANDIDATES, TAU_HISTORY, auto_budgets, tau_ms
from relaygr.relay.calibration import Calibration, save_calibration

_LEGEND = (
    "T(q, ctx, c) = t0 + t1 (q + c) + t2 (q ctx + q (q + 1) / 2 + c (ctx + q + 1)): q new and ctx cached "
    "history tokens, c candidates; a chunk of a pre-inference has t_launch in place of t0. error: median "
    "over fit; k99: 99th percentile of measured over fitted time; tau: fitted time of a full pass over "
    f"{TAU_HISTORY:,} history tokens and {TAU_CANDIDATES} candidates"
)


def calibrate_command(
    *,
    model: Path,
    json: Path | None = None,
    seconds: float = LONG_S,
    dtype: Literal["fp32", "bf16", "auto"] = "auto",
    threads: int = 0,
) -> None:
    """Time a model on this machine and fit the latency model that budgets and admission use.

    Parameters
    ----------
    model: Path
        Folder of a ranker.
    json: Path | None
        Write the calibration to this file; a server with the same model on the same machine can read it.
    seconds: float
        About how long to measure; up to 3 on a coarse grid.
    dtype: Literal["fp32", "bf16", "auto"]
        Of the engine; auto takes what is fastest here.
    threads: int
        Of the matrix products; 0 leaves one core free, as a server does.
    """
    if not 0 < seconds <= MAX_S:
        raise ConfigError("--seconds", f"{seconds} must be in (0, {MAX_S:g}]")
    check_file("--json", json)
    config = EngineConfig(dtype=dtype, threads=threads)
    with Console(stderr=True).status("measuring"):
        engine = Engine.load(model, config)
        calibration = calibrate(engine, seconds)
    if json is not None:
        save_calibration(json, calibration)
    console = Console()
    build = calibration.build
    console.print(
        f"{model}: {build.dtype}, kernel {build.kernel}, {build.threads} threads, {build.machine}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    console.print(_points(calibration))
    console.print(_coefficients(calibration))
    console.print(_budgets(calibration, config.page_tokens, engine.model_config.max_seq_len))
    console.print(_LEGEND, soft_wrap=True, markup=False, highlight=False)


def _points(calibration: Calibration) -> Table:
    table = Table(title="milliseconds by shape", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("pass", no_wrap=True)
    for name in ("new", "cached", "cand.", "runs", "least", "median", "fit", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(
        calibration.points, key=lambda p: (p.shape.chunk, p.shape.cached_tokens, p.shape.new_tokens)
    )
    for point in ordered:
        shape = point.shape
        table.add_row(
            "chunk" if shape.chunk else "rank",
            f"{shape.new_tokens:,}",
            f"{shape.cached_tokens:,}",
            f"{shape.candidates:,}",
            f"{len(point.times_ms):,}",
            f"{min(point.times_ms):.2f}",
            f"{point.median_ms:.2f}",
            f"{calibration.coefficients.batch_ms([shape]):.2f}",
            f"{calibration.error(point):+.0%}",
        )
    return table


def _coefficients(calibration: Calibration) -> Table:
    found, error = calibration.coefficients, calibration.model().error()
    table = Table("fit", "value", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[1].justify = "right"
    for name, value in (
        ("t0, ms a rank pass", f"{found.t0_ms:.4g}"),
        ("t_launch, ms a chunk", f"{found.t_launch_ms:.4g}"),
        ("t1, ms a token", f"{found.t1_ms:.4g}"),
        ("t2, ms a token and a key", f"{found.t2_ms:.4g}"),
        ("t1c, ms a candidate", "as t1" if found.t1c_ms is None else f"{found.t1c_ms:.4g}"),
        ("t2c, ms a candidate and a key", "as t2" if found.t2c_ms is None else f"{found.t2c_ms:.4g}"),
        ("k99", f"{error.p99:.2f}"),
        ("measured / fitted, median", f"{error.median:.2f}"),
        ("mean error of a pass", f"{error.mean_error:.0%}"),
    ):
        table.add_row(name, value)
    return table


def _budgets(calibration: Calibration, page_tokens: int, max_tokens: int) -> Table:
    found = calibration.coefficients
    title = f"auto budgets, tau {tau_ms(found):.1f} ms"
    table = Table("setting", "ms", title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[1].justify = "right"
    for name, value in asdict(auto_budgets(found, page_tokens, max_tokens)).items():
        table.add_row(name, "b_rank - hit - guard" if value is None else f"{value:.1f}")
    return table
