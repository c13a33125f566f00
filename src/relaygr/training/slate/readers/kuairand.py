"""KuaiRand: what users did with the videos of their feeds, and with some that were put in at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.readers.fields import read_flag, read_integer, read_number
from relaygr.listwise.arrays import Float64, Int64
from relaygr.listwise.pool import MISSING, Head, HeadKind
from relaygr.training.slate.readers.raw import RawExposures, RawLists, attribute, check_rows, group, labels_of
from relaygr.training.slate.readers.table import Read, integer_or_missing, integers, joined, read_columns

HEADS = (Head("click"), Head("like"), Head("long_view"), Head("watch_s", HeadKind.REGRESSION))
_LOG: dict[str, Read] = {
    "user_id": read_integer,
    "video_id": read_integer,
    "time_ms": read_integer,
    "is_click": read_flag,
    "is_like": read_flag,
    "long_view": read_flag,
    "play_time_ms": read_number,
    "is_rand": read_flag,
    "tab": read_integer,
}
CANNOT = (
    "the candidates and the probabilities of the choice: nothing is estimable off policy",
    "where one request's list ends: lists are cut from the feed by pauses and by length",
    "when a user left: the log ends a session, it does not say why",
    "lists at random: single videos were put in at random, which calibrates items, not lists",
)


def read_kuairand(
    logs: Sequence[Path],
    features: Path | None = None,
    length: int = 10,
    gap_s: float = 1800.0,
) -> RawLists:
    """Standard rows as lists, random rows as exposures.

    Args:
        logs: `log_standard_*.csv` and `log_random_*.csv`.
        features: `video_features_basic_*.csv`, for authors, audio and topics.

    Raises:
        DataError: a file is wrong; names file, line and column.
    """
    if not logs:
        raise ConfigError("logs", "no file is given")
    parts = [read_columns(path, _LOG) for path in logs]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in _LOG}
    random = rows["is_rand"] > 0
    check_rows(str(logs[0]), int((~random).sum()))
    columns = [rows["is_click"], rows["is_like"], rows["long_view"], rows["play_time_ms"] / 1000.0]
    standard = [column[~random] for column in columns]
    users, items = integers(rows["user_id"]), integers(rows["video_id"])
    grouping = group(users[~random], rows["time_ms"][~random] / 1000.0, gap_s, length, items[~random])
    known = _features(features, items[~random])
    exposures = None
    if random.any():
        shown = np.stack([column[random] for column in columns], axis=1).astype(np.float32)
        exposures = RawExposures(users=users[random], items=items[random], labels=shown)
    sizes = grouping.sizes()
    return RawLists(
        data="KuaiRand",
        heads=HEADS,
        users=grouping.first(users[~random]),
        items=attribute(grouping, items[~random], length),
        labels=labels_of(grouping, standard, length),
        attributes={name: attribute(grouping, values, length) for name, values in known.items()},
        shown=sizes,
        consumed=sizes,
        more=grouping.more,
        surface=grouping.first(integers(rows["tab"][~random])),
        page=grouping.session // length,
        session=grouping.session,
        random=exposures,
        cannot=CANNOT,
    )


def _features(path: Path | None, items: Int64) -> dict[str, Int64]:
    if path is None:
        return {}
    wanted: dict[str, Read] = {
        "video_id": read_integer,
        "author_id": integer_or_missing,
        "music_id": integer_or_missing,
        "tag": _first_tag,
    }
    columns: dict[str, Float64] = read_columns(path, wanted)
    of = integers(columns["video_id"])
    names = {"author": "author_id", "audio": "music_id", "topic": "tag"}
    return {name: joined(items, of, integers(columns[column])) for name, column in names.items()}


def _first_tag(text: str) -> float:
    """The first of tags between commas; -1 for none."""
    first = text.partition(",")[0].strip()
    return integer_or_missing(first) if first else float(MISSING)
