"""The plot of a report: an SVG file for light and dark pages."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

from relaygr.core.errors import ConfigError
from relaygr.sim.protocol import GOOD_SHARE
from relaygr.sim.report import Report
from relaygr.sim.sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A grey that light and dark grounds bear.
_TEXT = "#7a7a7a"
# Mid tones, apart for the colour-blind.
_COLORS = ("#2b8cbe", "#d95f0e", "#41ab5d", "#8c6bb1", "#a6761d", "#e7298a", "#17a2b8", "#666666")
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_FATES = ("kill", "scaling", "rollout")


def check_plots() -> None:
    """Raise ConfigError, naming the extra, when plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plots", "matplotlib is missing: install relaygr with its extra, relaygr[plots]")


def report_svg(report: Report) -> str:
    """Two columns of axes: good answers over load, normal traffic, host hits, instances, and their fate.

    Raises:
        ConfigError: matplotlib is missing.
    """
    check_plots()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 9.6), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(4, 2)
    by_name = {one.name: one for one in report.sweeps}
    for axes, sweep in zip(grid[0], report.ablations, strict=True):
        _draw_good(axes, sweep)
    _draw_normal(grid[1][0], by_name["normal traffic"])
    _draw_scale(grid[1][1], report)
    _draw_host(grid[2][0], by_name["host hits"])
    for axes, name in zip((grid[2][1], grid[3][0], grid[3][1]), _FATES, strict=True):
        _draw_windows(axes, by_name[name])
    text = io.StringIO()
    # A fixed salt makes equal plots equal text; text stays text, so that the reader's font is used.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "relaygr", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _draw_good(axes: Axes, sweep: Sweep) -> None:
    _dress(axes, f"{sweep.regime.replace('_', ' ')}: whole histories in time", "requests a second", "%")
    for name, color, mark in zip(_names(sweep), _COLORS, _MARKS, strict=False):
        rows = [row for row in sweep.rows if row.variant == name]
        shortens = name == "inline_truncated"
        good = [
            100 * (row.result.in_time if shortens else row.result.good) / row.result.requests for row in rows
        ]
        label = f"{name} (any history)" if shortens else name
        axes.plot([row.rate for row in rows], good, color=color, marker=mark, ms=3.5, lw=1.1, label=label)
    axes.axhline(100 * GOOD_SHARE, color=_TEXT, lw=0.8, ls="--")
    _legend(axes)


def _draw_normal(axes: Axes, sweep: Sweep) -> None:
    _dress(axes, "short histories beside long ones: P99", "requests a second", "ms")
    for name, color, mark in zip(_names(sweep), _COLORS, _MARKS, strict=False):
        rows = [row for row in sweep.rows if row.variant == name]
        times = [row.result.short.p99 for row in rows]
        axes.plot([row.rate for row in rows], times, color=color, marker=mark, ms=3.5, lw=1.1, label=name)
    _legend(axes)


def _draw_scale(axes: Axes, report: Report) -> None:
    _dress(axes, "highest rate that passes, first touch", "instances", "requests a second")
    for name, color, mark in zip(("inline_full", "relay_full"), _COLORS, _MARKS, strict=False):
        points = [(one.instances, one.best) for one in report.scale if one.variant == name and one.best]
        axes.plot(*zip(*points, strict=True), color=color, marker=mark, ms=3.5, lw=1.1, label=name)
    _legend(axes)


def _draw_host(axes: Axes, sweep: Sweep) -> None:
    _dress(axes, "users in host memory before their first visit, relay_full", "share of the users", "ms")
    labels = [row.label for row in sweep.rows]
    for name, color, mark in zip(("p50", "p99"), _COLORS, _MARKS, strict=False):
        times = [getattr(row.result.latency, name) for row in sweep.rows]
        axes.plot(labels, times, color=color, marker=mark, ms=3.5, lw=1.1, label=name.upper())
    other = axes.twinx()
    computed = [row.result.computed_ahead + row.result.computed_inline for row in sweep.rows]
    other.plot(labels, computed, color=_COLORS[2], marker="^", ms=3.5, lw=1.1, ls="--")
    _dress(other, "", "", "tokens computed a request (dashed)")
    other.grid(visible=False)
    other.spines["right"].set_visible(True)
    _legend(axes)


def _draw_windows(axes: Axes, sweep: Sweep) -> None:
    _dress(axes, f"{sweep.name}, sessions", "seconds", "%")
    windows = sweep.rows[-1].result.windows
    seconds = [window.time_s for window in windows]
    shares = (
        ("whole history in time", [100 * window.good / window.requests for window in windows]),
        ("prefix found complete", [100 * window.hits / window.requests for window in windows]),
    )
    for (label, values), color in zip(shares, _COLORS, strict=False):
        axes.step(seconds, values, where="post", color=color, lw=1.1, label=label)
    axes.set_ylim(top=102)
    _legend(axes)


def _names(sweep: Sweep) -> list[str]:
    return list(dict.fromkeys(row.variant for row in sweep.rows))


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, labelcolor=_TEXT, fontsize=6.5)


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.patch.set_alpha(0)
    axes.set_title(title, color=_TEXT, fontsize=8)
    axes.set_xlabel(x, color=_TEXT, fontsize=7)
    axes.set_ylabel(y, color=_TEXT, fontsize=7)
    axes.tick_params(which="both", colors=_TEXT, labelsize=7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(_TEXT)
    axes.grid(visible=True, axis="y", color="#888888", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
