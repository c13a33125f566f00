"""What `relaygr plan cache` prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from relaygr.cli.cache_tables import curve_table, print_stock, print_warnings
from relaygr.core.units import format_bytes
from relaygr.sim.cache.plan import CachePlan
from relaygr.sim.cache.sizing import BreakEven, Tier


def print_plan(console: Console, plan: CachePlan) -> None:
    console.print(_sizes(plan))
    console.print(_tiers(plan))
    print_stock(console, plan.curve.stock)
    console.print(curve_table(plan.curve))
    if plan.links:
        console.print(_links(plan))
    else:
        console.print(
            "From which length on a copy is worth it needs --calibration, or --t1-ms and --t2-ms.",
            soft_wrap=True,
        )
    console.print(
        "users: with what the trace's users take on average; with host, with disk: the tier and those above "
        "it, in bytes of the device's format; break-even: from so many tokens on, copying a whole history is "
        "quicker than computing it",
        soft_wrap=True,
        highlight=False,
    )
    print_warnings(console, plan.curve.warnings)


def _sizes(plan: CachePlan) -> Table:
    shape, tiers = plan.shape, plan.tiers
    title = f"{shape.layers} layers x {shape.heads} heads x ({shape.qk_dim} + {shape.v_dim}), {tiers.dtype}"
    table = _table(title, "what", "value")
    lower = f"bytes per token below, {tiers.lower_dtype}"
    for row in (
        ("bytes per token", format_bytes(plan.token_bytes)),
        (lower, format_bytes(plan.lower_token_bytes)),
        (f"a user of {tiers.full_tokens:,} tokens", format_bytes(plan.full_user_bytes)),
        ("a million of them", format_bytes(plan.many_bytes)),
        (f"staging, 4 buffers of {tiers.staging_tokens:,} tokens", format_bytes(plan.staging_bytes)),
    ):
        table.add_row(*row)
    return table


def _tiers(plan: CachePlan) -> Table:
    title = f"tiers, {plan.tiers.mode}"
    table = _table(title, "tier", "size", "unit", "tokens", "full users", "users")
    for tier in plan.rooms:
        table.add_row(*_tier(tier))
    return table


def _tier(tier: Tier) -> tuple[str, ...]:
    return (
        tier.name,
        format_bytes(tier.nbytes),
        f"{tier.unit_tokens:,}",
        f"{tier.tokens:,}",
        f"{tier.full_users:,}",
        f"{tier.users:,}",
    )


def _links(plan: CachePlan) -> Table:
    tokens = plan.links[0].tokens
    title = f"copy or compute; milliseconds of {tokens:,} tokens"
    table = _table(title, "from", "GB/s", "break-even", "compute", "copy", "best", "copied")
    for link in plan.links:
        table.add_row(*_link(link))
    return table


def _link(link: BreakEven) -> tuple[str, ...]:
    whole = "never" if link.from_tokens is None else f"{link.from_tokens:,}"
    times = (f"{ms:.2f}" for ms in (link.recompute_ms, link.load_ms, link.best_ms))
    return link.link, f"{link.bytes_per_s / 1e9:g}", whole, *times, f"{link.split_tokens:,}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    return table
