"""A catalogue on disk: a folder of arrays that can be mapped into memory, and `catalog.json` beside them."""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from relaygr.config.paths import check_folder
from relaygr.core.errors import BackendError, ConfigError
from relaygr.data.replace import MAX_FOLDER_NAME_BYTES, replace_folder
from relaygr.generation.catalogue.check import find_fault
from relaygr.generation.catalogue.errors import ArtefactError
from relaygr.generation.catalogue.header import Array, Form, Header, arrays_of, index_of
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.tokens import PromptTemplate, TokenSpec

HEADER_FILE = "catalog.json"
MAX_HEADER_BYTES = 256 << 20  # tables of tokens stand in it
_OURS = re.compile(
    r"catalog\.json|(codes_\d+|ptr_\d+|flag_\d+|item_ptr|items|by_id|order|hidden_(items|codes)"
    r"|names_(offsets|blob))\.npy"
)
_MAGIC, _LENGTH = b"\x93NUMPY\x01\x00", struct.Struct("<H")
_ARRAY = re.compile(
    rb"\{'descr': '(<[iu][248]|\|[iu]1)', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, ?)*\d{0,18})\), \} *\n"
)


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """An index and what its folder says about it; `path` is None for one that was never on disk."""

    index: CatalogueIndex
    header: Header
    path: Path | None = None

    @property
    def label(self) -> str:
        """The version of the catalogue: the same arrays, levels, flags and tokens have the same one."""
        return self.header.content


def make_catalogue(
    index: CatalogueIndex,
    *,
    tokens: TokenSpec | None = None,
    template: PromptTemplate | None = None,
    source: str = "",
    codebooks: str = "",
    as_of_s: float | None = None,
) -> Catalogue:
    """Describe and hash an index. `as_of_s` is the time of its data in Unix seconds, by default now."""
    now = time.time()
    header = Header(
        sizes=index.sizes,
        nodes=tuple(index.nodes(level) for level in range(1, index.levels + 1)),
        items=index.n_items,
        hidden=len(index.hidden_items),
        strings=None if index.names is None else len(index.names),
        string_bytes=0 if index.names is None else len(index.names.blob),
        flags=tuple(sorted(index.flags)),
        tokens=tokens,
        template=template or PromptTemplate(),
        source=source,
        codebooks=codebooks,
        as_of_s=now if as_of_s is None else as_of_s,
        created_at_s=now,
    )
    header = msgspec.structs.replace(header, content=header.content_of(arrays_of(index)))
    return Catalogue(index, header.with_digest())


def write_catalogue(folder: Path | str, catalogue: Catalogue) -> Path:
    """Write `catalogue` as `folder`, all of it or nothing; an older catalogue there is replaced.

    Raises:
        ConfigError: `folder` holds something that is no catalogue; nothing is touched.
        BackendError: the file system refused; what was there is still there.
    """
    target = Path(folder).resolve()
    check_target(target)

    def fill(fresh: Path) -> None:
        for name, array in arrays_of(catalogue.index).items():
            with (fresh / f"{name}.npy").open("xb") as stream:
                np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
                stream.flush()
                os.fsync(stream.fileno())
        with (fresh / HEADER_FILE).open("xb") as stream:
            stream.write(msgspec.json.encode(catalogue.header) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    try:
        replace_folder(target, fill)
    except OSError as error:
        raise BackendError(f"cannot write catalogue {target}: {error.strerror or error}") from error
    return target


def check_target(folder: Path | str, option: str = "out") -> None:
    """Raise ConfigError when no catalogue may or can be written to `folder`.

    A folder may be replaced only if every single thing in it is known to be ours.
    """
    target = Path(folder).resolve()
    size = len(os.fsencode(target.name))
    if size > MAX_FOLDER_NAME_BYTES:
        raise ConfigError(option, f"{target.name[:32]}... has {size} bytes, limit {MAX_FOLDER_NAME_BYTES}")
    check_folder(option, target)
    if not target.exists():
        return
    problem = ""
    present = sorted(target.iterdir())
    strangers = [one.name for one in present if not _OURS.fullmatch(one.name) or not one.is_file()]
    if strangers:
        problem = f"exists and holds {strangers[0]!r}, which is no part of a catalogue"
    elif present:
        try:
            read_header(target)
        except ArtefactError as error:
            problem = f"exists and is not a catalogue ({error.detail})"
    if problem:
        raise ConfigError(option, f"{target} {problem}; choose another folder")


def read_header(folder: Path) -> Header:
    """Read and check `catalog.json` alone.

    Raises:
        ArtefactError: there is none, or it is damaged or foreign.
    """
    path = folder / HEADER_FILE
    try:
        with _opened(path) as stream:
            data = stream.read(MAX_HEADER_BYTES + 1)
    except OSError as error:
        raise ArtefactError(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_HEADER_BYTES:
        raise ArtefactError(str(path), f"more than {MAX_HEADER_BYTES} bytes")
    try:
        header = msgspec.json.decode(data, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtefactError(str(path), f"is not the header of a catalogue: {error}") from error
    problem = header.problem()
    if problem is not None:
        raise ArtefactError(str(path), problem)
    return header


def open_catalogue(folder: Path | str, *, mapped: bool = True) -> Catalogue:
    """Open and verify a catalogue: every byte against its hash, and every pointer against its limits.

    Args:
        folder: as `write_catalogue` left it.
        mapped: map the arrays instead of reading them into memory of our own. Processes then share the pages,
            but a program that writes into the files in place harms whoever has them mapped; `write_catalogue`
            never does.

    Raises:
        ArtefactError: naming the file and what is wrong with it.
    """
    try:
        target = Path(folder).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # NUL, or links that lead in a circle
        raise ArtefactError(ascii(str(folder)), f"is no path: {error}") from error
    header = read_header(target)
    arrays = {name: _read(target / f"{name}.npy", form, mapped) for name, form in header.forms().items()}
    if header.content_of(arrays) != header.content:
        raise ArtefactError(str(target), f"the arrays are not those that {HEADER_FILE} was written with")
    return _checked(target, header, arrays)


def _checked(target: Path, header: Header, arrays: Mapping[str, Array]) -> Catalogue:
    index = index_of(header, arrays)
    fault = find_fault(index)
    if fault is not None:
        raise ArtefactError(str(target), fault)
    return Catalogue(index, header, target)


def _read(path: Path, form: Form, mapped: bool) -> Array:
    """One array of the type and shape that the header promises. An empty one can not be mapped."""
    dtype, shape = form
    try:
        with _opened(path) as stream:
            found = _form(stream, path)
            if found != form:
                raise ArtefactError(
                    str(path), f"{found[0]} {list(found[1])}, expected {dtype} {list(shape)} by {HEADER_FILE}"
                )
            offset, size = stream.tell(), os.fstat(stream.fileno()).st_size
            count = int(np.prod(shape))
            expected = offset + count * dtype.itemsize
            if size != expected:
                raise ArtefactError(str(path), f"{size} bytes, expected {expected}")
            if mapped and count:
                return np.asarray(np.memmap(stream, dtype, "r", offset, shape))
            array = np.fromfile(stream, dtype, count).reshape(shape)
    except OSError as error:
        raise ArtefactError(str(path), f"cannot be read: {error.strerror or error}") from error
    array.flags.writeable = False
    return array


def _opened(path: Path) -> BinaryIO:
    """A plain file, for reading. A pipe would keep the reader, and every load behind it, for ever."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise ArtefactError(str(path), "is not a plain file")
    return stream


def _form(stream: BinaryIO, path: Path) -> Form:
    """Type and shape in front of an array. numpy's own reader hands damaged text to Python's parser."""
    start = stream.read(len(_MAGIC) + _LENGTH.size)
    if len(start) < len(_MAGIC) + _LENGTH.size or not start.startswith(_MAGIC):
        raise ArtefactError(str(path), "is not an array of numpy, version 1.0")
    (length,) = _LENGTH.unpack(start[len(_MAGIC) :])
    found = _ARRAY.fullmatch(stream.read(length))
    if found is None:
        raise ArtefactError(str(path), "is not an array of whole numbers, row by row")
    return np.dtype(found[1].decode()), tuple(int(one) for one in found[2].split(b",") if one.strip())
