"""The Ad data of LibRerank: Taobao's display ads, cut into lists by pauses of five minutes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relaygr.data.readers.fields import BadField, Reason, read_flag, read_integer
from relaygr.listwise.pool import Head
from relaygr.training.slate.readers.raw import RawLists, attribute, check_rows, group, labels_of
from relaygr.training.slate.readers.table import Read, integer_or_missing, integers, joined, read_columns

HEADS = (Head("click"),)
LIST_GAP_S = 300.0
CANNOT = (
    "the order on the screen: ads stand in the order of time, those of one second in that of their numbers",
    "the candidates and the probabilities of the choice: nothing is estimable off policy",
    "what was looked at: an ad without a click may not have been seen",
    "when a user left the page",
)


def read_librerank(samples: Path, ads: Path | None = None, length: int = 10) -> RawLists:
    """Impressions of a user with less than five minutes between them as lists.

    Args:
        samples: `raw_sample.csv`: user, time_stamp, adgroup_id, pid, nonclk, clk.
        ads: `ad_feature.csv`: adgroup_id, cate_id, campaign_id, customer, brand, price.

    Raises:
        DataError: a file is wrong; names file, line and column.
    """
    wanted: dict[str, Read] = {
        "user": read_integer,
        "time_stamp": read_integer,
        "adgroup_id": read_integer,
        "pid": _place,
        "clk": read_flag,
    }
    rows = read_columns(samples, wanted)
    check_rows(str(samples), len(rows["user"]))
    users, items = integers(rows["user"]), integers(rows["adgroup_id"])
    grouping = group(users, rows["time_stamp"], LIST_GAP_S, length, items)
    attributes = {}
    if ads is not None:
        names = {"topic": "cate_id", "author": "brand", "campaign": "campaign_id", "customer": "customer"}
        readers: dict[str, Read] = {"adgroup_id": read_integer}
        readers |= dict.fromkeys(names.values(), integer_or_missing)
        columns = read_columns(ads, readers)
        of = integers(columns["adgroup_id"])
        attributes = {name: joined(items, of, integers(columns[column])) for name, column in names.items()}
    sizes = grouping.sizes()
    return RawLists(
        data="LibRerank-Ad",
        heads=HEADS,
        users=grouping.first(users),
        items=attribute(grouping, items, length),
        labels=labels_of(grouping, [rows["clk"]], length),
        attributes={name: attribute(grouping, values, length) for name, values in attributes.items()},
        shown=sizes,
        consumed=sizes,
        more=grouping.more,
        surface=grouping.first(integers(rows["pid"])),
        page=np.zeros(len(sizes), dtype=np.int64),
        session=grouping.session,
        cannot=CANNOT,
    )


def _place(text: str) -> float:
    """A position such as `430548_1007` by its second number."""
    first, separator, second = text.partition("_")
    if not separator or not first:
        raise BadField(Reason.NUMBER, f"{text[:64]!r} is not of the form 430548_1007")
    return float(read_integer(second))
