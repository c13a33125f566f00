"""`relaygr data csv`, `movielens`, `from-git` and so on: one command for each reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from relaygr.cli.data_tables import skipped_table, statistics_table
from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.readers.history import GitReader
from relaygr.data.readers.interface import Reader
from relaygr.data.readers.jsonl import JsonlReader
from relaygr.data.readers.kuairand import KuaiRandReader
from relaygr.data.readers.movielens import MovieLensReader
from relaygr.data.readers.parquet import ParquetReader
from relaygr.data.readers.recbole import RecBoleReader
from relaygr.data.write import check_target, write_events

OnError = Literal["fail", "skip"]
Names = Annotated[tuple[str, ...], Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the events go.

    Parameters
    ----------
    out: Path
        Folder of the dataset; an older dataset there is replaced, anything else is left alone.
    name: str
        Name of the dataset, by default that of what is read.
    """

    out: Path
    name: str = ""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the dataset says about its events.

    Parameters
    ----------
    source: str
        Where the events come from, by default the names of the files.
    licence: str
        Under what terms they may be used.
    """

    source: str = ""
    licence: str = ""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which field is what.

    Parameters
    ----------
    action_column: tuple[str, ...]
        Field of 0/1 flags that becomes an action bit; may be given more than once.
    time_unit: Literal["s", "ms"]
        Unit of timestamps that are numbers; milliseconds are rounded down to seconds.
    item_ids: Literal["int", "hash"]
        Item ids are int64, or any strings, which are hashed to int64.
    on_error: Literal["fail", "skip"]
        Stop at the first bad row, or leave bad rows out and count them.
    """

    user_column: str = "user_id"
    item_column: str = "item_id"
    time_column: str = "timestamp"
    action_column: Names = ()
    time_unit: Literal["s", "ms"] = "s"
    item_ids: Literal["int", "hash"] = "int"
    on_error: OnError = "fail"


def csv(*files: Path, target: Target, fields: Fields = Fields(), origin: Origin = Origin()) -> None:
    """Read FILES (CSV with a header, gzip or not; one row an event) into the dataset OUT."""
    _make(_named(CsvReader, fields), files, target, origin)


def jsonl(*files: Path, target: Target, fields: Fields = Fields(), origin: Origin = Origin()) -> None:
    """Read FILES (one JSON object a line, gzip or not) into the dataset OUT."""
    _make(_named(JsonlReader, fields), files, target, origin)


def parquet(*files: Path, target: Target, fields: Fields = Fields(), origin: Origin = Origin()) -> None:
    """Read FILES (Parquet; needs the extra `parquet`) into the dataset OUT."""
    _make(_named(ParquetReader, fields), files, target, origin)


def movielens(*files: Path, target: Target, like_from: float = 4.0, on_error: OnError = "fail") -> None:
    """Read MovieLens ratings (ratings.csv, ratings.dat or u.data, gzip or not) into the dataset OUT.

    Parameters
    ----------
    like_from: float
        Ratings of so many stars or more set the action bit `like`.
    on_error: Literal["fail", "skip"]
        Stop at the first bad row, or leave bad rows out and count them.
    """
    _make(MovieLensReader(like_from=like_from, on_error=on_error), files, target, default_name="movielens")


def kuairand(*files: Path, target: Target, on_error: OnError = "fail") -> None:
    """Read KuaiRand logs (standard and random, gzip or not) into the dataset OUT.

    Parameters
    ----------
    on_error: Literal["fail", "skip"]
        Stop at the first bad row, or leave bad rows out and count them.
    """
    _make(KuaiRandReader(on_error=on_error), files, target, default_name="kuairand")


def recbole(
    *files: Path,
    target: Target,
    user_column: str = "user_id",
    item_column: str = "item_id",
    time_column: str = "timestamp",
    rating_column: str = "rating",
    like_from: float | None = None,
    action_column: Names = (),
    time_unit: Literal["s", "ms"] = "s",
    item_ids: Literal["int", "hash"] = "hash",
    on_error: OnError = "fail",
    origin: Origin = Origin(),
) -> None:
    """Read RecBole interactions (.inter, gzip or not) into the dataset OUT.

    Parameters
    ----------
    like_from: float | None
        Values of rating-column of so much or more set the action bit `like`; without it they are ignored.
    action_column: tuple[str, ...]
        Column of 0 and 1 that becomes an action bit; may be given more than once.
    time_unit: Literal["s", "ms"]
        Unit of the timestamps; what is finer than a second is rounded down.
    item_ids: Literal["int", "hash"]
        Tokens are hashed to int64, or all of them are int64.
    on_error: Literal["fail", "skip"]
        Stop at the first bad row, or leave bad rows out and count them.
    """
    reader = RecBoleReader(
        user_column=user_column,
        item_column=item_column,
        time_column=time_column,
        rating_column=rating_column,
        like_from=like_from,
        action_columns=action_column,
        time_unit=time_unit,
        item_ids=item_ids,
        on_error=on_error,
    )
    _make(reader, files, target, origin)


def from_git(
    repository: Path,
    *,
    target: Target,
    salt: str | None = None,
    max_paths: int = 200,
    rev: str = "HEAD",
    licence: str = "",
) -> None:
    """Read the history of a git REPOSITORY into the dataset OUT: authors are users, paths are items.

    An event is a path added, changed or deleted by a commit that is no merge. Names and paths are hashed.

    Parameters
    ----------
    repository: Path
        Top of a working tree, or a bare repository.
    salt: str | None
        Key of the hashes; the same salt and commit give the same bytes. Without one a random key is used and
        stored nowhere.
    max_paths: int
        Commits of more paths are left out.
    rev: str
        The commit whose history is read.
    licence: str
        Under what terms the events may be used.
    """
    reader = GitReader(salt=salt, max_paths=max_paths, rev=rev)
    _make(reader, (repository,), target, Origin(licence=licence), repository.resolve().name)


def _named(
    reader: type[CsvReader] | type[JsonlReader] | type[ParquetReader], fields: Fields
) -> CsvReader | JsonlReader | ParquetReader:
    return reader(
        user_column=fields.user_column,
        item_column=fields.item_column,
        time_column=fields.time_column,
        action_columns=fields.action_column,
        time_unit=fields.time_unit,
        item_ids=fields.item_ids,
        on_error=fields.on_error,
    )


def _make(
    reader: Reader,
    paths: tuple[Path, ...],
    target: Target,
    origin: Origin = Origin(),
    default_name: str = "",
) -> None:
    """Read, write the dataset, and print what it holds and what its publisher asks for."""
    check_target(target.out)
    title = escape(f"reading {', '.join(map(str, paths[:3]))}{' ...' if len(paths) > 3 else ''}")
    with Console(stderr=True).status(title) as status:
        read = reader.read(
            *paths, progress=lambda count: status.update(f"{title}: {count:,} {reader.record}s")
        )
    events = write_events(
        target.out,
        read.table,
        name=target.name or default_name or paths[0].name.split(".")[0],
        source=origin.source or read.source,
        licence=origin.licence or (reader.terms.licence if reader.terms else ""),
    )
    console = Console()
    console.print(statistics_table(events))
    if read.skipped:
        console.print(skipped_table(read.skipped, reader.record))
    if reader.terms is not None:
        for line in (f"Source: {reader.terms.source}", f"Licence: {reader.terms.licence}"):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
