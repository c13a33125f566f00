"""Tensor files of strangers: nothing in them is run, and no claim of theirs is believed unchecked."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import struct
import tokenize
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from relaygr.core.errors import ConfigError

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt")
SUFFIXES = (*TORCH_SUFFIXES, ".safetensors", ".npy")

# What torch.load raises for files that are cut short, damaged or made up.
BAD_FILE = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    AssertionError,
    ImportError,
    MemoryError,
    RecursionError,
    OSError,
    struct.error,
)


class FileRecord(msgspec.Struct, frozen=True):
    """A file that was read: its path as given, its size and the BLAKE2b-128 of its bytes."""

    path: str
    bytes: int
    blake2b: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        digest, size = hashlib.blake2b(digest_size=16), 0
        try:
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                    size += len(block)
        except OSError as error:
            raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
        return cls(str(path), size, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Contents:
    """What some files hold: values by name, most of them tensors, and which files they were."""

    values: dict[str, object] = field(default_factory=dict)
    files: tuple[FileRecord, ...] = ()


def read_values(path: Path) -> Contents:
    """The top level of a tensor file: a flat mapping, or one that nests others.

    Raises:
        ConfigError: the file is missing, of another kind, cut short, holds Python objects, or claims more
            than it holds.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(str(path), f"{path.suffix!r} is none of {', '.join(SUFFIXES)}")
    record = FileRecord.of(path)
    if path.suffix == ".npy":
        return Contents({"": _read_npy(path)}, (record,))
    values = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path, record.bytes)
    if not isinstance(values, dict):
        raise ConfigError(str(path), f"holds {type(values).__name__}, wanted a mapping of names to tensors")
    return Contents({str(name): value for name, value in values.items()}, (record,))


def check_size(path: Path, name: str, tensor: Tensor, limit_bytes: int) -> None:
    """Refuse a tensor of more bytes than its file, such as one number spread over terabytes."""
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ConfigError(str(path), f"{name} is not a plain tensor: nested, sparse or quantised")
    size = tensor.numel() * tensor.element_size()
    if size > limit_bytes:
        raise ConfigError(
            str(path), f"{name} {list(tensor.shape)} claims {size} bytes in a file of {limit_bytes}"
        )


def _read_npy(path: Path) -> Tensor:
    try:
        # Mapped, so that a header which claims more than the file holds allocates nothing.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(array))
    except (*BAD_FILE, SyntaxError, tokenize.TokenError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise ConfigError(str(path), f"is not a readable array: {reason or type(error).__name__}") from error


def _read_safetensors(path: Path) -> object:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise ConfigError(str(path), f"is not a readable safetensors file: {error}") from error


def _read_torch(path: Path, size: int) -> object:
    try:
        if zipfile.is_zipfile(path):
            _check_zip(path, size)
        values = load_plain(path)
    except BAD_FILE as error:
        raise ConfigError(str(path), explain(error)) from error
    for name, tensor in _tensors(values, ""):
        check_size(path, name, tensor, size)
    return values


def load_plain(file: Path | io.BytesIO) -> object:
    """What torch saved, if that is plain tensors in plain containers; raises one of `BAD_FILE`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about the age and protocol of a file
        return torch.load(file, map_location="cpu", weights_only=True)


def _check_zip(path: Path, size: int) -> None:
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > size:
        raise ConfigError(str(path), f"claims {claimed} bytes in a file of {size}")


def explain(error: Exception) -> str:
    """Why torch did not load a file, without its advice to load it all the same."""
    if isinstance(error, pickle.UnpicklingError):
        found = re.search(r"GLOBAL (\S+)", str(error))
        which = f" ({found[1]})" if found else ""
        return f"holds Python objects{which}, which are not loaded, or is damaged; save plain tensors"
    first = (str(error).splitlines() or [""])[0]
    return f"is not a readable torch file: {first or type(error).__name__}"


def _tensors(value: object, name: str) -> list[tuple[str, Tensor]]:
    """All tensors of nested mappings, with dotted names."""
    found, waiting = [], [(name, value)]
    seen: set[int] = set()
    while waiting:
        at, one = waiting.pop()
        if isinstance(one, Tensor):
            found.append((at, one))
        elif isinstance(one, dict) and id(one) not in seen:
            seen.add(id(one))  # a mapping may hold itself
            waiting += [(f"{at}.{key}" if at else str(key), inner) for key, inner in one.items()]
    return found
