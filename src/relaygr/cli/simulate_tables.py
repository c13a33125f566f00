"""What `relaygr simulate` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from relaygr.sim.experiments import Experiment
from relaygr.sim.protocol import Search
from relaygr.sim.report import LoadReport, Report, SizeReport
from relaygr.sim.sweeps import Scale, Sweep
from relaygr.sim.tally import Count, Result
from relaygr.sim.world import World

_PAPER_LENGTH, _PAPER_RATE = "1.5", "3.6"  # its maxima, on other hardware, models and data
_HEAD = ("users", "budget", "cand.")
_COLUMNS = ("P99", "hit", "ahead", "inline", "busy")
_LEGEND = (
    "good: scores of the whole history within the rank budget; valid: of any within the request's; P50, P99: "
    "milliseconds from the time ranking was due; hit: rankings that found their prefix complete; ahead, "
    "inline: history tokens a request, computed by pre-inference and by ranking; busy: of the slots' time; "
    "short: P99 of the short histories; max/mean: rankings of the busiest instance"
)


def print_report(console: Console, report: Report) -> None:
    _print_world(console, report.world, report.tau_ms, report.scatter)
    console.print(_lengths(report.experiments))
    console.print(_rates(report.experiments))
    console.print(
        f"tau {report.tau_ms:.1f} ms; L0: longest history at q0, half of the highest rate at which "
        f"inline_full passes with 2,048 tokens. The paper claims up to {_PAPER_LENGTH}x length and "
        f"{_PAPER_RATE}x rate, for its own hardware and traffic.",
        soft_wrap=True,
    )
    for sweep in (*report.ablations, *report.sweeps):
        console.print(_sweep(sweep))
    console.print(_scale(report.scale))
    console.print(_LEGEND, soft_wrap=True)
    console.print(
        f"{len(report.seeds)} seed(s) from {report.seeds[0]}, {report.traffic.requests:,} requests each; "
        f"{report.seconds:.0f} s",
        soft_wrap=True,
    )


def print_load(console: Console, report: LoadReport) -> None:
    traffic = report.traffic
    _print_world(console, report.world, report.tau_ms, None)
    title = f"{traffic.regime}, {traffic.rate:g} requests/s, {traffic.length:,} tokens"
    table = _table(title, "variant", "good", "valid", "P50", *_COLUMNS)
    for name, result in zip(report.variants, report.results, strict=True):
        table.add_row(
            name,
            f"{result.good_share:.2%}",
            f"{result.valid_share:.2%}",
            f"{result.latency.p50:.1f}",
            *_cells(result),
        )
    console.print(table)
    for name, result in zip(report.variants, report.results, strict=True):
        console.print(f"{name}: {_story(result)}", soft_wrap=True, highlight=False)
    console.print(f"{_LEGEND}; {report.seconds:.1f} s", soft_wrap=True)


def print_size(console: Console, report: SizeReport) -> None:
    world, traffic = report.world, report.traffic
    _print_world(console, world, report.tau_ms, None)
    title = (
        f"{traffic.regime}, {report.rate:g} requests/s, {report.length:,} tokens, rank budget "
        f"{world.budgets.b_rank_ms:.0f} ms"
    )
    table = _table(title, "variant", "instances", "each/s", "good", "valid", "P99 ms")
    for need in report.needs:
        last = need.outcome.shares[-1]
        count = f"> {need.tried}" if need.instances is None else str(need.instances)
        each = report.rate / (need.instances or need.tried)
        shares = f"{last.good:.2%}", f"{last.valid:.2%}", f"{last.p99_ms:.1f}"
        table.add_row(need.variant, count, f"{each:.3g}", *shares)
    console.print(table)
    for need in report.needs:
        tried = ", ".join(f"{count} {'pass' if passes else 'fail'}" for count, passes in need.probes)
        console.print(f"{need.variant}: {tried}", soft_wrap=True, highlight=False)
    console.print(f"{report.seconds:.0f} s", highlight=False)


def _print_world(console: Console, world: World, tau_ms: float, scatter: bool | None) -> None:
    costs, budgets, trigger, fitted = world.costs, world.budgets, world.trigger, world.costs.coefficients
    scattered = "" if scatter is None else f", passes {'scatter as measured' if scatter else 'as fitted'}"
    t1c = fitted.t1_ms if fitted.t1c_ms is None else fitted.t1c_ms
    t2c = fitted.t2_ms if fitted.t2c_ms is None else fitted.t2c_ms
    lines = (
        f"T = {fitted.t0_ms:.3g} + {fitted.t1_ms:.3g} q + {fitted.t2_ms:.3g} pairs + c ({t1c:.3g} +",
        f"{t2c:.3g} (ctx + q + 1)) ms, a chunk {fitted.t_launch_ms:.3g} in place of {fitted.t0_ms:.3g}; tau",
        f"{tau_ms:.1f} ms{scattered}; overhead {costs.overhead_ms:g} ms; rank budget {budgets.b_rank_ms:.1f}",
        f"ms, request {budgets.b_pipe_ms:.1f} ms, chunk {budgets.chunk_ms:.2f} ms, hold",
        f"{budgets.t_life_ms:.0f} ms; u_max {trigger.u_max:g}, pre_burst {trigger.pre_burst}, lead_quantile",
        f"{trigger.lead_quantile:g}",
    )
    console.print(" ".join(lines), soft_wrap=True, highlight=False)


def _lengths(found: Sequence[Experiment]) -> Table:
    table = _table("longest history at q0 (E1)", *_HEAD, "q0/s", "inline", "relay", "ratio")
    for one in found:
        lengths = one.lengths
        if lengths.q0 is None:
            table.add_row(*_head(one), "none", "baseline", "infeasible", "")
        else:
            cells = _whole(lengths.inline), _whole(lengths.relay), _ratio(lengths.ratio)
            table.add_row(*_head(one), f"{lengths.q0:.3g}", *cells)
    return table


def _rates(found: Sequence[Experiment]) -> Table:
    table = _table(
        "highest rate at the length of inline_full (E2)", *_HEAD, "tokens", "inline", "relay", "ratio"
    )
    for one in found:
        rates = one.rates
        if rates is None:
            table.add_row(*_head(one), "none", "baseline", "infeasible", "")
        else:
            cells = _best(rates.inline), _best(rates.relay), _ratio(rates.ratio)
            table.add_row(*_head(one), f"{rates.length:,}", *cells)
    return table


def _head(one: Experiment) -> tuple[str, str, str]:
    return one.regime.replace("_", " "), f"{one.rank_taus:g} tau", str(one.candidates)


def _sweep(sweep: Sweep) -> Table:
    short = any(row.result.short.p99 for row in sweep.rows)
    names = {row.variant for row in sweep.rows}
    alone = f": {next(iter(names))}" if len(names) == 1 else ""
    users = f"{sweep.regime.replace('_', ' ')}{' and short histories' if short else ''}"
    first = (sweep.axis,) if alone else ("variant", sweep.axis)
    last = ("short",) if short else ("max/mean",) if alone else ()
    table = _table(f"{sweep.name}, {users}{alone}", *first, "req/s", "good", *_COLUMNS, *last)
    for row in sweep.rows:
        result = row.result
        more = (f"{result.load_max_over_mean:.2f}",) if alone else ()
        if short:
            more = (f"{result.short.p99:.1f}",)
        head = (row.label,) if alone else (row.variant, row.label)
        table.add_row(*head, f"{row.rate:.3g}", f"{result.good_share:.2%}", *_cells(result), *more)
    return table


def _scale(found: Sequence[Scale]) -> Table:
    counts = sorted({one.instances for one in found})
    table = _table("highest rate that passes, first touch", "instances", *map(str, counts))
    for name in dict.fromkeys(one.variant for one in found):
        best = {one.instances: one.best for one in found if one.variant == name}
        table.add_row(name, *("none" if best[n] is None else f"{best[n]:.3g}" for n in counts))
    return table


def _cells(result: Result) -> tuple[str, ...]:
    return (
        f"{result.latency.p99:.1f}",
        f"{result.device_hits:.1%}",
        f"{result.computed_ahead:.0f}",
        f"{result.computed_inline:.0f}",
        f"{result.busy:.0%}",
    )


def _story(result: Result) -> str:
    """What else there is to know of a load."""
    copies = f"{result.reloads} reloads, {result.spills} spills, {result.fetches} fetched"
    return (
        f"trigger {_listed(result.reasons)}; not good {_listed(result.late)}; {copies}; "
        f"{result.owners_differ:.0%} on two instances; {result.served_mean:.0f} tokens a score"
    )


def _listed(counts: Sequence[Count]) -> str:
    return ", ".join(f"{one.name} {one.count}" for one in counts) or "none"


def _whole(search: Search | None) -> str:
    return "none" if search is None or search.best is None else f"{search.best:,.0f}"


def _best(search: Search) -> str:
    return "none" if search.best is None else f"{search.best:.3g}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    return table
