"""Catalogues as an .npz of arrays: `item_ids` [n], `codes` [n, L], and what else rows may have."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaygr.generation.catalogue.errors import Reject, SourceError
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.source import ReadOptions, Source

_OPTIONAL = ("priority", "servable")


def read_npz(path: Path, options: ReadOptions) -> Source:
    """Read `item_ids` (or `item_id`), int64 or strings, `codes`, maybe `priority`, `servable`, flags.

    Raises:
        SourceError: it is no such file, or an array is missing.
    """
    if path.is_file() and not zipfile.is_zipfile(path):
        raise SourceError(str(path), "", "", "is not an .npz of arrays")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _wanted(path, file.files, options)}
    except (ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(str(path), "", "", f"is not an .npz of arrays: {error}") from error
    ids: npt.NDArray[Any] = arrays["item_ids"] if "item_ids" in arrays else arrays["item_id"]
    if ids.dtype.kind not in "iuU":
        detail = f"{ids.dtype}, expected int64 or strings"
        raise SourceError(str(path), "", "item_ids", detail, Reject.SHAPE)
    rows = Rows(
        item_ids=ids.tolist() if ids.dtype.kind == "U" else ids,
        codes=arrays["codes"],
        priority=arrays.get("priority"),
        servable=arrays.get("servable"),
        flags={name: arrays[f"flag_{name}"] for name in options.flags},
    )
    return Source(path, rows, lambda row: f"row {row}")


def _wanted(path: Path, present: list[str], options: ReadOptions) -> list[str]:
    ids = "item_ids" if "item_ids" in present else "item_id"
    needed = [ids, "codes", *(f"flag_{name}" for name in options.flags)]
    missing = [name for name in needed if name not in present]
    if missing:
        raise SourceError(str(path), "", missing[0], f"is missing; there are {', '.join(present) or 'none'}")
    return needed + [name for name in _OPTIONAL if name in present]
