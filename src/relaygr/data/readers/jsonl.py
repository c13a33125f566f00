"""Read events from JSON lines: one object a line, gzip or not, under names of your choice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from relaygr.data.readers.columns import NamedColumns
from relaygr.data.readers.fields import BadField, Reason
from relaygr.data.readers.rows import Layout
from relaygr.data.readers.text import Lines, Records, TextReader


class _Number(str):
    """A number as it was written, so that no digit is lost and none is computed for a field nobody reads."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlReader(NamedColumns, TextReader):
    """Ids are strings or whole numbers (7 and "7" are the same), flags true, false, 0 or 1.

    Other keys are ignored. A key may stand only once in its object.
    """

    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        return layout.columns, map(_Parse(layout), lines)


class _Parse:
    """From a line to the texts of the wanted fields, in the order of the layout."""

    def __init__(self, layout: Layout) -> None:
        self._names = layout.columns
        self._ids = (layout.user, layout.item)
        self._flags = {flag.column for flag in layout.flags}
        decoder = json.JSONDecoder(
            object_pairs_hook=_unique, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
        )
        self._decode = decoder.decode

    def __call__(self, line: str) -> Sequence[str]:
        try:
            found = self._decode(line)
        except json.JSONDecodeError as error:
            if not line.strip():
                return ()
            raise BadField(Reason.JSON, f"{error.msg} at character {error.colno}") from error
        except RecursionError as error:
            raise BadField(Reason.JSON, "values are nested too deep") from error
        if not isinstance(found, dict):
            raise BadField(Reason.KIND, f"{_kind(found)}, expected an object")
        row: list[str] = []
        for name in self._names:
            if name not in found:
                raise BadField(Reason.MISSING, column=name)
            value = found[name]
            row.append(value if type(value) is str else self._text(name, value))
        return row

    def _text(self, name: str, value: object) -> str:
        if value is None:
            raise BadField(Reason.NULL, column=name)
        if isinstance(value, _Number):
            # An id of 1.0 or 1e3 may have been another one before somebody's program made it a float.
            if name in self._ids and not value.lstrip("-").isdigit():
                raise BadField(Reason.KIND, f"{value[:64]}, expected a string or a whole number", name)
            return value
        if isinstance(value, bool) and name in self._flags:
            return "1" if value else "0"
        wanted = "true, false, 0 or 1" if name in self._flags else "a string or a number"
        raise BadField(Reason.KIND, f"{_kind(value)}, expected {wanted}", name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise BadField(Reason.TWICE, f"{twice[:64]!r}", twice[:64])
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise BadField(Reason.JSON, f"{text} is no JSON number")


def _kind(value: object) -> str:
    if isinstance(value, _Number):
        return "a number"
    names = {type(None): "null", bool: "true or false", str: "a string", list: "an array", dict: "an object"}
    return names[type(value)]
