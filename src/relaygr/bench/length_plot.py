"""The plot of the length study: quality over the cap, an SVG file for light and dark pages."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

from relaygr.bench.length_result import LengthDataset, LengthStudy
from relaygr.core.errors import ConfigError
from relaygr.training.cap_estimates import NE
from relaygr.training.length import LengthReport
from relaygr.training.segments import ALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The file stands for itself, in an <img>, and cannot take the page's colour: a grey that both grounds bear.
_TEXT = "#7a7a7a"
# Mid tones, readable on white and on black, and apart for the colour-blind.
_OVER = {"requests": "#2b8cbe", "users": "#d95f0e"}
_METRICS = {"ndcg@10": "NDCG@10", NE: "NE (lower is better)"}


def check_plots() -> None:
    """Raise ConfigError, naming the extra, when plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plots", "matplotlib is missing: install relaygr with its extra, relaygr[plots]")


def length_svg(study: LengthStudy) -> str:
    """One row of axes a dataset and metric, one column a kind of candidates.

    Lines are means over seeds, dots the single seeds. A band is the 95 % interval of the paired difference
    to the smallest cap, drawn from that cap's value: where it leaves that level out, length matters.

    Raises:
        ConfigError: matplotlib is missing.
    """
    check_plots()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [(dataset, metric) for dataset in study.datasets for metric in _METRICS]
    columns = max(len(dataset.reports) for dataset in study.datasets)
    figure = Figure(figsize=(3.1 * columns, 2.1 * len(rows) + 0.4), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (dataset, metric) in zip(grid, rows, strict=True):
        for axes, report in zip(line, dataset.reports, strict=False):
            _dress(axes, study.caps)
            axes.set_title(_title(dataset, report), color=_TEXT, fontsize=8)
            axes.set_ylabel(_METRICS[metric], color=_TEXT, fontsize=8)
            _draw(axes, report, metric, study.caps)
        for axes in line[len(dataset.reports) :]:
            axes.set_visible(False)
    lines, names = grid[0][0].get_legend_handles_labels()
    figure.legend(
        lines,
        names,
        frameon=False,
        labelcolor=_TEXT,
        fontsize=8,
        loc="outside lower center",
        ncols=len(names),
    )
    text = io.StringIO()
    # A fixed salt makes equal plots equal text; text stays text, so that the reader's font is used.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "relaygr", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _title(dataset: LengthDataset, report: LengthReport) -> str:
    if report.options.candidates == "full":
        return f"{dataset.name}, whole catalogue"
    own = ", none own" if report.options.own_share == 0 and report.seen == "keep" else ""
    return f"{dataset.name}, sampled{own}"


def _dress(axes: Axes, caps: tuple[int, ...]) -> None:
    axes.patch.set_alpha(0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(caps, [f"{cap:,}" for cap in caps])
    axes.minorticks_off()
    axes.set_xlabel("newest events read", color=_TEXT, fontsize=8)
    axes.tick_params(which="both", colors=_TEXT, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(_TEXT)
    axes.grid(visible=True, axis="y", color="#888888", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _draw(axes: Axes, report: LengthReport, metric: str, caps: tuple[int, ...]) -> None:
    shown = [one for one in report.estimates if (one.segment, one.metric) == (ALL, metric)]
    for over, color in _OVER.items():
        mine = [one for one in shown if one.over == over]
        line = [one for one in mine if (one.scorer, one.minus) == ("model", 0)]
        axes.plot(caps, [one.mean for one in line], color=color, marker="o", ms=3, label=f"mean over {over}")
        gaps = [one for one in mine if one.minus == caps[0]]
        level = line[0].mean
        axes.fill_between(
            caps,
            [level, *(level + gap.low for gap in gaps)],
            [level, *(level + gap.high for gap in gaps)],
            color=color,
            alpha=0.15,
            lw=0,
        )
        for one in line:
            axes.scatter([one.cap] * len(one.per_model), one.per_model, s=5, c=color, alpha=0.6, linewidths=0)
        # Where nothing repeats, recency has nothing to go by.
        known = [one for one in mine if one.scorer == "recency" and report.seen == "keep"]
        for baseline in known:
            axes.axhline(baseline.mean, color=color, lw=0.9, ls="--", label=f"recency over {over}")
