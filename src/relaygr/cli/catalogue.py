"""`relaygr catalogue`: build the catalogue that generation is constrained to, and describe one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.core.units import format_bytes
from relaygr.generation.catalogue.artefact import (
    Catalogue,
    check_target,
    make_catalogue,
    open_catalogue,
    write_catalogue,
)
from relaygr.generation.catalogue.describe import CatalogueShape, describe_index
from relaygr.generation.catalogue.source import Form, ReadOptions
from relaygr.generation.catalogue.sources import open_source
from relaygr.generation.catalogue.tokens import TokenSpec
from relaygr.generation.sids.artefact import SIDS_FILE, TABLE_FILE, open_sids

catalogue_app = App(name="catalogue", help="Build and describe catalogues of semantic ids.")

Many = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")]


@catalogue_app.command
def build(
    source: Path,
    *,
    out: Path,
    form: Form | None = None,
    levels: int | None = None,
    sizes: Many = (),
    first_tokens: Many = (),
    tokens: str | None = None,
    flags: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    text_ids: bool = False,
    allow_multi_sid: bool = False,
    as_of: float | None = None,
) -> None:
    """Build the catalogue OUT from the items and codes of SOURCE.

    Parameters
    ----------
    source: Path
        JSON lines of {"item_id", "token_ids", "metadata"}, a JSON map from item to codes, a flat binary file
        or an .npz of arrays; or a folder of `relaygr sids build`, whose levels have the sizes of that build.
    out: Path
        Folder of the catalogue; an older catalogue there is replaced, anything else is left alone.
    form: Form | None
        Form of SOURCE; without it .jsonl, .json (a map) and .npz tell by their names.
    levels: int | None
        Codes of an item; flat files need it.
    sizes: tuple[int, ...]
        Codes that each level may have; without it, as many as the largest one needs.
    first_tokens: tuple[int, ...]
        SOURCE holds model tokens, and these are the ones of code 0 of each level.
    tokens: str | None
        JSON of the model's tokens: {"bases": [..]}, {"tables": [[..], ..]} or {"patterns": [".."]}. Without
        it, the first tokens, if given.
    flags: tuple[str, ...]
        Filters that requests may name: true in `metadata` of JSON lines, or arrays `flag_NAME` of an .npz.
    text_ids: bool
        Item ids are strings, even if those of a map look like numbers; in an extended flat file, the first
        string of each item.
    allow_multi_sid: bool
        Let an item stand under several semantic ids.
    as_of: float | None
        Unix seconds of the data, by default when this command began. A server goes on denying items that were
        withdrawn later than that.
    """
    began_s = time.time()
    check_target(out, "--out")
    spec = _tokens(tokens, first_tokens)
    if as_of is not None and not 0 <= as_of <= began_s:
        raise ConfigError("--as-of", f"{as_of:g}, limit 0 to now ({began_s:.0f})")
    name, codebooks = source.name, ""
    if source.is_dir() and (source / SIDS_FILE).exists():
        sids = open_sids(source)[0]
        sizes, codebooks = sizes or sids.sizes, sids.codebooks.digest
        source = source / TABLE_FILE
    options = ReadOptions(form=form, levels=levels, text_ids=text_ids, flags=flags, first_tokens=first_tokens)
    found = open_source(source, options)
    built = found.build(sizes or None, allow_multi_sid=allow_multi_sid)
    if spec is not None and spec.patterns is None:
        spec.resolve(built.index.sizes)
    catalogue = make_catalogue(
        built.index,
        tokens=spec,
        source=name,
        codebooks=codebooks,
        as_of_s=began_s if as_of is None else as_of,
    )
    write_catalogue(out, catalogue)
    console = Console()
    console.print(f"{built.rows} rows, {built.duplicates} of them repeated", highlight=False)
    _print(console, catalogue, describe_index(built.index))


@catalogue_app.command
def describe(folder: Path, *, json: Path | None = None) -> None:
    """Verify the catalogue in FOLDER, and print its counts, out-degrees and bytes.

    Parameters
    ----------
    json: Path | None
        File for the same as JSON.
    """
    check_file("--json", json)
    catalogue = open_catalogue(folder)
    shape = describe_index(catalogue.index)
    write_json(json, shape)
    _print(Console(), catalogue, shape)


def _tokens(text: str | None, first_tokens: tuple[int, ...]) -> TokenSpec | None:
    if text is None:
        return TokenSpec(bases=first_tokens) if first_tokens else None
    try:
        return msgspec.json.decode(text, type=TokenSpec)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError("--tokens", str(error)) from error


def _print(console: Console, catalogue: Catalogue, shape: CatalogueShape) -> None:
    kind = "strings" if shape.strings else "whole numbers"
    console.print(
        f"{shape.sids} semantic ids, {shape.items} items ({kind}), {shape.shared_sids} ids of several items, "
        f"at most {shape.max_items}; {shape.hidden} items only as history",
        soft_wrap=True,
        highlight=False,
    )
    table = Table("level", "size", "used", "nodes", "children: mean", "P99", "max")
    for level, one in enumerate(shape.levels, start=1):
        table.add_row(
            str(level),
            str(one.size),
            str(one.used),
            str(one.nodes),
            f"{one.mean_children:.2f}",
            f"{one.p99_children:.0f}",
            str(one.max_children),
        )
    console.print(table)
    for name, count in shape.flags.items():
        console.print(escape(f"filter {name}: {count} of {shape.items} items pass"), highlight=False)
    console.print(
        f"tree {format_bytes(shape.tree_bytes)} ({shape.bytes_per_sid:.2f} B a semantic id), "
        f"all {format_bytes(shape.nbytes)}; version {catalogue.label}",
        soft_wrap=True,
        highlight=False,
    )
