"""Semantic ids on disk: `sids.json`, the tensors it names, and a table of items for catalogues."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as deserialize
from safetensors.numpy import save as serialize

from relaygr.core.errors import BackendError, ConfigError
from relaygr.generation.sids.build import SemanticIds
from relaygr.generation.sids.quantise import Codebooks, SidConfig
from relaygr.generation.sids.report import SidReport

FORMAT_VERSION = 1
SIDS_FILE = "sids.json"
TABLE_FILE = "items.jsonl"
_TENSORS = re.compile(r"sids-[0-9a-f]{32}\.safetensors")


class SidsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `sids.json` holds.

    Attributes:
        tensors, tensors_digest: file beside it and the BLAKE2b-128 of its bytes.
        record_digest: BLAKE2b-128 of this record with an empty `record_digest`.
    """

    format_version: int
    config: SidConfig
    sizes: tuple[int, ...]
    width: int
    items: int
    input_digest: str
    report: SidReport
    tensors: str
    tensors_digest: str
    record_digest: str = ""

    def digest(self) -> str:
        """What `record_digest` must be."""
        return _digest(msgspec.json.encode(msgspec.structs.replace(self, record_digest="")))


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table of items."""

    item_id: int
    token_ids: tuple[int, ...]
    priority: float


def save_sids(sids: SemanticIds, folder: Path) -> str:
    """Write the artefact and its table of items; returns the digest that names this build.

    The tensors have a name of their own and `sids.json` is replaced last, so that a reader finds the old
    build or the new one. What the folder held of another build is removed.

    Raises:
        ConfigError: a table of items that is no build's is in the folder.
        BackendError: the file system refuses.
    """
    check_target(folder)
    tensors: dict[str, npt.NDArray[Any]] = {
        f"centroids.{level + 1}": each for level, each in enumerate(sids.codebooks.centroids)
    }
    tensors["mean"], tensors["codes"] = sids.codebooks.mean, sids.codes
    tensors["item_ids"], tensors["priority"] = sids.item_ids, sids.priority
    data = serialize({name: np.ascontiguousarray(each) for name, each in tensors.items()})
    digest = _digest(data)
    record = SidsRecord(
        format_version=FORMAT_VERSION,
        config=sids.config,
        sizes=sids.sizes,
        width=len(sids.codebooks.mean),
        items=len(sids.item_ids),
        input_digest=sids.digest,
        report=sids.report,
        tensors=f"sids-{digest}.safetensors",
        tensors_digest=digest,
    )
    record = msgspec.structs.replace(record, record_digest=record.digest())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / record.tensors, data)
        _replace(folder / TABLE_FILE, _table(sids))
        _replace(folder / SIDS_FILE, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        for other in folder.glob("sids-*.safetensors"):
            if other.name != record.tensors and _TENSORS.fullmatch(other.name):
                other.unlink(missing_ok=True)
    except OSError as error:
        raise BackendError(f"cannot write {folder}: {error.strerror or error}") from error
    return digest


def check_target(folder: Path, option: str = "--out") -> None:
    """Raise ConfigError where a build would write over a table of items that is not of one."""
    if not (folder / TABLE_FILE).exists() or (folder / SIDS_FILE).exists():
        return
    # A build that was killed has left its tensors.
    if not any(_TENSORS.fullmatch(one.name) for one in folder.iterdir()):
        raise ConfigError(option, f"{folder} holds {TABLE_FILE} of no build; choose another folder")


def open_sids(folder: Path) -> tuple[SemanticIds, str]:
    """The build in `folder` and the digest that names it.

    Raises:
        ConfigError: there is none, it is damaged, or another release wrote it; names the file.
    """
    path = folder / SIDS_FILE
    try:
        record = msgspec.json.decode(_read(path), type=SidsRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(str(path), f"is damaged or not a build of semantic ids: {error}") from error
    if record.format_version != FORMAT_VERSION:
        raise ConfigError(
            str(path), f"has format {record.format_version}, this release reads {FORMAT_VERSION}"
        )
    if record.record_digest != record.digest():
        raise ConfigError(str(path), "is damaged: its digest does not match")
    if record.tensors != f"sids-{record.tensors_digest}.safetensors":
        raise ConfigError(str(path), f"names {record.tensors!r}, which is no file of this format")
    file = folder / record.tensors
    data = _read(file)
    if _digest(data) != record.tensors_digest:
        raise ConfigError(str(file), "is damaged: its digest does not match")
    try:
        tensors = deserialize(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConfigError(str(file), f"cannot be read: {error}") from error
    return _assembled(file, record, tensors), record.tensors_digest


def _assembled(file: Path, record: SidsRecord, tensors: dict[str, npt.NDArray[Any]]) -> SemanticIds:
    quantised = len(record.sizes) - (record.config.collision == "digit")
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        f"centroids.{level + 1}": ("float32", (record.sizes[level], record.width))
        for level in range(quantised)
    }
    wanted["mean"] = ("float32", (record.width,))
    wanted["codes"] = ("int32", (record.items, len(record.sizes)))
    wanted["item_ids"] = ("int64", (record.items,))
    wanted["priority"] = ("float64", (record.items,))
    found = {name: (str(each.dtype), each.shape) for name, each in tensors.items()}
    if found != wanted:
        names = sorted(name for name in {**found, **wanted} if found.get(name) != wanted.get(name))
        raise ConfigError(str(file), f"does not fit {SIDS_FILE}: {', '.join(names)}")
    books = Codebooks(
        tuple(tensors[f"centroids.{level + 1}"].astype(np.float32) for level in range(quantised)),
        tensors["mean"].astype(np.float32),
        record.config.normalise,
    )
    return SemanticIds(
        record.config,
        books,
        record.sizes,
        tensors["item_ids"].astype(np.int64),
        tensors["codes"].astype(np.int32),
        tensors["priority"].astype(np.float64),
        record.input_digest,
        record.report,
    )


def _table(sids: SemanticIds) -> bytes:
    encoder = msgspec.json.Encoder()
    rows = zip(sids.item_ids.tolist(), sids.codes.tolist(), sids.priority.tolist(), strict=True)
    lines = [
        encoder.encode(TableRow(item_id=item, token_ids=tuple(codes), priority=priority))
        for item, codes, priority in rows
    ]
    return b"\n".join([*lines, b""])


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(file.name + ".tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
