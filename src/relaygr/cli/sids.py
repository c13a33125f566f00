"""`relaygr sids`: name items by a few codes each, from the embeddings of a ranker or of a file."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.cli.report import write_json
from relaygr.config.paths import check_file, check_folder
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import open_events
from relaygr.data.split import temporal_split
from relaygr.generation.sids.artefact import TABLE_FILE, check_target, open_sids, save_sids
from relaygr.generation.sids.build import SemanticIds, add_items, build_sids
from relaygr.generation.sids.quantise import Collision, SidConfig
from relaygr.generation.sids.report import SidReport
from relaygr.generation.sids.sources import ItemEmbeddings, from_npz, from_ranker
from relaygr.kernels.select import choose
from relaygr.models.weights import open_ranker

sids_app = App(name="sids", help="Name items by semantic ids.")


@sids_app.command
def build(
    *,
    out: Path,
    ranker: Path | None = None,
    events: Path | None = None,
    embeddings: Path | None = None,
    sizes: str = "256,256,256",
    collision: Collision = "share",
    neighbours: int = 64,
    centre: bool = True,
    normalise: bool = False,
    passes: int = 25,
    batch: int = 16384,
    seed: int = 0,
    previous: Path | None = None,
    json: Path | None = None,
) -> None:
    """Quantise item embeddings level by level and write codebooks, ids and a table for catalogues.

    Parameters
    ----------
    out: Path
        Folder of the build: sids.json, its tensors, and items.jsonl with one item a line.
    ranker: Path | None
        Folder of a trained ranker, whose item tokens are the embeddings; needs --events.
    events: Path | None
        Folder of the dataset whose items get ids. Codebooks are fitted on the items of its training part.
    embeddings: Path | None
        Instead, an .npz file with item_ids [n], embeddings [n, width] and maybe priority [n].
    sizes: str
        Centroids of each level, between commas.
    collision: Collision
        Items with equal codes: share the id, get a digit more, or be reassigned to free codes.
    neighbours: int
        With reassign, how many nearest codes an item may be moved to.
    centre: bool
        Subtract the mean first.
    normalise: bool
        Scale embeddings to length 1.
    passes: int
        Most passes of k-means over the items.
    batch: int
        Items of one update of k-means.
    seed: int
        Equal seeds and embeddings give equal ids.
    previous: Path | None
        An earlier build; the report says how far ids drifted from it.
    json: Path | None
        Write the report to this file.
    """
    check_folder("--out", out)
    check_target(out)
    check_file("--json", json)
    config = SidConfig(
        sizes=_numbers("--sizes", sizes),
        centre=centre,
        normalise=normalise,
        passes=passes,
        batch=batch,
        collision=collision,
        neighbours=neighbours,
        seed=seed,
    )
    before = None if previous is None else open_sids(previous)[0]
    source = _source(ranker, events, embeddings)
    made = build_sids(
        source.item_ids, source.embeddings, config, source.priority, source.fitted, previous=before
    )
    digest = save_sids(made, out)
    write_json(json, made.report)
    _print(made, digest, out)


@sids_app.command
def describe(folder: Path, *, json: Path | None = None) -> None:
    """Print what a build holds; a damaged one is an error.

    Parameters
    ----------
    folder: Path
        Folder of the build.
    json: Path | None
        Write the report to this file.
    """
    check_file("--json", json)
    sids, digest = open_sids(folder)
    write_json(json, sids.report)
    _print(sids, digest, folder)


@sids_app.command
def add(folder: Path, *, embeddings: Path, out: Path) -> None:
    """Give new items ids with the codebooks of a build; those of its own items stay as they are.

    Parameters
    ----------
    folder: Path
        Folder of the build.
    embeddings: Path
        An .npz file with item_ids [n], embeddings [n, width] and maybe priority [n] of the new items.
    out: Path
        Folder of the build with both; it may be the same one.
    """
    check_folder("--out", out)
    check_target(out)
    sids, _ = open_sids(folder)
    new = from_npz(embeddings)
    made = add_items(sids, new.item_ids, new.embeddings, new.priority)
    digest = save_sids(made, out)
    Console().print(
        escape(f"{out}: {len(new.item_ids):,} items added to {len(sids.item_ids):,}, build {digest}"),
        soft_wrap=True,
    )


def _source(ranker: Path | None, events: Path | None, embeddings: Path | None) -> ItemEmbeddings:
    if embeddings is not None:
        if ranker is not None or events is not None:
            raise ConfigError("--embeddings", "stands for itself, without --ranker and --events")
        return from_npz(embeddings)
    if ranker is None or events is None:
        raise ConfigError("--ranker", "needs --events as well; or give --embeddings")
    dataset = open_events(events)
    choice = choose("cpu", "fp32")
    model, _ = open_ranker(ranker, choice.dtype)
    return from_ranker(model, dataset, choice.kernel, temporal_split(dataset).train_end_s)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(option, f"{text!r} must be whole numbers between commas") from error


def _print(sids: SemanticIds, digest: str, folder: Path) -> None:
    report, console = sids.report, Console()
    table = Table("level", "codes", "used", "perplexity", "prefixes", "energy left", box=None, pad_edge=False)
    for number, level in enumerate(report.levels, start=1):
        energy = "-" if level.residual_energy is None else f"{level.residual_energy:.4f}"
        table.add_row(
            str(number),
            f"{level.size:,}",
            f"{level.utilisation:.1%}",
            f"{level.perplexity:,.1f}",
            f"{level.prefixes:,}",
            energy,
        )
    console.print(table)
    for line in _lines(report):
        console.print(escape(line), soft_wrap=True)
    console.print(
        escape(f"{folder}: build {digest}, {len(sids.item_ids):,} items in {TABLE_FILE}"), soft_wrap=True
    )


def _lines(report: SidReport) -> list[str]:
    lines = [
        f"{report.items:,} items under {report.sids:,} ids; {report.collision_rate:.2%} of the items share "
        f"theirs, at most {report.largest_sid} do; reconstruction error {report.reconstruction_error:.4f}"
    ]
    if report.moved or report.left:
        lines.append(
            f"{report.moved:,} items moved to free codes (error +{report.added_error:.5f}), "
            f"{report.left:,} still share"
        )
    lines += [f"note: {note}" for note in report.notes]
    if report.drift is not None:
        drift = report.drift
        changed = ", ".join(f"{share:.1%}" for share in drift.changed)
        regrouped = ", ".join(f"{share:.1%}" for share in drift.regrouped)
        lines.append(
            f"against the earlier build: {drift.common:,} common items, {drift.added:,} new, "
            f"{drift.removed:,} gone; by level, other codes {changed}; left their group {regrouped}"
        )
    return lines
