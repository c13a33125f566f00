"""What can be wrong with a catalogue, as types: a row, a file, an artefact, a load, a filter."""

from __future__ import annotations

from enum import StrEnum

from relaygr.core.errors import RelayError


class Reject(StrEnum):
    """Why a row or a whole input makes no catalogue."""

    SHAPE = "shape"  # arrays of the wrong rank, kind or length
    DEPTH = "depth"  # another number of codes than the catalogue has levels
    NEGATIVE = "negative"  # a code below 0
    RANGE = "range"  # a code at or above its level's size
    ITEM_ID = "item_id"  # no int64 and no usable string
    PRIORITY = "priority"  # not a finite number
    CONFLICT = "conflict"  # the same item under the same code list, with another priority or flag
    MULTI_SID = "multi_sid"  # one item under two code lists
    EMPTY = "empty"  # nothing to serve
    NODES = "nodes"  # more nodes or items than the pointer type can count


class CatalogueError(RelayError):
    """A catalogue cannot be built, read, loaded or used as asked."""


class RowError(CatalogueError):
    """A row of the input is wrong, or, with `row` None, all of it.

    Attributes:
        reason: which rule it breaks.
        row: its index in the input arrays, from 0.
        field: the array that is wrong.
        detail: value and limit, in words.
    """

    def __init__(self, reason: Reject, row: int | None, field: str, detail: str) -> None:
        super().__init__(f"{'' if row is None else f'row {row}: '}{field}: {detail}")
        self.reason, self.row, self.field, self.detail = reason, row, field, detail


class SourceError(CatalogueError):
    """A file is no catalogue: names the file, the line or row where there is one, the field and the limit."""

    def __init__(self, file: str, place: str, field: str, detail: str, reason: Reject | None = None) -> None:
        where = f"{file}:{place}" if place else file
        super().__init__(f"{where}: {field}: {detail}" if field else f"{where}: {detail}")
        self.file, self.place, self.field, self.detail, self.reason = file, place, field, detail, reason


class ArtefactError(CatalogueError):
    """A folder is no catalogue artefact, or a damaged one."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path, self.detail = path, detail


class LoadError(CatalogueError):
    """A sound catalogue that must not be served here: of another shape than the model, or far too small."""


class UnavailableError(CatalogueError):
    """No catalogue is being served."""


class FilterError(CatalogueError):
    """A filter failed while it was evaluated; the request that asked for it must fail with it."""
