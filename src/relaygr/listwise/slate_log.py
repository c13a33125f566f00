"""Lists that were shown and what came of them, on disk: what training reads.

A folder holds `log.json`, the heads of the ranker, and files `lists-N.jsonl` of one JSON object a list.
Attributes and vectors of items are not in it: they come from the item table that served the lists.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from relaygr.core.errors import ConfigError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.log_check import MAX_EARLIER, check_numbers, repeated_key
from relaygr.listwise.log_files import LogFiles, log_files
from relaygr.listwise.pool import Head, Pool, Shown
from relaygr.listwise.request import MAX_LENGTH, SlateAsk
from relaygr.listwise.result import SlateResult
from relaygr.listwise.step import HeadSpec

FORMAT_VERSION = 1
_HEADER = "log.json"
_FILE_BYTES = 64 << 20
_FILES = 64
_WAITING = 10_000
_HEADER_BYTES = 1 << 20
LINE_BYTES = 64 << 20
MAX_HEADS = 256

Count = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=256)]
Row = tuple[float, ...]


class LogHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `log.json` holds: the heads, in the order of all outputs and labels."""

    heads: tuple[HeadSpec, ...]
    format_version: int = FORMAT_VERSION


class Offered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The candidates of a request: ids [C] and outputs of the ranker [C, K]."""

    items: tuple[int, ...]
    outputs: tuple[Row, ...]


class Drawn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a list was drawn at random: by Plackett-Luce within the trust region.

    Attributes:
        temperature: of the values of the region on the scale 0..1.
        top: candidates by pointwise rank that the trust region holds.
        seed: that requests and lists were drawn by.
    """

    temperature: float
    top: int
    seed: int = 0


class SlateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One list.

    Attributes:
        user: as sent to the server.
        tenant: whose user; empty for the default one.
        request: id of the request.
        items, outputs: what was shown, first position first, and what the ranker said of it [L, K].
        asked: positions that had been asked for.
        consumed: positions that the user got to.
        labels: [consumed, K], by head; null where there is none.
        more: whether the user asked for the next page.
        log_propensity: log-probability of each pick behind those before it; empty if the choice was not
            random.
        drawn: how it was random, where a server drew it.
        generator: whose list it was.
        candidates: all that could have been shown; null if that was not kept.
        earlier: items of earlier pages of the feed, oldest first, at most `MAX_EARLIER`; earlier_watch: the
            sum of what was observed of the watch head there.
        surface, page, session, slots: as for `LoggedLists`.
        versions: value function, rules, step model and evaluator that served.
        seed: what stochastic generators drew by.
    """

    user: Text
    tenant: Text = ""
    request: str = ""
    items: Annotated[tuple[int, ...], Meta(min_length=1, max_length=MAX_LENGTH)]
    outputs: tuple[Row, ...]
    asked: Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
    consumed: Count
    labels: tuple[tuple[float | None, ...], ...]
    more: bool = False
    log_propensity: tuple[float, ...] = ()
    drawn: Drawn | None = None
    generator: Text = "logged"
    candidates: Offered | None = None
    earlier: tuple[int, ...] = ()
    earlier_watch: float = 0.0
    surface: int = 0
    page: Count = 0
    session: Count = 0
    slots: tuple[Count, ...] = ()
    versions: tuple[str, ...] = ()
    seed: str = ""


class Feedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came of one list; as in `SlateRecord`."""

    request: str
    consumed: Count
    labels: tuple[tuple[float | None, ...], ...] = ()
    more: bool = False


class SlateLog:
    """Writes records, and joins served lists with what came of them. Threads may share it.

    The oldest files are deleted when there is more than `files` full ones hold; lists that wait for feedback
    longest are forgotten when more than `waiting` do.

    Raises:
        ConfigError: the folder holds a log of other heads.
        BackendError: the file system refuses.
    """

    def __init__(
        self,
        folder: Path,
        heads: Sequence[Head],
        *,
        file_bytes: int = _FILE_BYTES,
        files: int = _FILES,
        waiting: int = _WAITING,
    ) -> None:
        for name, number in (("file_bytes", file_bytes), ("files", files), ("waiting", waiting)):
            if number < 1:
                raise ConfigError(name, f"{number} is below 1")
        self._limit = waiting
        self._lock, self._waiting = threading.Lock(), OrderedDict[str, SlateRecord]()
        self.written = self.forgotten = 0
        self._files = open_files(folder, heads, file_bytes, (files + 1) * file_bytes)
        self._heads = tuple(HeadSpec(name=head.name, kind=head.kind) for head in heads)

    def served(
        self,
        user: str,
        ask: SlateAsk,
        pool: Pool,
        result: SlateResult,
        seed: str = "",
        log_propensity: Sequence[float] = (),
    ) -> None:
        """Remember a list until its feedback comes; the propensities are as for `record_of`."""
        record = record_of(user, ask, pool, result, seed, log_propensity)
        with self._lock:
            self._waiting[record.request] = record
            self._waiting.move_to_end(record.request)
            while len(self._waiting) > self._limit:
                self._waiting.popitem(last=False)
                self.forgotten += 1

    def feedback(self, given: Feedback) -> bool:
        """Write the list that it belongs to; False if none waits.

        Raises:
            ConfigError: more was consumed than shown, or labels are of another shape or out of range.
        """
        with self._lock:
            record = self._waiting.get(given.request)
            if record is None:
                return False
            full = msgspec.structs.replace(
                record, consumed=given.consumed, labels=given.labels, more=given.more
            )
            check_record(full, len(record.outputs[0]))
            check_numbers(full, self._heads)
            del self._waiting[given.request]
            self._append([full])
        return True

    def write(self, records: Sequence[SlateRecord]) -> None:
        """Append complete records."""
        with self._lock:
            self._append(records)

    def _append(self, records: Sequence[SlateRecord]) -> None:
        self._files.append([msgspec.json.encode(one) + b"\n" for one in records])
        self.written += len(records)


def open_files(folder: Path, heads: Sequence[Head], file_bytes: int, total_bytes: int) -> LogFiles:
    """The files of a log of these heads, made if it is not there.

    Raises:
        ConfigError: the folder holds a log of other heads.
        BackendError: the file system refuses.
    """
    header = LogHeader(heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in heads))
    content = msgspec.json.format(msgspec.json.encode(header)) + b"\n"
    files = LogFiles(folder, file_bytes, total_bytes, (_HEADER, content))
    found = read_header(folder)
    if found != header:
        raise ConfigError(str(folder), f"is a log of the heads {found.heads}, not {header.heads}")
    return files


def record_of(
    user: str,
    ask: SlateAsk,
    pool: Pool,
    result: SlateResult,
    seed: str = "",
    log_propensity: Sequence[float] = (),
) -> SlateRecord:
    """A served list without feedback yet.

    Args:
        log_propensity: of each pick, where the list itself was drawn. That of a proposal is none: which
            list is shown depends on what it was compared with. By default that of a list that was drawn to
            explore.
    """
    shown, versions = ask.shown, result.versions
    return SlateRecord(
        user=user,
        request=ask.request_id,
        items=tuple(result.items.tolist()),
        outputs=tuple(map(tuple, pool.outputs[result.picks].tolist())),
        asked=ask.length,
        consumed=0,
        labels=(),
        log_propensity=tuple(log_propensity) or result.log_propensities,
        generator=result.generator,
        candidates=Offered(items=tuple(pool.ids.tolist()), outputs=tuple(map(tuple, pool.outputs.tolist()))),
        earlier=() if shown is None else tuple(shown.ids.tolist()),
        earlier_watch=_watched(shown),
        page=0 if shown is None else shown.page,
        session=ask.consumed,
        slots=tuple(ask.slots),
        versions=(versions.value, versions.rules, versions.step, versions.evaluator),
        seed=seed,
    )


def _watched(shown: Shown | None) -> float:
    if shown is None or shown.watch is None:
        return 0.0
    with np.errstate(over="ignore"):  # a sum that is not finite is refused with the record
        return float(shown.watch.sum())


def check_record(record: SlateRecord, heads: int) -> None:
    """Raise ConfigError naming the field that does not fit the others."""
    L = len(record.items)
    if record.consumed > L:
        raise ConfigError("consumed", f"{record.consumed} positions, {L} were shown")
    for name, rows, wanted in (("outputs", record.outputs, L), ("labels", record.labels, record.consumed)):
        if len(rows) != wanted or any(len(row) != heads for row in rows):
            raise ConfigError(name, f"{len(rows)} rows, wanted {wanted} of {heads} heads")
    if record.asked < L:
        raise ConfigError("items", f"{L} were shown, {record.asked} had been asked for")
    if record.log_propensity and len(record.log_propensity) != L:
        raise ConfigError("log_propensity", f"{len(record.log_propensity)} numbers, wanted {L}")
    if record.slots and not L <= len(record.slots) <= record.asked:
        raise ConfigError("slots", f"{len(record.slots)} numbers, wanted {L}..{record.asked}")
    if len(record.earlier) > MAX_EARLIER:
        raise ConfigError("earlier", f"{len(record.earlier)} items, limit {MAX_EARLIER}")
    if record.more and record.consumed < L:
        raise ConfigError("more", f"a next page follows a list of {L} that was left after {record.consumed}")
    offered = record.candidates
    if offered is not None:
        if len(offered.items) != len(offered.outputs) or any(len(row) != heads for row in offered.outputs):
            raise ConfigError("candidates.outputs", f"are not {len(offered.items)} rows of {heads} heads")
        if not set(record.items) <= set(offered.items):
            raise ConfigError("items", "hold one that is not among the candidates")


def read_header(folder: Path) -> LogHeader:
    """The heads of a log. Raises ConfigError naming the file."""
    path = folder / _HEADER
    try:
        with path.open("rb") as stream:
            data = stream.read(_HEADER_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    if len(data) > _HEADER_BYTES:
        raise ConfigError(str(path), f"has more than {_HEADER_BYTES} bytes")
    try:
        header = msgspec.json.decode(data, type=LogHeader)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(str(path), f"is no header of a log: {excerpt(str(error))}") from error
    if header.format_version != FORMAT_VERSION:
        raise ConfigError(
            str(path), f"format_version is {header.format_version}, this release reads {FORMAT_VERSION}"
        )
    names = [head.name for head in header.heads]
    if not 1 <= len(names) <= MAX_HEADS or len(set(names)) < len(names) or not all(names):
        told = excerpt(", ".join(map(repr, names)))
        raise ConfigError(str(path), f"heads: [{told}] are not 1..{MAX_HEADS} distinct names")
    _check_keys(str(path), data)
    return header


def read_records(folder: Path) -> Iterator[SlateRecord]:
    """All records, oldest first.

    What a kill left of a last line is passed over; a last line that lacks its end alone is read.

    Raises:
        ConfigError: naming file, line, field, value and limit.
    """
    heads, decoder = read_header(folder).heads, msgspec.json.Decoder(SlateRecord)
    for path in log_files(folder):
        for number, line in enumerate(_lines(path), 1):
            place = f"{path}:{number}"
            if len(line) > LINE_BYTES:
                raise ConfigError(place, f"has more than {LINE_BYTES} bytes")
            try:
                record = decoder.decode(line)
                check_record(record, len(heads))
                check_numbers(record, heads)
            except (msgspec.ValidationError, RecursionError, ConfigError) as error:
                raise ConfigError(place, excerpt(str(error))) from error
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    continue
                raise ConfigError(place, excerpt(str(error))) from error
            _check_keys(place, line)
            yield record


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while line := stream.readline(LINE_BYTES + 1):
                yield line
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error


def _check_keys(place: str, data: bytes) -> None:
    twice = repeated_key(data)
    if twice is not None:
        raise ConfigError(place, f"{twice!r} stands twice in one object")
