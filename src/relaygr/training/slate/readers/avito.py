"""Avito: contextual ads on pages of search results, with positions and a ranker's estimate of clicks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relaygr.data.readers.fields import read_integer, read_number
from relaygr.listwise.arrays import Float32
from relaygr.listwise.pool import Head
from relaygr.training.slate.readers.raw import RawLists, attribute, by_key, check_rows, labels_of
from relaygr.training.slate.readers.table import Read, integer_or_missing, integers, joined, read_columns

HEADS = (Head("click"),)
CONTEXTUAL = 3  # the one type of ad whose clicks are told
_CLOSEST = 1e-6  # of an estimate to 0 and 1
CANNOT = (
    "the candidates and the probabilities of the choice: nothing is estimable off policy",
    "what was looked at: an ad without a click may not have been seen, and no exit is told",
    "other ads on the page: their clicks are not in the data, so that lists hold contextual ads alone",
)


def read_avito(stream: Path, searches: Path, ads: Path | None = None, length: int = 10) -> RawLists:
    """The contextual ads of one search as one list, by position; positions are the slots.

    Args:
        stream: `trainSearchStream.tsv`: SearchID, AdID, Position, ObjectType, HistCTR, IsClick.
        searches: `SearchInfo.tsv`: SearchID, UserID and others.
        ads: `AdsInfo.tsv`: AdID, CategoryID and others.

    Raises:
        DataError: a file is wrong; names file, line and column.
    """
    wanted: dict[str, Read] = {
        "SearchID": read_integer,
        "AdID": read_integer,
        "Position": read_integer,
        "ObjectType": read_integer,
        "HistCTR": _or_nan,
        "IsClick": _or_nan,
    }
    rows = read_columns(stream, wanted, "\t")
    kept = (rows["ObjectType"] == CONTEXTUAL) & np.isfinite(rows["HistCTR"])
    check_rows(str(stream), int(kept.sum()))
    rows = {name: values[kept] for name, values in rows.items()}
    keys, items, places = (integers(rows[name]) for name in ("SearchID", "AdID", "Position"))
    grouping = by_key(keys, places, length)
    people = read_columns(searches, {"SearchID": read_integer, "UserID": integer_or_missing}, "\t")
    users = joined(keys, integers(people["SearchID"]), integers(people["UserID"]))
    attributes = {}
    if ads is not None:
        columns = read_columns(ads, {"AdID": read_integer, "CategoryID": integer_or_missing}, "\t")
        topics = joined(items, integers(columns["AdID"]), integers(columns["CategoryID"]))
        attributes["topic"] = attribute(grouping, topics, length)
    chance = np.clip(rows["HistCTR"], _CLOSEST, 1 - _CLOSEST)
    outputs: Float32 = grouping.place(np.log(chance / (1 - chance)), length, 0.0).astype(np.float32)
    sizes = grouping.sizes()
    none = np.zeros(len(sizes), dtype=np.int64)
    return RawLists(
        data="Avito",
        heads=HEADS,
        users=grouping.first(users),
        items=attribute(grouping, items, length),
        labels=labels_of(grouping, [rows["IsClick"]], length),
        outputs=outputs[..., None],
        attributes=attributes,
        shown=sizes,
        consumed=sizes,
        more=grouping.more,
        surface=none,
        page=none,
        session=none,
        slots=grouping.place(places, length, 0).astype(np.int64),
        cannot=CANNOT,
    )


def _or_nan(text: str) -> float:
    """A number; NaN for an empty field."""
    return float("nan") if not text.strip() else read_number(text)
