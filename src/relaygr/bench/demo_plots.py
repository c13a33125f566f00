"""Plots of the demonstration as SVG text that takes its text colour from the page around it."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

from relaygr.bench.demo_result import LatencySection, Quality

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stands for the page's text colour while matplotlib draws; no series uses it.
_TEXT = "#010203"
# Mid tones, readable on white and on black, and apart for the colour-blind.
INLINE, RELAY, RETURNING = "#d95f0e", "#2b8cbe", "#41ab5d"
_SHADES = ("#2b8cbe", "#8c6bb1", "#a6761d", "#7f7f7f")


def available() -> bool:
    """Whether the `plots` extra is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def latency_svg(section: LatencySection) -> str:
    """Rank latency of every request over its history length, one colour a mode."""
    figure, axes = _figure(6.4, 3.6)
    series = (
        ("inline", section.inline_ms, INLINE, "o"),
        ("relay", section.relay_ms, RELAY, "s"),
        ("relay, returning", section.returning_ms, RETURNING, "^"),
    )
    for name, times, color, marker in series:
        axes.scatter(
            section.history_tokens, times, s=14, alpha=0.75, c=color, marker=marker, linewidths=0, label=name
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("history tokens the model saw")
    axes.set_ylabel("rank latency, ms (log)")
    axes.legend(
        frameon=False, labelcolor=_TEXT, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=3
    )
    return _svg(figure)


def length_svg(section: LatencySection) -> str:
    """Median rank latency by history length, a group of bars a bucket."""
    figure, axes = _figure(6.4, 3.0)
    names = [f"{bucket.low + 1:,}–{bucket.high:,}" for bucket in section.buckets]
    for k, (name, color) in enumerate(
        (("inline", INLINE), ("relay", RELAY), ("relay, returning", RETURNING))
    ):
        heights = [bucket.modes[k].rank_p50_ms for bucket in section.buckets]
        bars = axes.bar(
            [i + (k - 1) * 0.27 for i in range(len(names))], heights, 0.25, color=color, label=name
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=7, color=_TEXT, padding=1)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("events in the history")
    axes.set_ylabel("rank P50, ms")
    axes.legend(
        frameon=False, labelcolor=_TEXT, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=3
    )
    return _svg(figure)


def quality_svg(rows: tuple[Quality, ...]) -> str:
    """NDCG@10 of every order, a group of bars a candidate set."""
    figure, axes = _figure(6.4, 2.8)
    sets = list(dict.fromkeys(row.candidates for row in rows))
    orders = list(dict.fromkeys(row.order for row in rows))
    width = 0.8 / len(orders)
    for k, order in enumerate(orders):
        heights = [sum(r.ndcg for r in rows if (r.candidates, r.order) == (each, order)) for each in sets]
        places = [i + (k - (len(orders) - 1) / 2) * width for i in range(len(sets))]
        bars = axes.bar(places, heights, width * 0.92, color=_SHADES[k % len(_SHADES)], label=order)
        axes.bar_label(bars, fmt="%.3f", fontsize=8, color=_TEXT, padding=1)
    axes.set_xticks(range(len(sets)), sets)
    axes.set_ylabel("NDCG@10")
    axes.legend(
        frameon=False, labelcolor=_TEXT, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=4
    )
    return _svg(figure)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(which="both", colors=_TEXT, labelsize=8)
    axes.xaxis.label.set_color(_TEXT)
    axes.yaxis.label.set_color(_TEXT)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(_TEXT)
    axes.grid(visible=True, axis="y", color="#888888", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    text = io.StringIO()
    # A fixed salt makes equal plots equal text; text stays text, so that the page's font is used.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "relaygr", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :].replace(_TEXT, "currentColor")
