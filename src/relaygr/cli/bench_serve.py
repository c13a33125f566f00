"""`relaygr bench serve` and `relaygr bench soak`: load and endurance of the HTTP service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from relaygr.bench.length_plot import check_plots
from relaygr.bench.serve_report import ServeReport
from relaygr.bench.serve_spec import POISSON, LoadSpec, SloSpec, check_tools
from relaygr.cli.bench_serve_tables import print_quick, print_report, print_soak
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.config.sizes import parse_bytes
from relaygr.core.errors import ConfigError

_URL = "http://127.0.0.1:8080"


def serve(
    url: str = _URL,
    *,
    quick: bool = False,
    preset: str = "hstu-small",
    pairs: int = 5,
    rate: float = 20.0,
    arrivals: str = POISSON,
    duration: float = 10.0,
    warmup: float = 2.0,
    users: int = 64,
    history: int = 1024,
    skew: float = 0.0,
    candidates: int = 128,
    new_events: int = 1,
    items: int = 50_000,
    prefix: bool = True,
    lead_ms: float = 80.0,
    deadline_ms: float = 1000.0,
    timeout_ms: float = 10_000.0,
    connections: int = 512,
    find_slo: bool = False,
    slo_ms: float = 50.0,
    slo_share: float = 0.99,
    slo_resolution: float = 0.05,
    slo_probes: int = 24,
    api_key: str = "",
    tenant: str = "",
    seed: int = 0,
    json: Path | None = None,
    svg: Path | None = None,
) -> int:
    """Load a running server at a fixed rate, whatever it answers; times count from when a request was due.

    Users are stored before and deleted after. A visit is a prefix signal and, later, a ranking. Exit status 1
    if a request failed, or if no rate passes.

    With --quick it starts a server of its own, with a random model, and measures what HTTP adds to a ranking
    and what pre-inference adds to its P99; of the options, --preset, --pairs, --history, --candidates,
    --rate, --duration and --seed count.

    Parameters
    ----------
    url: str
        Where the server is.
    preset: str
        With --quick: size of the model.
    pairs: int
        With --quick: loads with and without pre-inference.
    rate: float
        Visits a second; with --find-slo, where the search begins.
    arrivals: str
        `poisson`, or a CSV file (plain or gzip) with a column TIMESTAMP, scaled to the rate.
    duration: float
        Measured seconds of one load.
    warmup: float
        Seconds before that, which are not counted.
    skew: float
        Zipf exponent of the users' popularity; 0 draws all alike.
    new_events: int
        Appended before each visit.
    prefix: bool
        Send prefix signals.
    lead_ms: float
        From the prefix signal to the ranking.
    connections: int
        Most requests on their way at once; what comes beyond is not sent, and counted.
    find_slo: bool
        Double the rate until it fails, then bisect: the highest at which enough is good within --slo-ms.
    slo_share: float
        Share of the visits that must be answered, with the whole history, in time.
    json: Path | None
        Also write the report to this file.
    svg: Path | None
        Also draw it to this file.
    """
    _check_outputs(json, svg)
    if quick:
        return _quick(preset, history, candidates, rate, duration, pairs, seed, json)
    spec = LoadSpec(
        url=url,
        rate=rate,
        arrivals=arrivals,
        duration_s=duration,
        warmup_s=warmup,
        users=users,
        history=history,
        skew=skew,
        candidates=candidates,
        new_events=new_events,
        items=items,
        prefix=prefix,
        lead_ms=lead_ms,
        deadline_ms=deadline_ms,
        timeout_ms=timeout_ms,
        connections=connections,
        api_key=api_key,
        tenant=tenant,
        seed=seed,
    )
    slo = SloSpec(slo_ms=slo_ms, share=slo_share, resolution=slo_resolution, most=slo_probes)
    # Here, because the tools are an extra.
    from relaygr.bench.serve import bench_serve

    with Console(stderr=True).status("starting") as status:
        report = bench_serve(spec, slo if find_slo else None, _shown(status))
    write_json(json, report)
    _write_svg(svg, report)
    return print_report(Console(), report)


def soak(
    *,
    requests: int = 20_000,
    workers: int = 8,
    users: int = 64,
    preset: str = "hstu-tiny",
    sample: float = 0.1,
    max_growth: str = "256MiB",
    seed: int = 0,
    json: Path | None = None,
) -> int:
    """Send mixed requests, good, bad and given up, to a server of its own; exit status 1 on any violation.

    Two models are reloaded in turn. Rankings are scored again in this process, counts of events are compared
    with what was sent, and memory, leases and connections have to be back at the end.

    Parameters
    ----------
    workers: int
        Requests at once.
    preset: str
        Size of the models; weights are random.
    sample: float
        Share of the rankings that are scored again.
    max_growth: str
        Memory that the server may have gained since its first requests.
    json: Path | None
        Also write the report to this file.
    """
    check_tools()
    check_file("--json", json)
    from relaygr.bench.soak import SoakSpec, bench_soak

    try:
        growth = parse_bytes(max_growth)
    except ValueError as error:
        raise ConfigError("--max-growth", str(error)) from error
    spec = SoakSpec(
        requests=requests,
        workers=workers,
        users=users,
        preset=preset,
        sample=sample,
        max_growth_bytes=growth,
        seed=seed,
    )
    with Console(stderr=True).status("starting") as status:
        report = bench_soak(spec, _shown(status))
    write_json(json, report)
    print_soak(Console(), report)
    return 1 if report.violations else 0


def _quick(
    preset: str,
    history: int,
    candidates: int,
    rate: float,
    duration: float,
    pairs: int,
    seed: int,
    json: Path | None,
) -> int:
    from relaygr.bench.serve_quick import QuickSpec, bench_quick

    spec = QuickSpec(
        preset=preset,
        history=history,
        candidates=candidates,
        rate=rate,
        seconds=duration,
        pairs=pairs,
        seed=seed,
    )
    with Console(stderr=True).status("starting") as status:
        report = bench_quick(spec, _shown(status))
    write_json(json, report)
    print_quick(Console(), report)
    return 1 if report.errors else 0


def _shown(status: Status) -> Callable[[str], None]:
    return lambda text: status.update(escape(text))


def _check_outputs(json: Path | None, svg: Path | None) -> None:
    check_tools()
    check_file("--json", json)
    check_file("--svg", svg)
    if svg is not None:
        check_plots()


def _write_svg(file: Path | None, report: ServeReport) -> None:
    if file is None:
        return
    from relaygr.bench.serve_plot import serve_svg

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(serve_svg(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--svg", f"{file} cannot be written: {error.strerror}") from error
