"""`relaygr simulate`: a fleet in virtual time, with the speed of a measured machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cyclopts import App
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from relaygr.cli.report import write_json
from relaygr.cli.simulate_options import Shared, SimOptions
from relaygr.cli.simulate_tables import print_load, print_report, print_size
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.sim.lab import Lab
from relaygr.sim.plot import check_plots, report_svg
from relaygr.sim.report import LoadReport, SizeReport, bare, everything
from relaygr.sim.sizing import size
from relaygr.sim.traffic import Regime
from relaygr.sim.variants import VARIANTS, variant

simulate_app = App(name="simulate", help="Serve a traffic with a simulated fleet, and find what it can do.")


@simulate_app.default
def all_command(
    *,
    quick: bool = False,
    instances: int = 4,
    json: Path | None = None,
    svg: Path | None = None,
    options: Shared = None,
) -> int:
    """Run all experiments, ablations and sweeps: longest history, highest rate, and what changes them.

    Parameters
    ----------
    quick: bool
        Fewer points of everything.
    instances: int
        Of ablations and sweeps; the experiments have one.
    json: Path | None
        Also write everything to this file.
    svg: Path | None
        Also draw it to this file.
    """
    chosen = options or SimOptions()
    _check_outputs(json, svg)
    with Console(stderr=True).status("simulating") as status:
        show = _shown(status)
        lab = Lab(chosen.world(), chosen.traffic(), chosen.all_seeds(), show)
        report = everything(lab, quick=quick, instances=instances, progress=show)
    write_json(json, report)
    if svg is not None:
        _write(svg, report_svg(report))
    print_report(Console(), report)
    return 0


@simulate_app.command(name="load")
def load_command(
    *,
    rate: float,
    length: int = 2048,
    regime: Regime = "sessions",
    users: int = 0,
    instances: int = 1,
    variants: tuple[str, ...] = tuple(one.name for one in VARIANTS),
    json: Path | None = None,
    options: Shared = None,
) -> int:
    """Serve one load with several variants, and print what became of it.

    Parameters
    ----------
    rate: float
        Requests a second, of all instances together.
    length: int
        History tokens.
    regime: Regime
        Users who come once, in sessions, or by Zipf's law.
    users: int
        That there are; of sessions, 0 makes each session a user of its own.
    variants: tuple[str, ...]
        Ways to serve, by name.
    json: Path | None
        Also write the results to this file.
    """
    chosen = options or SimOptions()
    check_file("--json", json)
    ways = [variant(name) for name in variants]
    began = time.monotonic()
    traffic = replace(chosen.traffic(), regime=regime, users=users)
    lab = Lab(chosen.world(instances), traffic, chosen.all_seeds())
    with Console(stderr=True).status("simulating") as status:
        show, results = _shown(status), []
        for way in ways:
            show(way.name)
            results.append(lab.serve(way, rate, length))
    report = LoadReport(
        world=bare(lab.world),
        traffic=replace(lab.traffic, rate=rate, length=length),
        tau_ms=1000 * lab.world.tau_s,
        variants=tuple(variants),
        results=tuple(results),
        seconds=time.monotonic() - began,
    )
    write_json(json, report)
    print_load(Console(), report)
    return 0


@simulate_app.command(name="size")
def size_command(
    *,
    rate: float,
    length: int = 2048,
    regime: Regime = "sessions",
    spread: float = 0.0,
    most: int = 1024,
    variants: tuple[str, ...] = ("inline_full", "relay_full"),
    json: Path | None = None,
    options: Shared = None,
) -> int:
    """Answer how many instances a traffic needs; exit status 1 if not even --most are enough.

    A load passes if 99 % of the requests get scores of their whole history within the rank budget, and 99.9 %
    get any within the request's.

    Parameters
    ----------
    rate: float
        Requests a second, of all instances together.
    length: int
        History tokens; with --spread the median of a log-normal law.
    spread: float
        Standard deviation of the logarithm of the lengths.
    most: int
        Instances that are tried at most.
    variants: tuple[str, ...]
        Ways to serve, by name.
    json: Path | None
        Also write the answer to this file.
    """
    chosen = options or SimOptions()
    check_file("--json", json)
    for name in variants:
        variant(name)
    began = time.monotonic()
    traffic = replace(chosen.traffic(), regime=regime, spread=spread)
    with Console(stderr=True).status("simulating") as status:
        lab = Lab(chosen.world(), traffic, chosen.all_seeds(), _shown(status))
        needs = size(lab, rate, length, variants, most)
    report = SizeReport(
        world=bare(lab.world),
        traffic=lab.traffic,
        tau_ms=1000 * lab.world.tau_s,
        rate=rate,
        length=length,
        needs=needs,
        seconds=time.monotonic() - began,
    )
    write_json(json, report)
    print_size(Console(), report)
    return 0 if all(need.instances is not None for need in needs) else 1


def _shown(status: Status) -> Callable[[str], None]:
    return lambda text: status.update(escape(text))


def _check_outputs(json: Path | None, svg: Path | None) -> None:
    check_file("--json", json)
    check_file("--svg", svg)
    if svg is not None:
        check_plots()


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--svg", f"{file} cannot be written: {error.strerror}") from error
