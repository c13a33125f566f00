"""Read one field of an event file strictly; a field that is wrong says which rule it breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from hashlib import blake2b
from typing import Literal

from relaygr.core.errors import RequestError
from relaygr.core.ids import user_id

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TimeUnit = Literal["s", "ms"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?")
_FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1, "False": 0, "True": 1}
# Seconds pass 1e11 in the year 5138 and milliseconds passed it in 1973, so the size tells the unit.
_FINER_UNITS = ((10**17, "nanoseconds"), (10**14, "microseconds"), (10**11, "milliseconds"))


class Reason(StrEnum):
    """Why a row is bad; skipped rows are counted by these."""

    FIELDS = "wrong number of fields"
    SYNTAX = "malformed CSV"
    QUOTE = "quote not closed on its line"
    UTF8 = "bad UTF-8"
    NUL = "contains NUL"
    EMPTY_USER = "empty user"
    LONG_USER = "user id too long"
    EMPTY_ITEM = "empty item"
    NOT_INTEGER = "not an integer"
    RANGE = "out of int64 range"
    NEGATIVE = "negative timestamp"
    UNIT = "timestamp in a finer unit"
    FLAG = "not a flag"
    NUMBER = "not a number"
    RATING = "rating out of range"
    JSON = "malformed JSON"
    TWICE = "field stands twice"
    MISSING = "missing field"
    NULL = "null"
    KIND = "wrong kind of value"
    BOT = "author is a bot"
    SWEEP = "commit of too many paths"
    SHALLOW = "edge of a shallow clone"
    NO_TIME = "author time missing or negative"
    FUTURE = "author time in the future"


class BadField(ValueError):  # noqa: N818 -- a verdict on a field, turned into DataError or a count by the reader
    """A field breaks `reason`; the message carries the value and the limit, `column` the field if known."""

    def __init__(self, reason: Reason, detail: str = "", column: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.column = column


def read_integer(text: str) -> int:
    """A plain decimal int64: no spaces, underscores, or digits of other scripts, all of which int() takes."""
    # The fast path: short ASCII digits cannot leave the range.
    if len(text) < 19 and text.isdigit() and text.isascii():
        return int(text)
    if not _INTEGER.fullmatch(text):
        raise BadField(Reason.NOT_INTEGER, f"{text[:64]!r}")
    # Leading zeros are legal; without this, a long run of them would cost int() quadratic time.
    digits = text.lstrip("+-").lstrip("0")
    value = (
        int(text[0] + digits if text[0] == "-" and digits else digits or "0") if len(digits) < 20 else None
    )
    if value is None or not INT64_MIN <= value <= INT64_MAX:
        raise BadField(Reason.RANGE, f"{text[:64]!r} is not in [-2^63, 2^63 - 1]")
    return value


def hash_item(text: str) -> int:
    """An int64 from any non-empty string: the first 8 bytes of BLAKE2b-64, little-endian, signed."""
    if not text:
        raise BadField(Reason.EMPTY_ITEM)
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little", signed=True)


def read_flag(text: str) -> int:
    """0 or 1 from `0`, `1`, `true` or `false`."""
    flag = _FLAGS.get(text)
    if flag is None:
        raise BadField(Reason.FLAG, f"{text[:64]!r} must be 0, 1, true or false")
    return flag


def check_user(text: str) -> str:
    """Return `text` if it is a valid user id."""
    if not text:
        raise BadField(Reason.EMPTY_USER)
    try:
        return user_id(text)
    except RequestError as error:
        # Empty, NUL and bad Unicode are refused before, so only the length is left.
        raise BadField(Reason.LONG_USER, str(error)) from error


def read_number_flag(text: str) -> int:
    """0 or 1 from a number of that value, such as `1.0`."""
    value = read_number(text)
    if value not in (0, 1):
        raise BadField(Reason.FLAG, f"{text[:64]!r} must be 0 or 1")
    return int(value)


def read_number(text: str) -> float:
    """A finite decimal number."""
    # Four digits of exponent may still overflow to infinity.
    if not _DECIMAL.fullmatch(text) or abs(value := float(text)) == float("inf"):
        raise BadField(Reason.NUMBER, f"{text[:64]!r}")
    return value


def rating_reader(like_from: float, low: float, high: float) -> Callable[[str], int]:
    """A reader of ratings in [`low`, `high`] that answers 1 from `like_from` on, else 0."""

    def read(text: str) -> int:
        value = read_number(text)
        if not low <= value <= high:
            raise BadField(Reason.RATING, f"{text[:64]!r} is not in [{low:g}, {high:g}]")
        return int(value >= like_from)

    return read


def time_reader(unit: TimeUnit, floor: bool = False) -> Callable[[str], int]:
    """A reader of timestamps in `unit` that answers whole Unix seconds, rounded down.

    Args:
        floor: round fractions of the unit down too; otherwise a fraction is refused.
    """
    divisor, limit = (1000, 10**14) if unit == "ms" else (1, 10**11)

    def read(text: str) -> int:
        plain = len(text) < 12 and text.isdigit() and text.isascii()
        value = int(text) if plain else _read_whole(text, floor)
        if 0 <= value < limit:
            return value // divisor
        if value < 0:
            raise BadField(Reason.NEGATIVE, f"{text[:64]!r}, limit 0")
        raise BadField(Reason.UNIT, _unit_advice(value, unit))

    return read


def _unit_advice(value: int, unit: TimeUnit) -> str:
    found = next(name for least, name in _FINER_UNITS if value >= least)
    advice = (
        "use --time-unit ms"
        if found == "milliseconds"
        else "divide the column first; --time-unit takes s or ms"
    )
    return f"{value} looks like {found}, read as {unit}; {advice}"


def _read_whole(text: str, floor: bool) -> int:
    """An int64, also from a decimal such as `1234.0` whose value is whole, or is rounded down."""
    if _INTEGER.fullmatch(text):
        return read_integer(text)
    if not _DECIMAL.fullmatch(text):
        raise BadField(Reason.NOT_INTEGER, f"{text[:64]!r}")
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise BadField(Reason.NOT_INTEGER, f"{text[:64]!r}") from error
    # The size is checked first: int() of 1e9999 would build all its digits.
    if number and number.adjusted() > 18:
        raise BadField(Reason.RANGE, f"{text[:64]!r} is not in [-2^63, 2^63 - 1]")
    value = int(number)
    if floor:
        value -= value > number  # int() rounds towards zero
    elif value != number:
        raise BadField(Reason.NOT_INTEGER, f"{text[:64]!r} has a fraction")
    if not INT64_MIN <= value <= INT64_MAX:
        raise BadField(Reason.RANGE, f"{text[:64]!r} is not in [-2^63, 2^63 - 1]")
    return value
