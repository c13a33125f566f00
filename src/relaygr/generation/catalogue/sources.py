"""Open a file of items and codes, whatever its form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.generation.catalogue.errors import Reject, SourceError
from relaygr.generation.catalogue.source import Form, ReadOptions, Source
from relaygr.generation.catalogue.source_flat import read_extended, read_flat
from relaygr.generation.catalogue.source_json import read_jsonl, read_map
from relaygr.generation.catalogue.source_npz import read_npz

_BY_SUFFIX: dict[str, Form] = {".jsonl": "jsonl", ".json": "map", ".npz": "npz"}


def open_source(path: Path | str, options: ReadOptions | None = None) -> Source:
    """Read the items and codes of `path`.

    Raises:
        SourceError: the file can not be read, or a line of it is wrong; names the line, field and limit.
        ConfigError: an option does not go with the form.
    """
    path, options = Path(path), options or ReadOptions()
    form = options.form or _BY_SUFFIX.get(path.suffix.lower())
    if form is None:
        known = ", ".join(_BY_SUFFIX)
        raise ConfigError("form", f"{path.name} ends in none of {known}; say which form it has")
    if options.flags and form not in ("jsonl", "npz"):
        raise ConfigError("flags", f"there are none in the form {form}")
    readers: dict[Form, Callable[[Path, ReadOptions], Source]] = {
        "jsonl": read_jsonl,
        "map": read_map,
        "flat": read_flat,
        "flat-extended": read_extended,
        "npz": read_npz,
    }
    try:
        source = readers[form](path, options)
    except OSError as error:
        raise SourceError(str(path), "", "", f"cannot be read: {error.strerror or error}") from error
    return _from_tokens(source, options.first_tokens) if options.first_tokens else source


def _from_tokens(source: Source, first_tokens: tuple[int, ...]) -> Source:
    tokens = np.asarray(source.rows.codes)
    if tokens.shape[1] != len(first_tokens):
        raise ConfigError(
            "first_tokens", f"{len(first_tokens)} levels, {source.path} has {tokens.shape[1]} codes an item"
        )
    codes = tokens.astype(np.int64) - np.array(first_tokens)
    below = codes < 0
    if below.any():
        row = int(np.argmax(below.any(axis=1)))
        level = int(np.argmax(below[row]))
        raise SourceError(
            str(source.path),
            source.place(row),
            "codes",
            f"level {level + 1}: token {tokens[row, level]}, limit at least {first_tokens[level]}",
            Reject.NEGATIVE,
        )
    return Source(source.path, replace(source.rows, codes=codes), source.place)
