"""Plots of a relay benchmark: rates that pass, longest histories that pass; SVG for light and dark pages."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from relaygr.bench.length_plot import check_plots
from relaygr.bench.relay_result import Confirmed, Found, RelayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A grey that light and dark grounds bear; mid tones, apart for the colour-blind.
_TEXT, _INLINE, _RELAY = "#7a7a7a", "#d95f0e", "#2b8cbe"


def relay_svg(report: RelayReport) -> str:
    """Share of good answers by rate, and by length, a row an experiment.

    Raises:
        ConfigError: matplotlib is missing.
    """
    check_plots()
    from matplotlib.figure import Figure

    rows = max(len(report.experiments), 1)
    figure = Figure(figsize=(7.2, 2.6 * rows), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots(rows, 2, squeeze=False)
    for (left, right), one in zip(axes, report.experiments, strict=False):
        _draw_rates(left, one)
        _draw_lengths(right, one)
    return _svg(figure)


def _draw_rates(axes: Axes, one: Confirmed) -> None:
    _dress(axes, one)
    for name, found, color in (("inline", one.inline_rate, _INLINE), ("relay", one.relay_rate, _RELAY)):
        _draw(axes, found, color, name, [t.rate for t in found.trials] if found is not None else [])
    axes.set_xscale("log")
    axes.set_xlabel(f"requests a second, {one.length or 0:,} tokens (log)", color=_TEXT, fontsize=8)


def _draw_lengths(axes: Axes, one: Confirmed) -> None:
    _dress(axes, one)
    for name, found, color in (("inline", one.inline_length, _INLINE), ("relay", one.relay_length, _RELAY)):
        _draw(axes, found, color, name, [float(t.length) for t in found.trials] if found is not None else [])
    axes.set_xlabel(f"history tokens, {one.q0 or 0:.3g} requests a second", color=_TEXT, fontsize=8)


def _draw(axes: Axes, found: Found | None, color: str, name: str, places: list[float]) -> None:
    if found is None:
        return
    shares = [100 * trial.good_share for trial in found.trials]
    fills = [color if trial.passes else "none" for trial in found.trials]
    axes.scatter(places, shares, s=22, c=fills, edgecolors=color, label=name)
    if found.best is not None:
        axes.axvline(found.best, color=color, lw=1.0)


def _dress(axes: Axes, one: Confirmed) -> None:
    axes.patch.set_alpha(0)
    axes.axhline(99, color=_TEXT, lw=0.8, ls="--")
    axes.set_title(
        f"{one.regime.replace('_', ' ')}, budget {one.rank_taus:g} tau, {one.candidates} candidates",
        color=_TEXT,
        fontsize=8,
    )
    axes.set_ylabel("good, %", color=_TEXT, fontsize=8)
    axes.tick_params(which="both", colors=_TEXT, labelsize=7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(_TEXT)
    axes.grid(visible=True, axis="y", color="#888888", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.legend(frameon=False, labelcolor=_TEXT, fontsize=7)
    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "relaygr", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
