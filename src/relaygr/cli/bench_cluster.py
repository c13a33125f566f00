"""`relaygr bench cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from relaygr.bench.cluster import bench_cluster
from relaygr.bench.cluster_spec import ClusterSpec, Part, ScaleSpec
from relaygr.cli.bench_beam_modes import numbers
from relaygr.cli.bench_cluster_tables import print_cluster
from relaygr.cli.cluster_client import ClusterClient
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file

_WHOLE, _SCALE = ClusterSpec(), ScaleSpec()


def cluster(
    *,
    json: Path | None = None,
    quick: bool = False,
    shape: Annotated[tuple[str, ...], Parameter(negative="")] = _WHOLE.shapes,
    part: Annotated[tuple[Part, ...], Parameter(negative="")] = _WHOLE.parts,
    replicas: int = _WHOLE.replicas,
    users: int | None = None,
    rate: float | None = None,
    phase_s: float | None = None,
    scale: str | None = None,
    scale_rounds: int | None = None,
    scale_window_s: float | None = None,
    scale_preset: str = _SCALE.preset,
    scale_events: int = _SCALE.events,
) -> None:
    """Replicas on this machine: what more of them give, and what a kill, an addition and a new model cost.

    Of the parts, `chaos` loads every shape while its members and its model change, and `scale` the first
    shape with more and more replicas, as much as they take.

    Parameters
    ----------
    json: Path | None
        Also write the report to this file.
    quick: bool
        Where not given: fewer users (100), a lower rate (20), shorter phases (3 s), 1 and 2 replicas, two
        rounds of 4 s.
    shape: tuple[str, ...]
        What is in front: `gateway`, `peers`, `envoy` or `ray`; can be given many times. The report's own
        figures are those of the first.
    part: tuple[Part, ...]
        `chaos` or `scale`; can be given many times.
    replicas: int
        How many run from the start, for `chaos`.
    users: int | None
        Drawn at random, 1,000 by default.
    rate: float | None
        Visits of two laps a second, open loop, 30 by default.
    phase_s: float | None
        Length of each phase, 20 s by default.
    scale: str | None
        Numbers of replicas, `1,2,4` by default.
    scale_rounds: int | None
        Measurements of each, by turns; 5 by default.
    scale_window_s: float | None
        Length of one, 8 s by default.
    scale_preset: str
        Size of the model.
    scale_events: int
        Of each visit's history.
    """
    spec = ClusterSpec(
        shapes=shape,
        parts=part,
        replicas=replicas,
        users=users if users is not None else 100 if quick else _WHOLE.users,
        rate=rate if rate is not None else 20.0 if quick else _WHOLE.rate,
        phase_s=phase_s if phase_s is not None else 3.0 if quick else _WHOLE.phase_s,
        scale=ScaleSpec(
            counts=numbers("--scale", scale) if scale is not None else (1, 2) if quick else _SCALE.counts,
            rounds=scale_rounds if scale_rounds is not None else 2 if quick else _SCALE.rounds,
            window_s=scale_window_s if scale_window_s is not None else 4.0 if quick else _SCALE.window_s,
            preset=scale_preset,
            events=scale_events,
        ),
    )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_cluster(spec, ClusterClient, lambda text: status.update(escape(text)))
    write_json(json, report)
    print_cluster(Console(), report)
