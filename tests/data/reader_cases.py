"""One way of writing the same events in every format, for the tests that every reader must pass."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow
from pyarrow import parquet

from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.readers.history import GitReader
from relaygr.data.readers.interface import Reader
from relaygr.data.readers.jsonl import JsonlReader
from relaygr.data.readers.kuairand import KuaiRandReader
from relaygr.data.readers.movielens import MovieLensReader
from relaygr.data.readers.parquet import ParquetReader
from relaygr.data.readers.recbole import RecBoleReader

Event = tuple[str, int, int]
BAD_TIME = -1

KUAIRAND_HEADER = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,"
    "long_view,play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A format: how events are written to `folder / stem`, and what one of `BAD_TIME` is refused for.

    Attributes:
        first_line: what errors call the first event.
        time_column: what errors call the column of the time.
    """

    command: str
    reader: type[Reader]
    write: Callable[[Path, str, Sequence[Event]], Path]
    first_line: int
    time_column: str
    text: bool = True


def _text(suffix: str, header: str, line: Callable[[str, int, int], str]) -> Callable[..., Path]:
    def write(folder: Path, stem: str, events: Sequence[Event]) -> Path:
        lines = [header] if header else []
        file = folder / f"{stem}{suffix}"
        file.write_text("".join(f"{each}\n" for each in [*lines, *(line(*event) for event in events)]))
        return file

    return write


def _kuairand(user: str, item: int, time_s: int) -> str:
    return f"{user},{item},20220408,1600,{time_s * 1000},1,0,0,0,0,0,1,5,9,0,0,0,0,1"


def _json(user: str, item: int, time_s: int) -> str:
    return json.dumps({"user_id": user, "item_id": item, "timestamp": time_s})


def write_parquet(folder: Path, stem: str, events: Sequence[Event]) -> Path:
    users, items, times = zip(*events, strict=True) if events else ((), (), ())
    table = pyarrow.table(
        {
            "user_id": pyarrow.array(users, pyarrow.string()),
            "item_id": pyarrow.array(items, pyarrow.int64()),
            "timestamp": pyarrow.array(times, pyarrow.int64()),
        }
    )
    file = folder / f"{stem}.parquet"
    parquet.write_table(table, file)
    return file


def write_repository(folder: Path, stem: str, events: Sequence[Event]) -> Path:
    """A bare repository with one commit an event."""
    commits = [(user.encode(), str(time_s).encode(), [b"%d" % item]) for user, item, time_s in events]
    return commit_all(folder / stem, commits)


def git(*arguments: object, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["git", *map(str, arguments)], input=stdin, capture_output=True, check=True)
    return done.stdout.strip()


def commit_all(path: Path, commits: Sequence[tuple[bytes, bytes, Sequence[bytes]]]) -> Path:
    """A bare repository at `path`; a commit is its author, author time as text and the paths it writes.

    The objects are written as they are given, so that they may hold what git itself would refuse.
    """
    git("init", "-q", "--bare", path)
    parent, files = b"", dict[bytes, bytes]()
    for number, (author, time_text, changed) in enumerate(commits):
        blob = git("-C", path, "hash-object", "-w", "--stdin", stdin=b"%d" % number)
        files |= dict.fromkeys(changed, blob)
        entries = b"".join(b"100644 blob %s\t%s\0" % (blob, name) for name, blob in files.items())
        tree = git("-C", path, "mktree", "-z", stdin=entries)
        above = b"parent %s\n" % parent if parent else b""
        text = b"tree %s\n%sauthor %s <a@b> %s +0000\ncommitter C <c@d> 1700000000 +0000\n\nm\n"
        commit = text % (tree, above, author, time_text)
        parent = git("-C", path, "hash-object", "-t", "commit", "-w", "--literally", "--stdin", stdin=commit)
    if parent:
        # Not update-ref, which would look into the commits.
        (path / "refs" / "heads" / "main").write_bytes(parent + b"\n")
        (path / "HEAD").write_text("ref: refs/heads/main\n")
    return path


CASES = (
    Case("csv", CsvReader, _text(".csv", "user_id,item_id,timestamp", "{},{},{}".format), 2, "timestamp"),
    Case(
        "movielens",
        MovieLensReader,
        _text(".csv", "userId,movieId,rating,timestamp", "{},{},4.0,{}".format),
        2,
        "timestamp",
    ),
    Case("movielens", MovieLensReader, _text(".dat", "", "{}::{}::4::{}".format), 1, "timestamp"),
    Case("movielens", MovieLensReader, _text(".data", "", "{}\t{}\t4\t{}".format), 1, "timestamp"),
    Case(
        "recbole",
        RecBoleReader,
        _text(".inter", "user_id:token\titem_id:token\ttimestamp:float", "{}\t{}\t{}.0".format),
        2,
        "timestamp",
    ),
    Case("kuairand", KuaiRandReader, _text(".csv", KUAIRAND_HEADER, _kuairand), 2, "time_ms"),
    Case("jsonl", JsonlReader, _text(".jsonl", "", _json), 1, "timestamp"),
    Case("parquet", ParquetReader, write_parquet, 1, "timestamp", text=False),
    Case("from-git", GitReader, write_repository, 1, "author time", text=False),
)


def compress(file: Path) -> Path:
    packed = file.with_name(file.name + ".gz")
    packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    return packed
