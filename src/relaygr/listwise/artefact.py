"""A small model on disk: `NAME.json` with its configuration and `NAME.safetensors` with its arrays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as deserialize
from safetensors.numpy import save as serialize

from relaygr.core.errors import BackendError, ConfigError
from relaygr.listwise.arrays import Float32

AnyConfig = TypeVar("AnyConfig", bound=msgspec.Struct)
_CONFIG = "relaygr.config"  # key in the metadata of the arrays: the configuration they belong to


def version_of(config: msgspec.Struct, tensors: Mapping[str, Float32]) -> str:
    """BLAKE2b-128 of the configuration and all arrays, in hexadecimal."""
    return _hashed(msgspec.json.encode(config), tensors)


def weights_of(tensors: Mapping[str, Float32]) -> str:
    """The same of the arrays alone: equal for copies whose configuration says something else."""
    return _hashed(b"", tensors)


def _hashed(head: bytes, tensors: Mapping[str, Float32]) -> str:
    digest = hashlib.blake2b(head, digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {list(tensors[name].shape)}".encode())
        digest.update(np.ascontiguousarray(tensors[name], dtype="<f4").tobytes())
    return digest.hexdigest()


def save(folder: Path, name: str, config: msgspec.Struct, tensors: Mapping[str, Float32]) -> None:
    """Write both files; a reader sees the old pair, the new pair or an error.

    Raises:
        BackendError: the file system refuses.
    """
    text = msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"
    arrays = {each: np.ascontiguousarray(values, dtype=np.float32) for each, values in tensors.items()}
    data = serialize(arrays, {_CONFIG: _digest(text)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / f"{name}.safetensors", data)
        _replace(folder / f"{name}.json", text)
    except OSError as error:
        raise BackendError(f"cannot write {folder}: {error.strerror or error}") from error


def load(folder: Path, name: str, kind: type[AnyConfig]) -> tuple[AnyConfig, dict[str, Float32]]:
    """Read both files; whoever calls checks names and shapes.

    Raises:
        ConfigError: a file is missing or damaged, or the two do not belong together; names it.
    """
    path, file = folder / f"{name}.json", folder / f"{name}.safetensors"
    text, data = _read(path), _read(file)
    try:
        config = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(str(path), f"is damaged or of another kind: {error}") from error
    try:
        tensors: dict[str, npt.NDArray[Any]] = deserialize(data)
        size = int.from_bytes(data[:8], "little")
        header = msgspec.json.decode(data[8 : 8 + size], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(header.get("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConfigError(str(file), f"cannot be read: {error}") from error
    if metadata.get(_CONFIG) != _digest(text):
        raise ConfigError(str(path), f"is not the configuration that {file.name} was saved with")
    return config, tensors


def check(path: str, tensors: Mapping[str, npt.NDArray[Any]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ConfigError naming every missing, unexpected, mis-shaped or unusable array."""
    problems = [f"missing {name}" for name in wanted if name not in tensors]
    for name, values in tensors.items():
        if name not in wanted:
            problems.append(f"unexpected {name}")
        elif values.shape != wanted[name]:
            problems.append(f"{name} has shape {list(values.shape)}, wanted {list(wanted[name])}")
        elif values.dtype != np.float32:
            problems.append(f"{name} holds {values.dtype}, wanted float32")
        elif not np.isfinite(values).all():
            problems.append(f"not finite: {name}")
    if problems:
        raise ConfigError(path, "; ".join(problems))


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
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
