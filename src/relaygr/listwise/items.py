"""What is known of items beside a ranker's outputs: attributes for rules and context, vectors for similarity.

One row an item, as arrays in the order of item ids. Files, by their ending:

| file | ids | attributes, integers | vectors |
|---|---|---|---|
| `.npz` | array `item_ids` [n] | every other array [n] | array `vectors` [n, Dv] |
| `.csv` | column `item_id` | every other column, empty for none | `vector_0`, `vector_1`, .. |
| `.parquet` | column `item_id` | every other column, null for none | column `vector` of lists |
"""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float32, Int64
from relaygr.listwise.pool import MISSING

_ID = "item_id"
_VECTOR = re.compile(r"vector_(\d+)")
# What numpy and zipfile raise for other files: a lone array is no context, a member may be locked.
_UNREADABLE = (ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the items of a request, in their order.

    Attributes:
        attributes: name -> int64 [n]; `MISSING` where there is no value.
        vectors: float32 [n, Dv + 1] of length 1; None if there are none. The last component is 1 for an item
            without a vector and 0 for the others: it is at right angles to all that have one.
        known: bool [n], which items the table has.
    """

    attributes: dict[str, Int64]
    vectors: Float32 | None
    known: Bool


class ItemTable:
    """Rows of items. Immutable.

    Args:
        ids: int64 [n], no two equal.
        attributes: name -> int64 [n].
        vectors: floats [n, Dv] of any length above 0; None if there are none.

    Raises:
        ConfigError: naming what does not fit.
    """

    def __init__(
        self,
        ids: Int64,
        attributes: Mapping[str, Int64] | None = None,
        vectors: npt.NDArray[Any] | None = None,
    ) -> None:
        order = np.argsort(ids, kind="stable")
        self.ids = ids[order]
        twice = np.flatnonzero(self.ids[1:] == self.ids[:-1])
        if len(twice):
            raise ConfigError(_ID, f"{int(self.ids[twice[0]])} stands in two rows")
        self.attributes = {name: values[order] for name, values in (attributes or {}).items()}
        self.vectors: Float32 | None = None
        if vectors is not None:
            self.vectors = _units(vectors[order], self.ids)

    def __len__(self) -> int:
        """n."""
        return len(self.ids)

    def __call__(self, ids: Int64) -> Facts:
        """What is known of items int64 [m]; one that the table lacks has no attribute and no vector."""
        places = np.searchsorted(self.ids, ids)
        places[places == len(self.ids)] = 0
        known = self.ids[places] == ids if len(self.ids) else np.zeros(len(ids), dtype=bool)
        if not len(self.ids):
            attributes = {name: np.full(len(ids), MISSING) for name in self.attributes}
        else:
            attributes = {
                name: np.where(known, values[places], MISSING) for name, values in self.attributes.items()
            }
        vectors = None
        if self.vectors is not None:
            vectors = np.zeros((len(ids), self.vectors.shape[1] + 1), dtype=np.float32)
            vectors[known, :-1] = self.vectors[places[known]]
            vectors[~known, -1] = 1.0
        return Facts(attributes, vectors, known)


def read_items(path: Path) -> ItemTable:
    """The table in a file.

    Raises:
        ConfigError: the file cannot be read or is of another form, or a value in it is wrong; names file,
            column and row.
    """
    readers = {".npz": _from_npz, ".csv": _from_csv, ".parquet": _from_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(str(path), f"ends in none of {', '.join(readers)}")
    try:
        return reader(path)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    except ConfigError as error:
        raise error if error.path.startswith(str(path)) else ConfigError(str(path), str(error)) from error


def _from_npz(path: Path) -> ItemTable:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: _Columns = {name: file[name] for name in file.files}
    except _UNREADABLE as error:
        raise ConfigError(str(path), f"is not an .npz of arrays: {error}") from error
    vectors = arrays.pop("vectors", None)
    return _table(arrays, "item_ids", vectors)


def _from_csv(path: Path) -> ItemTable:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        try:
            rows = csv.reader(stream)
            header = next(rows, [])
            cells = list(rows)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(str(path), f"is not CSV: {error}") from error
    if len(set(header)) != len(header):
        raise ConfigError("header", f"{header} names a column twice")
    for at, row in enumerate(cells):
        if len(row) != len(header):
            raise ConfigError(f"row {at + 1}", f"{len(row)} cells, the header has {len(header)}")
    columns: _Columns = {}
    parts: dict[int, npt.NDArray[Any]] = {}
    for place, name in enumerate(header):
        found = _VECTOR.fullmatch(name)
        if found:
            parts[int(found[1])] = _numbers(name, [row[place] for row in cells])
        else:
            columns[name] = _integers(name, [row[place] for row in cells])
    if parts and sorted(parts) != list(range(len(parts))):
        raise ConfigError("vector", f"the columns are numbered {sorted(parts)}, wanted 0..{len(parts) - 1}")
    vectors = np.stack([parts[at] for at in range(len(parts))], axis=1) if parts else None
    return _table(columns, _ID, vectors)


def _from_parquet(path: Path) -> ItemTable:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            "parquet", "reading Parquet needs pyarrow: pip install 'relaygr[parquet]'"
        ) from error
    try:
        table = parquet.read_table(path, use_threads=False)
        columns: _Columns = {}
        for name in table.column_names:
            if name == "vector":
                continue
            column = table.column(name)
            if pyarrow.types.is_boolean(column.type):
                column = column.cast(pyarrow.int8())
            if column.null_count and pyarrow.types.is_integer(column.type):
                column = column.cast(pyarrow.int64()).fill_null(MISSING)
            columns[name] = column.to_numpy()
        vectors = None
        if "vector" in table.column_names:
            vectors = _lists(table.column("vector").to_pylist())
    except pyarrow.ArrowException as error:
        raise ConfigError(str(path), f"damaged Parquet: {str(error).partition(chr(10))[0][:200]}") from error
    return _table(columns, _ID, vectors)


def _table(columns: _Columns, ids: str, vectors: npt.NDArray[Any] | None) -> ItemTable:
    if ids not in columns:
        raise ConfigError(ids, f"is missing; there are {', '.join(columns) or 'none'}")
    n = len(columns[ids]) if columns[ids].ndim else 0
    for name, values in columns.items():
        if values.dtype.kind not in "iub" or values.shape != (n,):
            raise ConfigError(name, f"{values.dtype} {list(values.shape)}, wanted {n} integers")
        if values.dtype.kind == "u" and values.size and int(values.max()) >= 1 << 63:
            raise ConfigError(name, f"{int(values.max())} is above {(1 << 63) - 1}")
    if vectors is not None and (vectors.ndim != 2 or len(vectors) != n or vectors.dtype.kind not in "fiu"):
        raise ConfigError("vectors", f"{vectors.dtype} {list(vectors.shape)}, wanted numbers [{n}, width]")
    attributes = {name: values.astype(np.int64) for name, values in columns.items() if name != ids}
    return ItemTable(columns[ids].astype(np.int64), attributes, vectors)


def unit_vectors(vectors: npt.NDArray[Any]) -> Float32:
    """Vectors [n, Dv] scaled to length 1, as float32; NaN where the length is 0 or not finite."""
    exact = vectors.astype(np.float64)
    with np.errstate(all="ignore"):
        units: Float32 = (exact / np.sqrt(np.einsum("nd,nd->n", exact, exact))[:, None]).astype(np.float32)
    return units


def _units(vectors: npt.NDArray[Any], ids: Int64) -> Float32:
    units = unit_vectors(vectors)
    wrong = np.flatnonzero(~np.isfinite(units).all(axis=1))
    if len(wrong):
        raise ConfigError(
            "vectors", f"that of item {int(ids[wrong[0]])} has no length above 0 that is finite"
        )
    return units


def _integers(name: str, cells: list[str]) -> Int64:
    values = np.empty(len(cells), dtype=np.int64)
    for at, cell in enumerate(cells):
        try:
            values[at] = int(cell) if cell or name == _ID else MISSING
        except (ValueError, OverflowError):
            raise ConfigError(f"row {at + 1}, {name}", f"{cell!r} is not an integer of 64 bits") from None
    return values


def _numbers(name: str, cells: list[str]) -> npt.NDArray[np.float64]:
    values = np.empty(len(cells))
    for at, cell in enumerate(cells):
        try:
            values[at] = float(cell)
        except ValueError:
            raise ConfigError(f"row {at + 1}, {name}", f"{cell!r} is not a number") from None
    return values


def _lists(rows: list[Any]) -> npt.NDArray[np.float64]:
    width = len(rows[0]) if rows and rows[0] is not None else 0
    for at, row in enumerate(rows):
        if row is None or len(row) != width or any(each is None for each in row):
            raise ConfigError(f"row {at + 1}, vector", f"is not {width} numbers, as that of row 1 is")
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)
