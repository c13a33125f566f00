"""The length study as a Markdown page: what was done, what must be said, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from relaygr.bench.length_cells import cell, direction, gap_cell
from relaygr.bench.length_result import LengthDataset, LengthStudy
from relaygr.config.settings import TrainConfig
from relaygr.training.cap_estimates import CAP_METRICS, OVERS, CapEstimate, SegmentSize
from relaygr.training.length import LengthReport
from relaygr.training.segments import ALL

FEW_USERS = 10  # below, an interval over users says nothing and is not printed
_HEADS = {"ndcg@10": "NDCG@10", "hr@10": "HR@10", "auc": "AUC", "ne": "NE"}
_SEGMENT_METRICS = ("ndcg@10", "ne")


def length_markdown(study: LengthStudy, plot: str) -> str:
    """The page; `plot` is the address of the picture."""
    parts = [
        f"# Quality by length of history\n\n![NDCG@10 and NE by events read]({plot})",
        _made(study),
        _words(study),
        *(_dataset(study, dataset) for dataset in study.datasets),
    ]
    return "\n\n".join(parts) + "\n"


def _made(study: LengthStudy) -> str:
    machine, train = study.machine, study.datasets[0].train
    return (
        f"    {study.command}\n\n"
        f"relaygr {study.relaygr}, {study.started} to {study.finished} ({study.seconds / 60:.0f} minutes); "
        f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads, torch {machine.torch}, Python "
        f"{machine.python}. Model `{study.preset}`, {_limits(train)}, training windows of "
        f"{train.min_history} to {train.max_history:,} events, drawn uniformly."
    )


def _limits(train: TrainConfig) -> str:
    steps = f"{train.max_steps:,} steps or " if train.max_steps else ""
    return f"at most {steps}{train.max_minutes:g} minutes of training each"


def _words(study: LengthStudy) -> str:
    seeds = f"{len(study.seeds)} models a dataset" if len(study.seeds) > 1 else "one model a dataset"
    return (
        f"A row *n* lets the models read exactly the newest *n* events before a request. {seeds[0].upper()}"
        f"{seeds[1:]}; a figure is their mean, in square brackets the central 95 % of a paired bootstrap "
        "over users, in round brackets the least and the largest of the single models. A row *n − k* is the "
        "difference, request by request; **bold** where the interval leaves zero out, which one of twenty "
        "does by chance. NE is cross entropy over that of the base rate, below 1 is better than knowing the "
        "base rate only; probabilities are calibrated on validation requests at a model's full length, with "
        "the same two numbers at every cap. In the picture a band is the interval of the difference to the "
        "smallest cap, drawn from that cap's value; dots are the single models."
    )


def _dataset(study: LengthStudy, dataset: LengthDataset) -> str:
    parts = [f"## {dataset.name}", *(f"> {note}" for note in dataset.notes)]
    terms = f", licence: {dataset.licence}" if dataset.licence else ""
    parts.append(
        f"{dataset.events:,} events of {dataset.users:,} users on {dataset.items:,} items. Source: "
        f"{dataset.source or 'not stated'}{terms}.{_ages(dataset.train)}"
    )
    rows = [
        [f"{run.seed}", f"{run.steps:,}", f"{run.seconds / 60:.1f}", run.stopped, _ndcg(run.valid_ndcg)]
        for run in dataset.models
    ]
    parts.append(table(["seed", "steps", "minutes", "stopped by", "validation NDCG@10"], rows))
    for report in dataset.reports:
        parts.append(_heading(report))
        for over in OVERS:
            parts += [f"**Mean over {over}.** {_verdict(report, over, study.caps)}"]
            parts += [_caps_table(report, over, study.caps), _segments_table(report, over, study.caps)]
    return "\n\n".join(parts)


def _ages(train: TrainConfig) -> str:
    if train.last_seen:
        return " Candidates carry the age of their item's last event in what the model reads."
    return " Models do not read the age of a candidate's last event."


def _ndcg(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _heading(report: LengthReport) -> str:
    whole = _size(report, ALL)
    options = report.options
    part = "validation" if options.part == "valid" else "test"
    kind = (
        f"### Whole catalogue\n\nAll {report.catalogue_items:,} items of the training part are candidates"
        if options.candidates == "full"
        else f"### Sampled candidates{_own(report)}\n\n{options.negatives} negatives a request: "
        f"{report.negatives_mix}"
    )
    seen = (
        "; items of the user's earlier events are no candidates."
        if report.seen == "drop"
        else "; items of the user's earlier events may be candidates again."
    )
    return (
        f"{kind}{seen} {whole.requests:,} {part} requests of {whole.users:,} users, "
        f"{report.left_out_positives:,} positives outside the candidates, {report.unrankable_requests:,} "
        f"requests unrankable, base rate {whole.share:.3g}."
    )


def _own(report: LengthReport) -> str:
    return ", none of the user's own" if report.options.own_share == 0 and report.seen == "keep" else ""


def _verdict(report: LengthReport, over: str, caps: Sequence[int]) -> str:
    """Each step in NDCG@10, then the whole way in every metric."""
    if len(caps) < 2:
        return ""
    found = _found(report, over, ALL)
    steps = [f"{b:,} against {a:,} {direction(found['ndcg@10', b, a])}" for a, b in pairwise(caps)]
    ways = [f"{_HEADS[metric]} {direction(found[metric, caps[-1], caps[0]])}" for metric in CAP_METRICS]
    return f"NDCG@10: {'; '.join(steps)}. {caps[-1]:,} against {caps[0]:,}: {', '.join(ways)}."


def _caps_table(report: LengthReport, over: str, caps: Sequence[int]) -> str:
    found = _found(report, over, ALL)
    few = _size(report, ALL).users < FEW_USERS
    rows = [[f"{cap:,}", *(cell(found[metric, cap, 0], few) for metric in CAP_METRICS)] for cap in caps]
    for i, cap in enumerate(caps):
        for minus in dict.fromkeys(caps[j] for j in (i - 1, 0) if 0 <= j < i):
            gaps = (gap_cell(found[metric, cap, minus], few) for metric in CAP_METRICS)
            rows.append([f"{cap:,} − {minus:,}", *gaps])
    for name in ("popularity",) if report.seen == "drop" else ("popularity", "recency"):
        known = {
            one.metric: one
            for one in report.estimates
            if (one.scorer, one.segment, one.over) == (name, ALL, over)
        }
        rows.append([name, *(cell(known[m], few) if m in known else "–" for m in CAP_METRICS)])
    return table(["events", *(_HEADS[metric] for metric in CAP_METRICS)], rows)


def _segments_table(report: LengthReport, over: str, caps: Sequence[int]) -> str:
    rows = []
    for size in report.segments[1:]:
        found = _found(report, over, size.name)
        few = size.users < FEW_USERS
        row = [size.name, f"{size.requests:,}", f"{size.users:,}"]
        row += [cell(found["ndcg@10", cap, 0], few=True, spread=False) for cap in caps]
        if len(caps) > 1:
            row += [gap_cell(found[metric, caps[-1], caps[0]], few) for metric in _SEGMENT_METRICS]
        rows.append(row)
    heads = ["events before", "requests", "users", *(f"NDCG@10 at {cap:,}" for cap in caps)]
    if len(caps) > 1:
        heads += [f"{_HEADS[metric]}, {caps[-1]:,} − {caps[0]:,}" for metric in _SEGMENT_METRICS]
    return table(heads, rows)


def _found(report: LengthReport, over: str, segment: str) -> dict[tuple[str, int, int], CapEstimate]:
    """The models' estimates by (metric, cap, cap that is subtracted or 0)."""
    return {
        (one.metric, one.cap, one.minus): one
        for one in report.estimates
        if (one.scorer, one.segment, one.over) == ("model", segment, over)
    }


def _size(report: LengthReport, segment: str) -> SegmentSize:
    return next(size for size in report.segments if size.name == segment)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
