"""What `relaygr eval slate` prints, in the order of the protocol; relevance comes last and by itself."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.training.slate.offline.cascade import LEAST_ESS, Estimate
from relaygr.training.slate.offline.coverage import PoolVariety
from relaygr.training.slate.offline.protocol import ALL
from relaygr.training.slate.offline.quality import JudgeQuality
from relaygr.training.slate.offline.report import Evidence, SlateReport

_SHOWN_DEPTHS = (1, 2, 3, 5)


def print_report(report: SlateReport, console: Console) -> None:
    """All sections that are filled."""

    def say(text: str) -> None:
        console.print(escape(text), soft_wrap=True, highlight=False)

    say(f"{report.data}: lists by step model {report.selector[:16]}")
    for one in report.evidence:
        if one.segment == ALL:
            console.print(_evidence(one))
            say(one.comparison.note)
    if any(one.segment != ALL for one in report.evidence):
        console.print(_segments(report.evidence))
    if report.judge_version is not None:
        say(f"judge {report.judge_version}: {report.independence}")
    if report.disagreement is not None:
        say(
            f"selector and judge disagree on {report.disagreement:.1%} of the requests whose list is not the "
            "pointwise one"
        )
    if report.judge is not None:
        console.print(_judge(report.judge))
        for line in _judged(report.judge):
            say(line)
    if report.estimates:
        console.print(_estimates(report.estimates))
    for note in report.notes:
        say(note)
    console.print(_varieties(report))
    if report.pool is not None:
        console.print(_pool(report.pool))
    console.print(_cost(report))
    if report.relevance:
        console.print(_relevance(report))
        say(
            "relevance reorders logged labels as if users did the same at another position; it is no "
            "evidence for effects of lists"
        )
    for each in report.cannot:
        say(f"these data cannot show {each}")
    say(f"{report.seconds:.1f} s; 95 % intervals from a bootstrap over users")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), box=None, pad_edge=False, title_justify="left")
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at == 0 else "right")
    return table


def _evidence(one: Evidence) -> Table:
    title = f"\n{one.metric} by {one.source.value}, {one.segment} ({one.requests:,} requests)"
    table = _table(title, "", "mean", "- pointwise", "p (Holm)", "predicted / judged")
    found = {each.method: each for each in one.comparison.differences}
    for method, mean in one.means.items():
        difference = found.get(method)
        cells = ["", ""]
        if difference is not None:
            star = "*" if difference.significant else ""
            cells = [
                f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]{star}",
                f"{difference.holm:.3f}",
            ]
        table.add_row(escape(method), f"{mean:.3f}", *map(escape, cells), f"{one.inflation[method]:.3f}")
    return table


def _segments(evidence: tuple[Evidence, ...]) -> Table:
    table = _table("\nby segment", "source", "segment", "requests", "highest", "- pointwise")
    for one in evidence:
        if one.segment == ALL:
            continue
        best = max(one.means, key=lambda method: one.means[method])
        found = [each for each in one.comparison.differences if each.method == best]
        cell = "".join(f"{each.mean:+.3f} [{each.low:+.3f}, {each.high:+.3f}]" for each in found)
        table.add_row(one.source.value, escape(one.segment), f"{one.requests:,}", best, escape(cell))
    return table


def _judge(quality: JudgeQuality) -> Table:
    title = f"\nthe judge on {quality.lists:,} logged lists that were filled"
    table = _table(title, "", "positions", "AUC", "log loss", "of the mean", "ECE")
    for head in quality.heads:
        area = "" if head.auc is None else f"{head.auc:.3f}"
        losses = (f"{head.log_loss:.4f}", f"{head.base_log_loss:.4f}", f"{head.ece:.4f}")
        table.add_row(escape(head.name), f"{head.rows:,}", area, *losses)
    return table


def _judged(quality: JudgeQuality) -> list[str]:
    """The buckets that are worst calibrated, and the rank correlation."""
    lines = []
    for head in quality.heads:
        for kind, buckets in (("position", head.positions), ("context", head.contexts)):
            worst = max(buckets, key=lambda each: abs(each.predicted - each.observed), default=None)
            if worst is not None:
                lines.append(
                    f"{head.name}, worst {kind} ({worst.name}): {worst.predicted:.3f} predicted, "
                    f"{worst.observed:.3f} observed on {worst.rows:,}"
                )
    if quality.rank_correlation is not None:
        lines.append(
            "rank correlation of judged and observed value of lists: "
            f"{quality.rank_correlation:.3f} [{quality.low:.3f}, {quality.high:.3f}]"
        )
    return lines


def _estimates(estimates: tuple[Estimate, ...]) -> Table:
    title = f"\noff-policy estimates of the first positions; not estimable below ESS {LEAST_ESS:g} and where"
    title += " weights are too large or their mean is far from 1"
    table = _table(title, "policy", "estimator", "first", "utility", "ESS", "mean weight")
    deepest = max(one.depth for one in estimates)
    for one in estimates:
        if one.depth not in (*_SHOWN_DEPTHS, deepest):
            continue
        cell = f"not estimable: {one.doubt}" if one.doubt is not None else ""
        if one.mean is not None:
            cell = f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]"
        row = (escape(cell), f"{one.ess:,.0f}", f"{one.mean_weight:.3g}")
        table.add_row(escape(one.policy), one.estimator.value, f"{one.depth}", *row)
    return table


def _varieties(report: SlateReport) -> Table:
    table = _table("\nvariety", "", "distance", "topic entropy", "author share", "items", "of the catalogue")
    for one in report.varieties:
        cells = ["" if x is None else f"{x:.3f}" for x in (one.distance, one.topic_entropy, one.author_share)]
        table.add_row(escape(one.method), *cells, f"{one.catalogue:,}", f"{one.catalogue_share:.1%}")
    return table


def _pool(pool: PoolVariety) -> Table:
    title = f"\npools of {pool.lists:.1f} lists, mean distance of their orders {pool.distance:.3f}"
    table = _table(title, "generator", "the best list loses without it", "has the best", "lists")
    for one in pool.generators:
        table.add_row(escape(one.generator), f"{one.gain:.4f}", f"{one.best:.1%}", f"{one.lists:,}")
    return table


def _cost(report: SlateReport) -> Table:
    title = "\ncost of a request, behind the pointwise order"
    table = _table(title, "", "processor ms", "calls of the step model", "lists")
    for one in report.cost:
        table.add_row(escape(one.method), f"{one.ms:.2f}", f"{one.model_calls:.1f}", f"{one.lists:.1f}")
    return table


def _relevance(report: SlateReport) -> Table:
    table = _table("\nrelevance of items, not of lists", "order", "metric", "mean", "lists")
    for one in report.relevance:
        cell = escape(f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]")
        table.add_row(escape(one.method), one.metric, cell, f"{one.lists:,}")
    return table
