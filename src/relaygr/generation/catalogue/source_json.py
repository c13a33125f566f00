"""Catalogues as JSON: one object a line, or one object from items to code lists. Ids keep their 64 bits."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec
import numpy as np

from relaygr.generation.catalogue.errors import Reject, SourceError
from relaygr.generation.catalogue.index import INT64_MAX, INT64_MIN, Bools
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.source import ReadOptions, Source

MAX_LINE_BYTES = 1 << 20
MAX_MAP_BYTES = 4 << 30


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line: `metadata` may hold anything; `priority` and `servable` are extras of ours."""

    item_id: int | str
    token_ids: list[int]
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    priority: float = 0.0
    servable: bool = True


def read_jsonl(path: Path, options: ReadOptions) -> Source:
    """Read JSON lines; empty ones are skipped. An item without a flag does not pass it.

    Raises:
        SourceError: naming the line and what is wrong with it.
    """
    decode = msgspec.json.Decoder(Line).decode
    places, priority, servable = array("q"), array("d"), bytearray()
    flags = {name: bytearray() for name in options.flags}
    ids = _Ids(path)
    codes = _Codes(path)
    with path.open("rb") as stream:
        for number, text in _lines(path, stream):
            try:
                line = decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise SourceError(str(path), str(number), "", str(error)) from error
            ids.add(str(number), line.item_id)
            codes.add(str(number), "token_ids", line.token_ids)
            places.append(number)
            priority.append(line.priority)
            servable.append(line.servable)
            if flags:
                _flags(path, number, line.metadata, flags)
    table = codes.taken()
    rows = Rows(
        item_ids=ids.taken(),
        codes=table,
        priority=np.frombuffer(priority, np.float64) if any(priority) else None,
        servable=_bools(servable) if not all(servable) else None,
        flags={name: _bools(values) for name, values in flags.items()},
    )
    return Source(path, rows, lambda row: str(places[row]))


def read_map(path: Path, options: ReadOptions) -> Source:
    """Read one JSON object from items to code lists. Keys that are all whole numbers are taken as such.

    Raises:
        SourceError: naming the item and what is wrong with it.
    """
    if path.stat().st_size > MAX_MAP_BYTES:
        raise SourceError(
            str(path), "", "", f"{path.stat().st_size} bytes, limit {MAX_MAP_BYTES}; use JSON lines"
        )
    # Pairs, because an item that stands twice must not go unnoticed.
    decoder = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_no_constant)
    try:
        pairs = decoder.decode(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SourceError(str(path), f"byte {error.start}", "", "is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise SourceError(str(path), str(error.lineno), "", f"{error.msg}, column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise SourceError(str(path), "", "", f"is not JSON: {error}") from error
    if not isinstance(pairs, _Pairs):
        raise SourceError(str(path), "", "", f"holds {type(pairs).__name__}, expected one object")
    keys = [key for key, _ in pairs]
    ids, codes = _Ids(path), _Codes(path)
    whole = not options.text_ids and all(map(_is_whole, keys))
    for key, value in pairs:
        place = f"item {key[:64]!r}"
        ids.add(place, int(key) if whole else key)
        if type(value) is not list:
            raise SourceError(str(path), place, "codes", f"{type(value).__name__}, expected a list")
        codes.add(place, "codes", value)
    return Source(
        path, Rows(item_ids=ids.taken(), codes=codes.taken()), lambda row: f"item {keys[row][:64]!r}"
    )


class _Pairs(list[tuple[str, Any]]):
    """An object, as it was written."""


class _Ids:
    """Item ids of one kind: that of the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = array("q")
        self._strings: list[str] = []

    def add(self, place: str, item: int | str) -> None:
        if isinstance(item, str):
            if self._numbers:
                raise SourceError(str(self._path), place, "item_id", "a string, those before are numbers")
            self._strings.append(item)
            return
        if self._strings:
            raise SourceError(str(self._path), place, "item_id", "a number, those before are strings")
        if not INT64_MIN <= item <= INT64_MAX:
            detail = f"{str(item)[:64]}, limit {INT64_MIN} to {INT64_MAX}"
            raise SourceError(str(self._path), place, "item_id", detail, Reject.ITEM_ID)
        self._numbers.append(item)

    def taken(self) -> Any:
        return self._strings if self._strings else np.frombuffer(self._numbers, np.int64)


class _Codes:
    """Code lists of one length: that of the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._levels: int | None = None
        self._flat = array("q")

    def add(self, place: str, field: str, codes: list[Any]) -> None:
        if len(codes) != self._levels:
            if self._levels is not None:
                detail = f"{len(codes)} codes, expected {self._levels} as in the first item"
                raise SourceError(str(self._path), place, field, detail, Reject.DEPTH)
            if not codes:
                raise SourceError(str(self._path), place, field, "0 codes, limit at least 1", Reject.DEPTH)
            self._levels = len(codes)
        try:
            if set(map(type, codes)) == {int}:
                self._flat.extend(codes)
                return
        except OverflowError:
            pass  # one of those below
        for level, code in enumerate(codes, start=1):
            if type(code) is not int:
                detail = f"level {level}: {str(code)[:64]!r}, expected a whole number"
                raise SourceError(str(self._path), place, field, detail, Reject.SHAPE)
            if not INT64_MIN <= code <= INT64_MAX:
                detail = f"level {level}: code {str(code)[:64]} is beyond 64 bits"
                raise SourceError(str(self._path), place, field, detail, Reject.RANGE)

    def taken(self) -> Any:
        if self._levels is None:
            raise SourceError(str(self._path), "", "", "holds no items, limit at least 1", Reject.EMPTY)
        return np.frombuffer(self._flat, np.int64).reshape(-1, self._levels)


def _lines(path: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while text := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(text) > MAX_LINE_BYTES:
            raise SourceError(str(path), str(number), "", f"more than {MAX_LINE_BYTES} bytes in a line")
        if text.strip():
            yield number, text


def _flags(path: Path, number: int, metadata: msgspec.Raw, flags: dict[str, bytearray]) -> None:
    try:
        found = msgspec.json.decode(metadata, type=dict[str, Any] | None) or {}
    except msgspec.ValidationError as error:
        raise SourceError(str(path), str(number), "metadata", str(error)) from error
    for name, values in flags.items():
        value = found.get(name, False)
        if not isinstance(value, bool):
            raise SourceError(
                str(path), str(number), f"metadata.{name}", f"{type(value).__name__}, expected true or false"
            )
        values.append(value)


def _bools(values: bytearray) -> Bools:
    return np.frombuffer(values, np.bool_)


def _is_whole(key: str) -> bool:
    """Whether a key is how a number of 64 bits is written, so that nothing is lost by taking it as one."""
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return False
    number = int(key)
    return str(number) == key and INT64_MIN <= number <= INT64_MAX


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
