"""What `relaygr cache` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.core.units import format_bytes
from relaygr.sim.cache.compare import Comparison, Verdict
from relaygr.sim.cache.compare import Table as Compared
from relaygr.sim.cache.curve import Curve, Point, Stock
from relaygr.sim.cache.hits import Hits

_LEGEND = (
    "request, token, cost: share of the requests that found any of their history, of the tokens and of the "
    "cost that were reused, after a warm-up of the first third; top: the first-touch ceiling, what a cache "
    "without limits would reach"
)
_MORE = (
    "returning: cost-hit of users who came before; users: entries at the end; load, store, drop: bytes read "
    "by hits, written, and lost by eviction"
)


def print_stock(console: Console, stock: Stock) -> None:
    day, late = stock.ceiling_day, stock.ceiling
    lines = (
        f"{stock.name}: {stock.requests:,} requests of {stock.users:,} users in {stock.hours:.1f} h,",
        f"{day.tokens:,} tokens; footprint {format_bytes(stock.footprint_bytes)},",
        f"{format_bytes(round(stock.user_bytes))} a user; shares are of {format_bytes(stock.base_bytes)}.",
        f"Ceilings of requests, tokens, cost: {_three(day)} of all, {_three(late)} after the warm-up",
    )
    console.print(" ".join(lines), soft_wrap=True, highlight=False, markup=False)


def print_curve(console: Console, curve: Curve) -> None:
    print_stock(console, curve.stock)
    console.print(curve_table(curve))
    more = _table("", "capacity", "policy", "returning", "users", "load", "store", "drop")
    for point in curve.points:
        more.add_row(escape(point.capacity), point.policy, *_moves(point))
    console.print(more)
    console.print(f"{_LEGEND}; {_MORE}; {curve.seconds:.0f} s", soft_wrap=True, highlight=False)
    print_warnings(console, curve.warnings)


def curve_table(curve: Curve) -> Table:
    """The three ratios of each point, with the ceiling beside each."""
    top = curve.stock.ceiling
    table = _table("", "capacity", "policy", "request", "top", "token", "top", "cost", "top")
    for point in curve.points:
        hits = point.replay.hits.all
        pairs = (
            (hits.request_hit, top.request_hit),
            (hits.token_hit, top.token_hit),
            (hits.cost_hit, top.cost_hit),
        )
        shares = (_share(value) for pair in pairs for value in pair)
        table.add_row(escape(point.capacity), point.policy, *shares)
    return table


def print_warnings(console: Console, warnings: Sequence[str]) -> None:
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, highlight=False, markup=False)


def print_comparison(console: Console, found: Comparison) -> None:
    for table in found.tables:
        curve = table.curve
        print_stock(console, curve.stock)
        capacities = list(dict.fromkeys(point.capacity for point in curve.points))
        shown = _table("cost-hit", "policy", *capacities, "top")
        top = _share(curve.stock.ceiling.cost_hit)
        for policy in dict.fromkeys(point.policy for point in curve.points):
            row = (_share(curve.point(policy, one).replay.hits.all.cost_hit) for one in capacities)
            shown.add_row(policy, *row, top)
        console.print(shown)
        console.print(_verdicts(table))
        print_warnings(console, curve.warnings)
    console.print(f"{_LEGEND}; seed {found.spec.seed}", soft_wrap=True, highlight=False)


def _verdicts(table: Compared) -> Table:
    shown = _table("the default", "capacity", "cost", "best", "", "behind", "over LRU", "wanted", "passes")
    for one in table.verdicts:
        shown.add_row(*_verdict(one))
    return shown


def _verdict(one: Verdict) -> tuple[str, ...]:
    wanted = "-0.01" if one.wanted_gain is None else f"{one.wanted_gain:+.2f}"
    return (
        one.capacity,
        _share(one.cost_hit),
        one.best_policy,
        _share(one.best),
        f"{one.best - one.cost_hit:.4f}",
        f"{one.cost_hit - one.lru:+.4f}",
        wanted,
        "yes" if one.passes else "NO",
    )


def _moves(point: Point) -> tuple[str, ...]:
    moves = point.replay.moves
    sizes = (moves.loaded_bytes, moves.stored_bytes, moves.dropped_bytes)
    return (
        _share(point.replay.hits.returning.cost_hit),
        f"{point.replay.users_end:,}",
        *(format_bytes(size) for size in sizes),
    )


def _three(hits: Hits) -> str:
    return ", ".join(map(_share, (hits.request_hit, hits.token_hit, hits.cost_hit)))


def _share(value: float) -> str:
    return f"{value:.4f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 or name == "policy" else "right", no_wrap=True)
    return table
