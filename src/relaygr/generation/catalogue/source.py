"""The rows of a file, and an index built of them whose errors name the lines of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from relaygr.generation.catalogue.build import Built, build_index
from relaygr.generation.catalogue.errors import RowError, SourceError
from relaygr.generation.catalogue.rows import Rows

Form: TypeAlias = Literal["jsonl", "map", "flat", "flat-extended", "npz"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read a file.

    Attributes:
        form: by default from the name: .jsonl, .json (a map) or .npz.
        levels: codes of an item, which flat files do not say.
        text_ids: take strings as item ids: the keys of a map even if they are numbers, and the first string
            of an extended flat file.
        flags: names of filters: bools of `metadata` in JSON lines, arrays `flag_NAME` of an .npz.
        first_tokens: the file holds model tokens, and these are the ones of code 0 of each level.
    """

    form: Form | None = None
    levels: int | None = None
    text_ids: bool = False
    flags: tuple[str, ...] = ()
    first_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The rows of a file, and where in it each stands."""

    path: Path
    rows: Rows
    place: Callable[[int], str]

    def build(self, sizes: Sequence[int] | None = None, *, allow_multi_sid: bool = False) -> Built:
        """As `build_index`; SourceError instead of RowError."""
        try:
            return build_index(self.rows, sizes, allow_multi_sid=allow_multi_sid)
        except RowError as error:
            place = "" if error.row is None else self.place(error.row)
            raise SourceError(str(self.path), place, error.field, error.detail, error.reason) from error
