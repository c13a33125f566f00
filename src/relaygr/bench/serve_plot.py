"""Plots of a load: percentiles by path, or good answers by rate; SVG for light and dark pages."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from relaygr.bench.length_plot import check_plots
from relaygr.bench.serve_report import LoadResult, Search, ServeReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A grey that light and dark grounds bear.
_TEXT = "#7a7a7a"
# Mid tones, apart for the colour-blind.
_COLORS = ("#2b8cbe", "#d95f0e", "#41ab5d", "#8c6bb1", "#a6761d")
_MARKS = ("o", "s", "^", "D", "v")
_SHARES = ("P50", "P90", "P99", "P99.9", "max")


def serve_svg(report: ServeReport) -> str:
    """The plot of a report.

    Raises:
        ConfigError: matplotlib is missing.
    """
    check_plots()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    _dress(axes)
    if report.search is not None:
        _draw_search(axes, report.search)
    elif report.load is not None:
        _draw_load(axes, report.load, report.deadline_ms)
    axes.legend(frameon=False, labelcolor=_TEXT, fontsize=8)
    return _svg(figure)


def _draw_load(axes: Axes, load: LoadResult, deadline_ms: float) -> None:
    rows = [row for row in load.latencies if row.stage == "rank"]
    for row, color, mark in zip(rows, _COLORS, _MARKS, strict=False):
        times = (row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms, row.max_ms)
        axes.plot(_SHARES, times, color=color, marker=mark, ms=4, lw=1.2, label=f"{row.path} ({row.count})")
    axes.axhline(deadline_ms, color=_TEXT, lw=0.8, ls="--", label=f"deadline {deadline_ms:g} ms")
    axes.set_yscale("log")
    axes.set_ylabel("rank latency from schedule, ms (log)", color=_TEXT, fontsize=8)
    axes.set_title(f"{load.rate:g} visits/s, {load.good_share:.2%} good", color=_TEXT, fontsize=9)


def _draw_search(axes: Axes, search: Search) -> None:
    probes = sorted(search.probes, key=lambda probe: probe.rate)
    rates = [probe.rate for probe in probes]
    axes.plot(
        rates, [100 * p.good_share for p in probes], color=_COLORS[0], marker="o", ms=4, label="good, %"
    )
    axes.axhline(100 * search.share, color=_TEXT, lw=0.8, ls="--", label=f"{search.share:.1%} must be good")
    if search.best_rps is not None:
        axes.axvline(search.best_rps, color=_COLORS[2], lw=1.0, label=f"best {search.best_rps:.3g}/s")
    axes.set_xlabel("visits a second", color=_TEXT, fontsize=8)
    axes.set_ylabel(f"answered within {search.slo_ms:g} ms, %", color=_TEXT, fontsize=8)


def _dress(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    axes.tick_params(which="both", colors=_TEXT, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(_TEXT)
    axes.grid(visible=True, axis="y", color="#888888", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "relaygr", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
