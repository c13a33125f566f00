"""What numbers a logged list may hold, and whether a JSON text names a key twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.pool import HeadKind

if TYPE_CHECKING:
    from relaygr.listwise.slate_log import SlateRecord
    from relaygr.listwise.step import HeadSpec

MAX_EARLIER = 4096  # items of earlier pages, as many as a request may name
SMALL = 1_048_576  # pages, items of a session and types of positions, as in requests
LEAST_LOG_PROPENSITY = -745.0  # exp of less is 0 in float64: nothing was picked with that probability
_ROUNDING = 1e-6  # by which the logarithm of a probability of 1 may be above 0
_FLOAT32 = float(np.finfo(np.float32).max)
_INT64 = (-(2**63), 2**63 - 1)
# A string with the colon that makes it a key, or a brace; strings are skipped as wholes.
_TOKEN = re.compile(rb'[^"{}]*+(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+(:?)|([{}]))', re.DOTALL)


def check_numbers(record: SlateRecord, heads: Sequence[HeadSpec]) -> None:
    """Raise ConfigError naming field, value and limit of the first number that is out of range.

    The record's shapes are right already.
    """
    for name, values in (
        ("items", record.items),
        ("earlier", record.earlier),
        ("surface", (record.surface,)),
    ):
        _integers(name, values, *_INT64)
    for name, values in (("page", (record.page,)), ("session", (record.session,)), ("slots", record.slots)):
        _integers(name, values, 0, SMALL)
    _distinct("items", record.items)
    _floats("earlier_watch", [record.earlier_watch], 0.0, MAX_EARLIER * _FLOAT32)
    _floats("log_propensity", record.log_propensity, LEAST_LOG_PROPENSITY, _ROUNDING, "0")
    _rows("outputs", record.outputs, heads, -_FLOAT32, _FLOAT32)
    _rows("labels", record.labels, heads, 0.0, 1.0)
    if record.candidates is not None:
        _integers("candidates.items", record.candidates.items, *_INT64)
        _distinct("candidates.items", record.candidates.items)
        _rows("candidates.outputs", record.candidates.outputs, heads, -_FLOAT32, _FLOAT32)


def repeated_key(data: bytes) -> str | None:
    """The first key that stands twice in one object of a JSON text that has been decoded; None if none does.

    Decoders take the last of them, and nobody would learn of the others.
    """
    open_now: list[set[str]] = []
    for text, colon, brace in _TOKEN.findall(data):
        if brace == b"{":
            open_now.append(set())
        elif brace:
            open_now.pop()
        elif colon:
            key = msgspec.json.decode(b'"' + text + b'"', type=str) if b"\\" in text else text.decode()
            if key in open_now[-1]:
                return key
            open_now[-1].add(key)
    return None


def _integers(name: str, values: Sequence[int], low: int, high: int) -> None:
    if values and not (low <= min(values) and max(values) <= high):
        at = next(at for at, value in enumerate(values) if not low <= value <= high)
        wrong = values[at]
        # Decimal digits of an integer may be too many to be made.
        told = f"{wrong}" if wrong.bit_length() <= 128 else f"an integer of {wrong.bit_length()} bits"
        raise ConfigError(f"{name}[{at}]", f"{told} is not within {low}..{high}")


def _distinct(name: str, values: Sequence[int]) -> None:
    if len(set(values)) == len(values):
        return
    first = dict[int, int]()
    for at, value in enumerate(values):
        if value in first:
            raise ConfigError(f"{name}[{at}]", f"{value} stands at position {first[value]} already, limit 1")
        first[value] = at


def _floats(name: str, values: Sequence[float], low: float, high: float, top: str = "") -> None:
    for at, value in enumerate(values):
        if not low <= value <= high:
            place = name if len(values) == 1 and name == "earlier_watch" else f"{name}[{at}]"
            raise ConfigError(place, f"{value:g} is not within {low:g}..{top or f'{high:g}'}")


def _rows(
    name: str, rows: Sequence[Sequence[float | None]], heads: Sequence[HeadSpec], low: float, high: float
) -> None:
    """Rows of one number a head; those of regression heads are quantities, None is no number."""
    found = np.array(rows, dtype=np.float64).reshape(len(rows), len(heads))  # None becomes NaN
    regression = np.array([head.kind is HeadKind.REGRESSION for head in heads])
    least, most = np.where(regression, 0.0, low), np.where(regression, _FLOAT32, high)
    wrong = np.argwhere((found < least) | (found > most))
    if len(wrong):
        at, k = wrong[0].tolist()
        raise ConfigError(
            f"{name}[{at}].{heads[k].name}", f"{found[at, k]:g} is not within {least[k]:g}..{most[k]:g}"
        )
