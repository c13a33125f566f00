"""`relaygr bench relay`: the relay against ranking inline, on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from relaygr.bench.length_plot import check_plots
from relaygr.cli.bench_relay_tables import print_report
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError

_QUICK_MINUTES, _FULL_MINUTES = 4.5, 55.0


def relay(
    *,
    quick: bool = False,
    twin: bool = False,
    preset: str | None = None,
    dtype: Literal["auto", "fp32", "bf16"] | None = None,
    minutes: float | None = None,
    seed: int = 0,
    json: Path | None = None,
    svg: Path | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """How much longer histories, and how many more requests, the relay serves within the same budgets.

    Servers of its own serve a model with random weights; a simulator of the measured speed says where to
    look, and real loads confirm it. The time unit is tau, a full pass over 2,048 history tokens and 128
    candidates. Exit status 1 if the baseline never passed.

    Parameters
    ----------
    quick: bool
        Under 5 minutes: hstu-tiny, one seed, a budget of 2 tau. Otherwise up to an hour.
    twin: bool
        Only hold the simulator against two real servers.
    preset: str | None
        Size of the model; hstu-small unless --quick or --twin.
    dtype: Literal["auto", "fp32", "bf16"] | None
        Of the model; auto is the faster one. By default fp32 with --quick or --twin, whose times scatter less
        where others share the processor, and auto otherwise.
    minutes: float | None
        What all of it may take.
    json: Path | None
        Also write the report to this file.
    svg: Path | None
        Also draw it to this file.
    set: tuple[str, ...]
        Settings of the servers and the simulator, as `section.key=value`; can be given many times.
    """
    check_file("--json", json)
    check_file("--svg", svg)
    if svg is not None:
        check_plots()
    from relaygr.bench.relay import bench_relay
    from relaygr.bench.relay_spec import RelaySpec

    if quick and twin:
        raise ConfigError("--twin", "is another run than --quick")
    spec = RelaySpec(
        preset=preset or ("hstu-tiny" if quick or twin else "hstu-small"),
        dtype=dtype or ("fp32" if quick or twin else "auto"),
        quick=quick,
        twin=twin,
        minutes=minutes or (_QUICK_MINUTES if quick else _FULL_MINUTES),
        seed=seed,
        own=set,
    )
    err = Console(stderr=True)
    report = bench_relay(spec, lambda text: err.print(text, markup=False, highlight=False, soft_wrap=True))
    write_json(json, report)
    if svg is not None:
        from relaygr.bench.relay_plot import relay_svg

        _write(svg, relay_svg(report))
    print_report(Console(), report)
    return 1 if any(one.base.best is None for one in report.experiments) else 0


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--svg", f"{file} cannot be written: {error.strerror}") from error
