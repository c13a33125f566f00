"""`relaygr eval generator`: recall of what a generator names, against popularity, recency and a ranker."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.cli.report import write_json
from relaygr.cli.steps import Steps
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import open_events
from relaygr.generation.recipe import open_recipe
from relaygr.generation.sids.artefact import open_sids
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.kernels.select import choose
from relaygr.models.decoder.huggingface import open_decoder
from relaygr.models.weights import open_ranker
from relaygr.training.candidates import SeenOption
from relaygr.training.evaluate_generator import SidEvalOptions, SidEvalReport, evaluate_generator
from relaygr.training.offline import Part
from relaygr.training.sid_metrics import CUTS


def generator(
    *,
    model: Path,
    events: Path,
    sids: Path,
    ranker: Path | None = None,
    part: Part = "test",
    max_requests: int | None = None,
    width: int = 64,
    seen: SeenOption = "auto",
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Name items for each (user, second) after the split, by beam search over the training part's catalogue.

    A request knows the user's events strictly before its second; wanted are the items of that second.

    Parameters
    ----------
    model: Path
        Folder of the generator.
    events: Path
        Folder of the dataset it was trained on.
    sids: Path
        Folder of the semantic ids it was trained on.
    ranker: Path | None
        Folder of a ranker that scores the whole catalogue for comparison; takes long.
    part: Part
        The last 10 % of the events, or the 10 % before.
    max_requests: int | None
        Size of a uniform sample of the requests, by default all.
    width: int
        Beam width, and semantic ids of a result.
    seen: SeenOption
        Whether items of the user's earlier events may be named; auto hides them where no user of the
        training part has an item twice.
    seed: int
        Of the sample and of the bootstrap.
    json: Path | None
        Write the report to this file.
    """
    check_file("--json", json)
    options = SidEvalOptions(part=part, max_requests=max_requests, width=width, seen=seen, seed=seed)
    built, digest = open_sids(sids)
    recipe = open_recipe(model)
    if recipe.sids != digest:
        raise ConfigError("--sids", f"{sids} is build {digest}, the model was trained on {recipe.sids}")
    decoder, name = open_decoder(model)
    decoder.kernel = CpuBeams()
    rival = None
    if ranker is not None:
        choice = choose("cpu", "fp32")
        rival = (open_ranker(ranker, choice.dtype)[0], choice.kernel)
    dataset = open_events(events)
    with Steps() as steps:
        report = evaluate_generator(
            decoder,
            name.hex(),
            recipe,
            built,
            dataset,
            options,
            rival,
            lambda done, total: steps.show("requests", done / total, f"{done:,} of {total:,}"),
        )
    write_json(json, report)
    _print(report, Console())


def _print(report: SidEvalReport, console: Console) -> None:
    for over in ("requests", "users"):
        title = escape(f"{report.data}, {report.options.part}: mean over {over}")
        table = Table("", *report.metrics, title=title, box=None, pad_edge=False)
        rows: dict[tuple[str, str], list[str]] = {}
        for one in report.estimates:
            if one.over == over:
                mean = f"{one.mean:+.3f}" if one.minus else f"{one.mean:.3f}"
                cell = f"{mean} [{one.low:.3f}, {one.high:.3f}]".replace("0.", ".")
                rows.setdefault((one.scorer, one.minus), []).append(escape(cell))
        for (scorer, minus), cells in sorted(rows.items(), key=lambda row: row[0][1] != ""):
            table.add_row(f"{scorer} - {minus}" if minus else scorer, *cells)
        console.print(table)
    covered = "; ".join(
        f"{one.scorer} " + ", ".join(f"{share:.1%} @{k}" for share, k in zip(one.at, CUTS, strict=True))
        for one in report.coverage
    )
    console.print(escape(f"catalogue of {report.catalogue_items:,} items covered: {covered}"), soft_wrap=True)
    console.print(
        f"{report.ids_named:,} semantic ids named, invalid share {report.invalid_share:g}; "
        f"{report.short_results:,} results with fewer than {report.options.width}",
        soft_wrap=True,
    )
    console.print(
        f"{report.requests:,} requests of {report.users:,} users in {report.seconds:.1f} s; "
        f"{report.unanswerable_requests:,} requests and "
        f"{report.left_out_items:,} items outside the catalogue; 95 % intervals from a bootstrap over users",
        soft_wrap=True,
    )
