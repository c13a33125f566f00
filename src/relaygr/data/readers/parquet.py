"""Read events from Parquet, a batch at a time; needs pyarrow, the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.readers.columns import NamedColumns
from relaygr.data.readers.fields import BadField, Reason, time_reader
from relaygr.data.readers.interface import Progress, Read, ignore
from relaygr.data.readers.rows import Intake, Layout
from relaygr.data.readers.text import files, names

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 1 << 14

Cells = Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetReader(NamedColumns):
    """Ids are strings or integers, times integers, whole floats or Arrow timestamps, flags booleans or 0/1.

    A timestamp column has a unit of its own and is rounded down to seconds, as UTC where it names no zone;
    `time_unit` is for numbers. Lines of errors are rows, from 1. The file is read by batches of rows; what is
    decompressed at once is at most a page of each column.
    """

    def read(self, *paths: Path | str, progress: Progress = ignore) -> Read:
        intake = Intake(self.layout(), self.on_error, progress)
        for path in files(paths):
            _read_file(path, intake)
        return intake.done(names(paths))


def _read_file(path: Path, intake: Intake) -> None:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ConfigError(
            "parquet", "reading Parquet needs pyarrow: pip install 'relaygr[parquet]'"
        ) from error
    row = 0
    try:
        with path.open("rb") as stream:
            if not stream.seekable():
                raise DataError(str(path), 0, "", "is a pipe; Parquet is read from its end")
            for row in _take(str(path), stream, intake):  # noqa: B007 -- the last row is wanted after an error
                pass
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:  # the latter from names of columns
        raise DataError(str(path), row, "", f"damaged Parquet: {_first_line(error)}") from error
    except OSError as error:
        reason = error.strerror or f"damaged Parquet: {_first_line(error)}"
        raise DataError(str(path), row, "", reason) from error


def _take(path: str, stream: IO[bytes], intake: Intake) -> Iterator[int]:
    """Feed all rows to the intake; yields the number of rows after each batch."""
    from pyarrow import parquet

    source = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 16)
    layout = _checked(path, source.schema_arrow, intake.layout)
    append, done = intake.columns.appender(layout.columns, layout), 0
    for batch in source.iter_batches(BATCH_ROWS, columns=list(layout.columns), use_threads=False):
        columns = [_texts(batch.column(name)) for name in layout.columns]
        for number, row in enumerate(zip(*columns, strict=True), done + 1):
            try:
                append(_filled(layout, row))
            except BadField as error:
                filled = [text or "" for text in row]
                intake.refuse(path, number, *layout.explain(layout.columns, filled, error))
        done += batch.num_rows
        intake.count(batch.num_rows)
        yield done


def _checked(path: str, schema: pyarrow.Schema, layout: Layout) -> Layout:
    """The layout for the types of this file; DataError when a column is missing or of the wrong type."""
    from pyarrow import types

    for name in layout.columns:
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            found = ", ".join(repr(field[:64]) for field in schema.names[:16])
            reason = "stands more than once" if places else f"missing column; the file has {found}"
            raise DataError(path, 0, name, reason)
        kind = schema.field(places[0]).type
        if types.is_dictionary(kind):
            kind = kind.value_type
        number, text = types.is_integer(kind), _is_text(kind)
        if name in (layout.user, layout.item):
            fits, wanted = number or text, "strings or integers"
        elif name == layout.time:
            fits = number or types.is_floating(kind) or types.is_timestamp(kind)
            wanted = "integers, floats or timestamps"
        else:
            fits, wanted = number or types.is_boolean(kind), "booleans or integers"
        if not fits:
            raise DataError(path, 0, name, f"type {kind}, expected {wanted}")
        if types.is_timestamp(kind):
            layout = replace(layout, read_time=time_reader("s"))
    return layout


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    return any(
        check(kind)
        for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _texts(column: pyarrow.Array) -> list[str | None]:
    """The cells as text, so that every format has the same rules; timestamps in whole seconds."""
    import pyarrow
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_timestamp(column.type):
        # Floored before the unit is changed, because the change itself rounds towards zero.
        column = compute.floor_temporal(column, unit="second").cast(pyarrow.timestamp("s"))
        column = column.cast(pyarrow.int64())
    if not _is_text(column.type):
        column = column.cast(pyarrow.string())
        texts: list[str | None] = column.to_pylist()
        return texts
    # As bytes, because Arrow does not check its strings; bad ones become lone surrogates, refused by name.
    cells: list[Any] = column.cast(pyarrow.large_binary()).to_pylist()
    return [cell if cell is None else cell.decode("utf-8", errors="surrogateescape") for cell in cells]


def _filled(layout: Layout, row: Cells) -> list[str]:
    filled = [text for text in row if text is not None]
    if len(filled) < len(row):
        raise BadField(Reason.NULL, column=layout.columns[row.index(None)])
    return filled


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
