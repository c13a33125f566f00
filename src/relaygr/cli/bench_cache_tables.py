"""The tables of `relaygr bench cache`."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from relaygr.bench.cache import DEVICE, DEVICE_HOST, DEVICE_HOST_DISK, DEVICE_HOST_INT8, NONE
from relaygr.bench.cache_control import ControlReport
from relaygr.bench.cache_report import CacheReport, Workload
from relaygr.core.units import GIB, MIB
from relaygr.sim.cache.curve import Curve

_NAMES = {
    NONE: "nowhere",
    DEVICE: "device",
    DEVICE_HOST: "+ host",
    DEVICE_HOST_INT8: "+ int8",
    DEVICE_HOST_DISK: "+ disk",
}
_LEGEND = (
    "per s, speed-up, P50, P99: visits that are not their user's first, medians of rounds; copies to the "
    "host count as time, except in P50 and P99; request, token, cost: hits of all visits, first ones "
    "included, beside the ceiling that these leave; from host: of these; late: copies that were not there "
    "in time; diff: largest difference of a logit from no reuse"
)


def print_report(console: Console, report: CacheReport) -> None:
    machine = report.machine
    console.print(
        f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads, torch {machine.torch}; "
        f"{report.preset} with random weights, {report.dtype}, {report.candidates} candidates",
        soft_wrap=True,
        markup=False,
    )
    for work in report.workloads:
        console.print(_speeds(work))
        console.print(_hits(work))
    console.print(_LEGEND, soft_wrap=True, markup=False)
    if report.policies is not None:
        console.print(_policies(report.policies))
        for warning in report.policies.warnings:
            console.print(warning, soft_wrap=True, markup=False)
    print_control(console, report.control)


def print_control(console: Console, report: ControlReport) -> None:
    table = _compact(
        f"Books on one core, batch {report.batch}, {report.tokens} tokens + {report.new_tokens}: microseconds"
    )
    table.add_column("a user")
    table.add_column("median", justify="right")
    table.add_column("P99", justify="right")
    for step in report.steps:
        table.add_row(step.name, f"{step.median_us:.1f}", f"{step.p99_us:.0f}")
    table.add_section()
    table.add_row("host hit: lookup, choice, plan, room", f"{report.host_hit_us:.1f}", "")
    table.add_row("device hit: lookup, room", f"{report.device_hit_us:.1f}", "")
    console.print(table)
    console.print(
        f"target {report.target_us:.0f} us a user; {report.samples} users behind each median", markup=False
    )


def _speeds(work: Workload) -> Table:
    ended = f" of {work.planned} planned" if work.visits < work.planned else ""
    table = _compact(
        f"{work.name}: {work.visits} visits{ended}, {work.users} users, {work.mean_tokens:.0f} tokens on "
        f"average, {_size(work.footprint_bytes)} in all"
    )
    table.add_column("states\nin", no_wrap=True)
    for name in ("device", "host", "per s", "speed-\nup", "of rounds", "P50\nms", "P99\nms", "spill"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in work.arms:
        table.add_row(
            _NAMES[arm.name],
            _size(arm.device_bytes),
            _size(arm.host_bytes),
            f"{arm.per_s:.2f}",
            f"{arm.speedup:.2f}",
            f"{arm.speedup_least:.2f}-{arm.speedup_most:.2f}",
            f"{arm.latency.p50_ms:.1f}",
            f"{arm.latency.p99_ms:.1f}",
            f"{arm.spill_share:.1%}",
        )
    return table


def _hits(work: Workload) -> Table:
    table = _compact(f"{work.name}: hits of all visits, by tier, and what was moved")
    table.add_column("states\nin", no_wrap=True)
    for name in ("re-\nquest", "token", "cost", "from\nhost", "\ntoken", "late", "loaded", "stored", "diff"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in work.arms:
        hits, tiers = arm.hits, arm.tiers
        shares = (hits.request_hit, hits.token_hit, hits.cost_hit, tiers.host_requests, tiers.host_tokens)
        table.add_row(
            _NAMES[arm.name],
            *(f"{share:.1%}" for share in shares),
            f"{arm.late_loads}",
            _size(arm.loaded_bytes),
            _size(arm.stored_bytes),
            f"{arm.max_score_diff:.0e}",
        )
    most = work.ceiling
    table.add_section()
    table.add_row("ceiling", *(f"{share:.1%}" for share in (most.request_hit, most.token_hit, most.cost_hit)))
    return table


def _policies(curve: Curve) -> Table:
    stock = curve.stock
    capacities = list(dict.fromkeys(point.capacity for point in curve.points))
    table = _compact(
        f"{stock.name}: cost-hit, one tier of whole users, {stock.requests:,} requests of {stock.users:,}"
    )
    table.add_column("policy")
    for capacity in capacities:
        table.add_column(capacity, justify="right")
    for policy in dict.fromkeys(point.policy for point in curve.points):
        found = (curve.point(policy, capacity).replay.hits.all.cost_hit for capacity in capacities)
        table.add_row(policy, *(f"{share:.1%}" for share in found))
    table.add_section()
    table.add_row("ceiling", *[f"{stock.ceiling.cost_hit:.1%}"] * len(capacities))
    return table


def _compact(title: str) -> Table:
    """A table that fits 80 columns as far as it can, the width rich takes where there is no terminal."""
    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _size(nbytes: int) -> str:
    """Short enough for a column."""
    return f"{nbytes / GIB:.1f}G" if nbytes >= GIB else f"{nbytes / MIB:.0f}M"
