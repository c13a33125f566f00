"""`relaygr bench cache`: what keeping user states between requests is worth on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from relaygr.bench.cache import CacheSpec, bench_cache
from relaygr.bench.cache_control import ControlSpec, bench_control
from relaygr.cache.policies import POLICIES
from relaygr.cli.bench_cache_tables import print_control, print_report
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError

_QUICK = {"visits": 120, "users": 24, "minutes": 1.0, "rounds": 3, "policy_users": 2000}


def cache(
    *,
    quick: bool = False,
    control: bool = False,
    preset: str = CacheSpec().preset,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    trace: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    visits: int | None = None,
    users: int | None = None,
    candidates: int = 128,
    max_history: int = 4096,
    device_share: float = 0.25,
    minutes: float | None = None,
    policies: str | None = None,
    threads: int = 0,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Replay users who come back on real engines: without reuse, with device memory, with host memory too.

    Each visit adds a few events and ranks candidates. All engines take turns at each visit, so that a slow
    second of the machine hits all alike; weights are random. A generated trace comes first.

    Parameters
    ----------
    quick: bool
        Under 3 minutes: 120 visits of 24 users, one minute a trace.
    control: bool
        Only what the books cost a user, in microseconds.
    preset: str
        Size of the model.
    dtype: Literal["auto", "fp32", "bf16"]
        Of the model; auto is the faster one.
    trace: tuple[Path, ...]
        Also replay the last visits of this trace or event log; can be given many times. Lengths and order
        are those of the file, the events themselves are made up.
    visits: int | None
        Of each trace.
    users: int | None
        Of the generated trace.
    max_history: int
        Longest history, in events.
    device_share: float
        What the device holds, as a share of what all users take.
    minutes: float | None
        What a trace may take; it ends early then.
    policies: str | None
        Comma-separated replacement policies to replay at four capacities, or `all`; `none` leaves them out.
    threads: int
        Of the matrix products; 0 leaves one core free, as a server does.
    json: Path | None
        Also write the report to this file.
    """
    check_file("--json", json)
    console = Console()
    if control:
        books = bench_control(ControlSpec())
        write_json(json, books)
        print_control(console, books)
        return
    given = {"visits": visits, "users": users, "minutes": minutes}
    sizes = (_QUICK if quick else {}) | {name: value for name, value in given.items() if value is not None}
    spec = CacheSpec(
        preset=preset,
        dtype=dtype,
        traces=trace,
        candidates=candidates,
        max_history=max_history,
        device_share=device_share,
        policies=_policies(policies, quick),
        threads=threads,
        seed=seed,
        **sizes,  # type: ignore[arg-type]
    )
    with Console(stderr=True).status("starting") as status:
        report = bench_cache(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    print_report(console, report)


def _policies(text: str | None, quick: bool) -> tuple[str, ...]:
    if text is None:
        return ("lru", "gd_cost") if quick else POLICIES
    if text == "none":
        return ()
    chosen = POLICIES if text == "all" else tuple(part.strip() for part in text.split(","))
    for policy in chosen:
        if policy not in POLICIES:
            raise ConfigError("--policies", f"{policy!r} is none of {', '.join(POLICIES)}")
    return chosen
