"""From a log on disk to arrays for training, with what the item table knows of the items."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float32, Float64, Int32, Int64
from relaygr.listwise.items import ItemTable
from relaygr.listwise.log_files import log_files
from relaygr.listwise.pool import MISSING, Head, Pool
from relaygr.listwise.slate_log import Drawn, Offered, SlateRecord, read_header, read_records
from relaygr.training.slate.logs import Earlier, LoggedLists

TEXT_BYTES = 8 << 30  # of a log's files
ARRAY_BYTES = 8 << 30  # of its lists as arrays, all of them as long as the longest


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What could have been shown: ids int64 [C], outputs of the ranker float32 [C, K]."""

    ids: Int64
    outputs: Float32


class Origin(NamedTuple):
    """What made a list: versions of value function and rules, empty where not known, and the draw."""

    value: str
    rules: str
    drawn: Drawn | None


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log of N lists.

    Attributes:
        logs: the lists.
        candidates: of each list; None where they were not kept.
        origins: of each list.
    """

    logs: LoggedLists
    candidates: Sequence[Candidates | None]
    table: ItemTable | None
    origins: Sequence[Origin]

    def pool(self, n: int) -> Pool | None:
        """The candidates of list n as the list layer gets them; None if they were not kept."""
        offered = self.candidates[n]
        if offered is None:
            return None
        facts = None if self.table is None else self.table(offered.ids)
        return Pool(
            ids=offered.ids,
            heads=self.logs.heads,
            outputs=offered.outputs,
            attributes={} if facts is None else facts.attributes,
            vectors=None if facts is None else facts.vectors,
        )

    def select(self, rows: Int64) -> ReadLog:
        """Some of the lists."""
        listed = rows.tolist()
        return ReadLog(
            self.logs.select(rows),
            [self.candidates[n] for n in listed],
            self.table,
            [self.origins[n] for n in listed],
        )


def read_log(folder: Path, table: ItemTable | None = None) -> ReadLog:
    """All lists of a log.

    Args:
        table: attributes and vectors of the items; none without.

    Raises:
        ConfigError: a file, a line or the whole does not fit; names it.
    """
    heads = tuple(Head(each.name, each.kind) for each in read_header(folder).heads)
    _check_text(folder)
    records, candidates = list[SlateRecord](), list[Candidates | None]()
    for record in read_records(folder):
        candidates.append(_candidates(record.candidates, len(heads)))
        records.append(msgspec.structs.replace(record, candidates=None))
    if not records:
        raise ConfigError(str(folder), "holds no lists")
    _check_arrays(folder, records, len(heads), table)
    N, L = len(records), max(len(one.items) for one in records)
    shown = np.array([len(one.items) for one in records], dtype=np.int64)
    items = _rows(records, L, MISSING, np.int64, lambda one: one.items)
    outputs = np.zeros((N, L, len(heads)), dtype=np.float32)
    labels = np.full(outputs.shape, np.nan, dtype=np.float32)
    for n, one in enumerate(records):
        outputs[n, : len(one.items)] = one.outputs
        if one.consumed:
            labels[n, : one.consumed] = np.array(one.labels, dtype=np.float32)
    attributes, vectors = _facts(table, items)
    slots = None
    if any(one.slots for one in records):
        slots = _rows(records, L, 0, np.int64, lambda one: one.slots[: len(one.items)])
    return ReadLog(
        LoggedLists(
            heads=heads,
            users=np.array([user_number(one.user, one.tenant) for one in records], dtype=np.int64),
            items=items,
            outputs=outputs,
            labels=labels,
            attributes=attributes,
            vectors=vectors,
            shown=shown,
            consumed=np.array([one.consumed for one in records], dtype=np.int64),
            more=np.array([one.more for one in records], dtype=bool),
            asked=np.array([one.asked for one in records], dtype=np.int64),
            surface=np.array([one.surface for one in records], dtype=np.int64),
            page=np.array([one.page for one in records], dtype=np.int64),
            session=np.array([one.session for one in records], dtype=np.int64),
            slots=slots,
            earlier=_earlier(records, table),
            log_propensity=_rows(records, L, np.nan, np.float64, lambda one: one.log_propensity),
            generator=np.array([one.generator for one in records], dtype=np.str_),
        ),
        candidates,
        table,
        [_origin(one) for one in records],
    )


def records_of(
    logs: LoggedLists, items: Int32 | Int64 | None = None, outputs: Float32 | None = None
) -> list[SlateRecord]:
    """Logged first pages as records.

    Args:
        items, outputs: the candidates of each list [N, C] and [N, C, K]; None if they are not kept.
    """
    made = []
    for n in range(len(logs)):
        L, consumed = int(logs.shown[n]), int(logs.consumed[n])
        offered = None
        if items is not None and outputs is not None:
            offered = Offered(items=tuple(items[n].tolist()), outputs=tuple(map(tuple, outputs[n].tolist())))
        known = logs.log_propensity[n, :L]
        made.append(
            SlateRecord(
                user=str(int(logs.users[n])),
                items=tuple(logs.items[n, :L].tolist()),
                outputs=tuple(map(tuple, logs.outputs[n, :L].tolist())),
                asked=int(logs.asked[n]),
                consumed=consumed,
                labels=tuple(
                    tuple(None if np.isnan(each) else each for each in row)
                    for row in logs.labels[n, :consumed].tolist()
                ),
                more=bool(logs.more[n]),
                log_propensity=tuple(known.tolist()) if np.isfinite(known).all() else (),
                generator=logs.generators[n] if logs.generator is not None else "logged",
                candidates=offered,
                surface=int(logs.surface[n]),
                page=int(logs.page[n]),
                session=int(logs.session[n]),
                slots=() if logs.slots is None else tuple(logs.slots[n, :L].tolist()),
            )
        )
    return made


def user_number(user: str, tenant: str = "") -> int:
    """A user's id as a number below 2**63, the same in every process; no two tenants share users."""
    text = f"{tenant}\0{user}" if tenant else user  # no name has a NUL
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _origin(record: SlateRecord) -> Origin:
    value, rules, *_ = (*record.versions, "", "")
    return Origin(value, rules, record.drawn)


def _check_text(folder: Path) -> None:
    try:
        size = sum(path.stat().st_size for path in log_files(folder))
    except OSError as error:
        raise ConfigError(str(folder), f"cannot be read: {error.strerror or error}") from error
    if size > TEXT_BYTES:
        raise ConfigError(str(folder), f"its files have {size:,} bytes, limit {TEXT_BYTES:,}")


def _check_arrays(folder: Path, records: Sequence[SlateRecord], heads: int, table: ItemTable | None) -> None:
    """One long list makes all others as long, so that a small log may take any memory."""
    N, L, P = len(records), max(len(one.items) for one in records), max(len(one.earlier) for one in records)
    facts = 0
    if table is not None:
        facts = 8 * len(table.attributes) + (0 if table.vectors is None else 4 * (table.vectors.shape[1] + 1))
    size = N * (L * (8 * heads + 24 + facts) + P * (9 + facts))
    if size > ARRAY_BYTES:
        raise ConfigError(
            str(folder),
            f"{N:,} lists of up to {L} items behind up to {P} of earlier pages take {size:,} bytes as "
            f"arrays, limit {ARRAY_BYTES:,}",
        )


def _candidates(offered: Offered | None, heads: int) -> Candidates | None:
    if offered is None:
        return None
    ids = np.array(offered.items, dtype=np.int64)
    return Candidates(ids, np.array(offered.outputs, dtype=np.float32).reshape(len(ids), heads))


def _rows(
    records: Sequence[SlateRecord],
    length: int,
    fill: float,
    kind: type,
    get: Callable[[SlateRecord], Sequence[float]],
) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.full((len(records), length), fill, dtype=kind)
    for n, one in enumerate(records):
        values = get(one)[:length]
        found[n, : len(values)] = values
    return found


def _facts(table: ItemTable | None, items: Int64) -> tuple[dict[str, Int64], Float32 | None]:
    """Attributes and vectors of items [N, P]."""
    if table is None:
        return {}, None
    facts = table(items.reshape(-1))
    vectors = None if facts.vectors is None else facts.vectors.reshape(*items.shape, -1)
    return {name: values.reshape(items.shape) for name, values in facts.attributes.items()}, vectors


def _earlier(records: Sequence[SlateRecord], table: ItemTable | None) -> Earlier | None:
    P = max(len(one.earlier) for one in records)
    if not P:
        return None
    items = np.full((len(records), P), MISSING, dtype=np.int64)
    there = np.zeros(items.shape, dtype=bool)
    for n, one in enumerate(records):
        if one.earlier:
            items[n, -len(one.earlier) :] = one.earlier
            there[n, -len(one.earlier) :] = True
    attributes, vectors = _facts(table, items)
    watch: Float64 = np.array([one.earlier_watch for one in records], dtype=np.float64)
    return Earlier(there=there, attributes=attributes, vectors=vectors, watch=watch)
