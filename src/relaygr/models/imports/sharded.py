"""The folder that torch's distributed checkpoint writes; only torch's own records are unpickled."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from relaygr.core.errors import ConfigError
from relaygr.models.imports.reading import BAD_FILE, Contents, FileRecord, explain, load_plain

INDEX = ".metadata"
_MAX_INDEX_BYTES = 64 << 20

# The records of torch's index, and nothing that acts when it is made.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath"},
}


class _Records(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype) or name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an index of tensors")


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a chunk's bytes are."""

    path: Path
    offset: int
    length: int


def read_sharded(folder: Path) -> Contents:
    """All tensors of the folder, put together from their chunks.

    Raises:
        ConfigError: the index or a chunk is missing, damaged, holds other objects, or claims too much.
    """
    index = folder / INDEX
    metadata = _read_index(index)
    try:
        return _read_all(index, metadata)
    except (TypeError, AttributeError, ValueError) as error:  # fields of the records hold something else
        raise ConfigError(str(index), f"is not an index of tensors: {error}") from error


def _read_all(index: Path, metadata: Metadata) -> Contents:
    parts = _parts(index.parent, metadata.storage_data or {})
    files = [FileRecord.of(path) for path in sorted({index, *(part.path for part in parts.values())})]
    total = sum(file.bytes for file in files)
    values: dict[str, object] = {}
    claimed = 0
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise ConfigError(str(index), f"{name} is {type(entry).__name__}, wanted a tensor")
        if any(size < 0 for size in entry.size):
            raise ConfigError(str(index), f"{name} {list(entry.size)}: a size is negative")
        # By Python's own numbers: torch's product of sizes wraps around.
        claimed += math.prod(entry.size) * entry.properties.dtype.itemsize
        if claimed > total:
            raise ConfigError(
                str(index), f"{name} {list(entry.size)}: tensors claim {claimed} bytes of {total}"
            )
        values[str(name)] = _assemble(index, str(name), entry, parts)
    return Contents(values, tuple(files))


def _read_index(index: Path) -> Metadata:
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ConfigError(str(index), f"has more than {_MAX_INDEX_BYTES} bytes")
        metadata = _Records(io.BytesIO(index.read_bytes())).load()
    except OSError as error:
        raise ConfigError(str(index), f"cannot be read: {error.strerror}") from error
    except BAD_FILE as error:
        raise ConfigError(str(index), f"is not an index of tensors: {error}") from error
    if not isinstance(metadata, Metadata):
        raise ConfigError(str(index), f"holds {type(metadata).__name__}, wanted an index of tensors")
    return metadata


def _parts(folder: Path, storage: Mapping[object, object]) -> dict[tuple[str, tuple[int, ...]], _Part]:
    parts = {}
    for key, info in storage.items():
        if not isinstance(key, MetadataIndex) or not isinstance(info, _StorageInfo):
            raise TypeError(f"{type(key).__name__} at {type(info).__name__}")
        if Path(info.relative_path).name != info.relative_path:
            raise ValueError(f"{info.relative_path!r} is outside the folder")
        where = (str(key.fqn), tuple(key.offset or ()))
        parts[where] = _Part(folder / info.relative_path, info.offset, info.length)
    return parts


def _assemble(
    index: Path, name: str, entry: TensorStorageMetadata, parts: Mapping[tuple[str, tuple[int, ...]], _Part]
) -> Tensor:
    whole = torch.full(entry.size, float("nan"), dtype=torch.float32)
    for chunk in entry.chunks:
        part = parts.get((name, tuple(chunk.offsets)))
        if part is None:
            raise ConfigError(str(index), f"{name} has no bytes for its chunk at {list(chunk.offsets)}")
        tensor = _read_part(part, name)
        inside = all(
            0 <= o <= o + s <= n for o, s, n in zip(chunk.offsets, chunk.sizes, entry.size, strict=True)
        )
        if tensor.shape != chunk.sizes or not inside:
            raise ConfigError(
                str(part.path),
                f"{name} has a chunk {list(tensor.shape)} at {list(chunk.offsets)}, "
                f"wanted {list(chunk.sizes)} inside {list(entry.size)}",
            )
        place = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
        # A chunk that is missing leaves numbers that are not finite and so is refused later, by name.
        whole[place] = tensor.float()
    return whole


def _read_part(part: _Part, name: str) -> Tensor:
    try:
        with part.path.open("rb") as stream:
            stream.seek(part.offset)
            data = stream.read(min(part.length, part.path.stat().st_size))
    except OSError as error:
        raise ConfigError(str(part.path), f"cannot be read: {error.strerror}") from error
    try:
        value = load_plain(io.BytesIO(data))
    except BAD_FILE as error:
        raise ConfigError(str(part.path), f"{name}: {explain(error)}") from error
    if not isinstance(value, Tensor) or value.numel() * value.element_size() > len(data):
        raise ConfigError(str(part.path), f"{name}: a chunk is not a tensor of its own bytes")
    return value
