"""What `relaygr bench relay` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    # At run time they need an extra, and load torch.
    from relaygr.bench.relay_point import Spread
    from relaygr.bench.relay_result import Ablation, Confirmed, Found, RelayReport, Twin
    from relaygr.sim.tally import Count

_LEGEND = (
    "L0: longest history of inline_full at q0, half of the highest rate at which it passes with 2,048 "
    "tokens; passes: 99 % have scores of the whole history within the budget and 99.9 % any within 8 tau; "
    "good, P99: from the time ranking was due; sim.: the simulator's searches; "
    "at least, at most, open: the edge of the relay, of inline_full, of both was not searched to its end"
)


def print_report(console: Console, report: RelayReport) -> None:
    speed = report.speed
    console.print(
        f"{report.preset}, {report.dtype}, {report.cpu}, {report.cores} cores; tau {speed.tau_ms:.1f} ms, "
        f"HTTP adds {speed.overhead_ms:.1f} ms; seeds {', '.join(map(str, report.seeds))}; "
        f"{report.seconds:.0f} s",
        soft_wrap=True,
        highlight=False,
    )
    if report.experiments:
        console.print(_ratios(report))
        for one in report.experiments:
            console.print(_searches(one))
        console.print(_LEGEND, soft_wrap=True)
    if report.twins:
        console.print(_twins(report.twins))
    if report.ablations:
        console.print(_ablations(report.ablations))
    for note in report.notes:
        console.print(f"- {note}", soft_wrap=True, markup=False, highlight=False)


def _ratios(report: RelayReport) -> Table:
    table = _table(
        "relay over inline",
        ("users", "budget", "cand."),
        ("L0", "length", "sim.", "rate", "sim.", "P99/budget"),
    )
    for one in report.experiments:
        table.add_row(
            one.regime,
            f"{one.rank_taus:g} tau",
            str(one.candidates),
            "infeasible" if one.length is None else f"{one.length:,}",
            _bounded(one.length_ratio, one.length_ratio_bound),
            _times(one.length_ratio_simulated),
            _bounded(one.rate_ratio, one.rate_ratio_bound),
            _times(one.rate_ratio_simulated),
            "-" if one.p99_over_budget is None else f"{one.p99_over_budget:.2f}",
        )
    table.add_row(
        "paper, up to",
        "",
        "",
        "",
        _times(report.paper_length_ratio),
        "",
        _times(report.paper_rate_ratio),
        "",
        "",
    )
    return table


def _searches(one: Confirmed) -> Table:
    title = f"{one.regime}, budget {one.limits.b_rank_ms:.0f} ms, {one.candidates} candidates"
    table = _table(
        title, ("search",), ("best", "sim.", "loads", "requests", "good", "P50", "P99", "queue", "HTTP")
    )
    rows = (
        (f"inline_full, rate at {one.base_length:,}", one.base, False),
        ("inline_full, length", one.inline_length, True),
        ("relay_full, length", one.relay_length, True),
        ("inline_full, rate at L0", one.inline_rate, False),
        ("relay_full, rate at L0", one.relay_rate, False),
    )
    for name, found, lengths in rows:
        if found is not None:
            table.add_row(name, *_search(found, lengths))
    return table


def _search(found: Found, lengths: bool) -> list[str]:
    def value(best: float | None) -> str:
        return "-" if best is None else f"{best:,.0f}" if lengths else f"{best:.3g}/s"

    trial = found.trial
    if trial is None:
        return [value(found.best), value(found.simulated), str(len(found.trials)), *6 * ["-"]]
    point = trial.points[0]
    return [
        value(found.best),
        value(found.simulated),
        str(len(found.trials)),
        str(trial.requests),
        f"{trial.good_share:.2%}",
        f"{point.latency.p50:.1f}",
        f"{trial.p99_ms:.1f}",
        _p99(point.queue),
        _p99(point.overhead),
    ]


def _twins(twins: Sequence[Twin]) -> Table:
    table = _table(
        "two servers / the simulator: medians of the seeds",
        ("users",),
        ("rate", "seeds", "P50 ms", "P99 ms", "hits", "admitted", "good"),
    )
    for one in twins:
        table.add_row(
            one.regime,
            f"{one.rate:.3g}/s",
            str(one.seeds),
            f"{one.p50_ms:.1f} / {one.p50_ms_simulated:.1f}",
            f"{one.p99_ms:.1f} / {one.p99_ms_simulated:.1f}",
            f"{one.hit_share:.1%} / {one.hit_share_simulated:.1%}",
            f"{one.admitted_share:.1%} / {one.admitted_share_simulated:.1%}",
            f"{one.good_share:.1%} / {one.good_share_simulated:.1%}",
        )
    return table


def _ablations(found: Sequence[Ablation]) -> Table:
    first = found[0]
    load = f"{first.regime} with long gaps, {first.length:,} tokens, {first.rate:.3g}/s"
    title = f"two servers / the simulator: {load}"
    table = _table(title, ("variant",), ("good", "P50 ms", "P99 ms", "hits", "served"))
    for one in found:
        real, simulated = one.points, one.simulated[0]
        table.add_row(
            one.variant,
            _pair(
                f"{real[0].good / max(real[0].requests, 1):.1%}" if real else "",
                f"{simulated.good_share:.1%}",
            ),
            _pair(f"{real[0].latency.p50:.1f}" if real else "", f"{simulated.latency.p50:.1f}"),
            _pair(f"{real[0].latency.p99:.1f}" if real else "", f"{simulated.latency.p99:.1f}"),
            _pair(_hits(real[0].paths) if real else "", _hits(simulated.paths)),
            _pair(f"{real[0].served_mean:,.0f}" if real else "", f"{simulated.served_mean:,.0f}"),
        )
    return table


def _pair(real: str, simulated: str) -> str:
    return f"{real or '-'} / {simulated}"


def _hits(paths: Sequence[Count]) -> str:
    whole = sum(one.count for one in paths)
    return f"{sum(one.count for one in paths if one.name in ('hit', 'reloaded')) / max(whole, 1):.0%}"


def _p99(spread: Spread) -> str:
    return f"{spread.p99:.1f}"


def _bounded(ratio: float | None, bound: str | None) -> str:
    """With a word before it where one of its edges was not searched to its end."""
    return _times(ratio) if bound in (None, "settled") else f"{bound} {_times(ratio)}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
