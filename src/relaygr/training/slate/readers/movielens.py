"""MovieLens: ratings in the order in which they were typed, cut into lists that nobody was shown."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from relaygr.core.errors import DataError
from relaygr.data.readers.fields import rating_reader, read_integer
from relaygr.data.readers.movielens import HIGHEST, LOWEST
from relaygr.listwise.arrays import Float64, Int64
from relaygr.listwise.pool import MISSING, Head
from relaygr.training.slate.readers.raw import RawLists, attribute, check_rows, group, labels_of
from relaygr.training.slate.readers.table import integers, joined, read_columns

HEADS = (Head("like"),)
NO_GENRES = "(no genres listed)"
CANNOT = (
    "slates: nobody was shown these lists; films stand in the order in which users typed ratings",
    "sessions: most users typed everything in one sitting, long after they saw the films",
    "exits: a user who stops typing has not left a feed, so lists are taken to be read to their end",
    "exposure: films without a rating are unknown, not disliked, and nothing was chosen at random",
    "effects of context on liking: a user types ratings of films that belong together, so that likes of "
    "neighbours go together whatever neighbours do to each other",
)


@dataclass(frozen=True, slots=True, eq=False)
class Ratings:
    """R ratings by user, then time, then film.

    Attributes:
        users, items: int64 [R]; times_s, like: float64 [R].
    """

    users: Int64
    items: Int64
    times_s: Float64
    like: Float64

    def __len__(self) -> int:
        """R."""
        return len(self.users)


@dataclass(frozen=True, slots=True, eq=False)
class Films:
    """Films and their genres.

    Attributes:
        ids: int64 [F], ascending; genres: float64 [F, G], 0 or 1; topics: int64 [F], the first genre or -1.
        names: of the genres.
    """

    ids: Int64
    genres: Float64
    topics: Int64
    names: tuple[str, ...]


def read_ratings(path: Path, like_from: float = 4.0) -> Ratings:
    """`ratings.csv`, gzip or not. Raises DataError."""
    like: Callable[[str], float] = rating_reader(like_from, LOWEST, HIGHEST)
    wanted = {"userId": read_integer, "movieId": read_integer, "rating": like, "timestamp": read_integer}
    columns = read_columns(path, wanted)
    check_rows(str(path), len(columns["userId"]))
    users, items = integers(columns["userId"]), integers(columns["movieId"])
    order = np.lexsort((items, columns["timestamp"], users))
    return Ratings(users[order], items[order], columns["timestamp"][order], columns["rating"][order])


def read_films(path: Path) -> Films:
    """`movies.csv`, gzip or not. Raises DataError."""
    ids, genres = list[int](), list[list[str]]()
    number = 1
    try:
        with path.open("rb") as stream:
            zipped = stream.peek(1).startswith(b"\x1f")
            binary = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
            lines = (line.decode("utf-8-sig") for line in binary)
            for row in csv.DictReader(lines, strict=True):
                number += 1
                ids.append(read_integer(row["movieId"] or ""))
                listed = (row["genres"] or "").split("|")
                genres.append([name for name in listed if name and name != NO_GENRES])
    except (OSError, EOFError, ValueError, KeyError, csv.Error) as error:
        raise DataError(str(path), number, "", f"cannot be read: {error}") from error
    check_rows(str(path), len(ids))
    names = tuple(sorted({name for row in genres for name in row}))
    flags = np.zeros((len(ids), len(names)))
    topics = np.full(len(ids), MISSING, dtype=np.int64)
    for at, listed in enumerate(genres):
        places = [names.index(name) for name in listed]
        flags[at, places] = 1.0
        if places:
            topics[at] = places[0]
    order = np.argsort(ids, kind="stable")
    return Films(np.array(ids, dtype=np.int64)[order], flags[order], topics[order], names)


def lists_of(ratings: Ratings, films: Films, length: int = 10, gap_s: float = 6 * 3600.0) -> RawLists:
    """Consecutive ratings as lists; see `CANNOT`."""
    grouping = group(ratings.users, ratings.times_s, gap_s, length, ratings.items)
    sizes = grouping.sizes()
    topics = joined(ratings.items, films.ids, films.topics)
    none = np.zeros(len(sizes), dtype=np.int64)
    return RawLists(
        data="MovieLens",
        heads=HEADS,
        users=grouping.first(ratings.users),
        items=attribute(grouping, ratings.items, length),
        labels=labels_of(grouping, [ratings.like], length),
        attributes={"topic": attribute(grouping, topics, length)},
        shown=sizes,
        consumed=sizes,
        more=grouping.more,
        surface=none,
        page=none,
        session=grouping.session,
        cannot=CANNOT,
    )
