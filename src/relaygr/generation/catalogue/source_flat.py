"""Catalogues as flat binary files, little-endian, one record an item behind the other.

Plain: item id int64, then L codes int32. Extended: item id int64, two strings, each with its length as uint32
in front, then L codes int32.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.generation.catalogue.errors import Reject, SourceError
from relaygr.generation.catalogue.rows import MAX_LEVELS, Rows
from relaygr.generation.catalogue.source import ReadOptions, Source

MAX_TEXT_BYTES = 1 << 20
_ID = struct.Struct("<q")
_LENGTH = struct.Struct("<I")


def read_flat(path: Path, options: ReadOptions) -> Source:
    """Read a plain file.

    Raises:
        SourceError: it is empty, or does not end with a whole record.
    """
    levels = _levels(options)
    if options.text_ids:
        raise ConfigError("text_ids", "there are no strings in the form flat")
    record = np.dtype([("item_id", "<i8"), ("codes", "<i4", (levels,))])
    size = path.stat().st_size
    if not size:
        raise SourceError(str(path), "", "", "holds no items, limit at least 1", Reject.EMPTY)
    if size % record.itemsize:
        raise SourceError(
            str(path),
            _place(size // record.itemsize),
            "",
            f"ends after {size % record.itemsize} of {record.itemsize} bytes (8 + 4 x {levels} levels)",
        )
    found = np.fromfile(path, record)
    return Source(path, Rows(item_ids=found["item_id"], codes=found["codes"]), _place)


def read_extended(path: Path, options: ReadOptions) -> Source:
    """Read an extended file. The strings are the item's, of which only the first can be of use, as its id.

    Raises:
        SourceError: it is empty, a string is too long or no UTF-8, or it ends inside a record.
    """
    levels = _levels(options)
    data = path.read_bytes()
    codes_of = struct.Struct(f"<{levels}i")
    numbers, texts, codes = array("q"), list[str](), array("i")
    at = 0

    def take(form: struct.Struct, field: str) -> tuple[int, ...]:
        nonlocal at
        if at + form.size > len(data):
            raise SourceError(str(path), _place(len(numbers)), field, "the file ends here")
        found: tuple[int, ...] = form.unpack_from(data, at)
        at += form.size
        return found

    while at < len(data):
        (number,) = take(_ID, "item_id")
        strings: list[bytes] = []
        for field in ("first string", "second string"):
            (length,) = take(_LENGTH, field)
            if length > MAX_TEXT_BYTES or at + length > len(data):
                limit = min(MAX_TEXT_BYTES, len(data) - at)
                raise SourceError(str(path), _place(len(numbers)), field, f"{length} bytes, limit {limit}")
            strings.append(data[at : at + length])
            at += length
        codes.extend(take(codes_of, "codes"))
        if options.text_ids:
            try:
                texts.append(strings[0].decode("utf-8"))
            except UnicodeDecodeError as error:
                raise SourceError(str(path), _place(len(numbers)), "first string", "is not UTF-8") from error
        numbers.append(number)
    if not numbers:
        raise SourceError(str(path), "", "", "holds no items, limit at least 1", Reject.EMPTY)
    table = np.frombuffer(codes, np.int32).reshape(-1, levels)
    ids = texts if options.text_ids else np.frombuffer(numbers, np.int64)
    return Source(path, Rows(item_ids=ids, codes=table), _place)


def _levels(options: ReadOptions) -> int:
    if options.levels is None:
        raise ConfigError("levels", "a flat file does not say how many codes an item has")
    if not 1 <= options.levels <= MAX_LEVELS:
        raise ConfigError("levels", f"{options.levels}, limit 1 to {MAX_LEVELS}")
    return options.levels


def _place(row: int) -> str:
    return f"record {row}"
