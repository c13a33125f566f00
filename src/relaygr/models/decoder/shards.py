"""The weight files of a published model, memory-mapped: nothing in them is run, every claim is checked."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.core.ids import Fingerprint

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_BLOCK_BYTES = 8 << 20


class Shards:
    """Tensors by name, over one or several open files; valid until the files are closed."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = handles  # tensor name -> open file

    @property
    def names(self) -> set[str]:
        return set(self._handles)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handles[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As the file format spells it: F32, BF16, ..."""
        return str(self._handles[name].get_slice(name).get_dtype())

    def tensor(self, name: str) -> Tensor:
        """The mapped tensor; to be copied, never to be written to."""
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The weight files of a folder, and which tensor is in which of them if an index says so.

    Raises:
        ConfigError: there are none, the index is damaged, or it names a file outside the folder.
    """
    index = folder / INDEX_FILE
    if not index.is_file():
        if not (folder / WEIGHTS_FILE).is_file():
            raise ConfigError(str(folder), f"holds neither {WEIGHTS_FILE} nor {INDEX_FILE}")
        return [folder / WEIGHTS_FILE], None
    if (folder / WEIGHTS_FILE).exists():
        raise ConfigError(str(folder), f"holds both {WEIGHTS_FILE} and {INDEX_FILE}")
    try:
        where = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except OSError as error:
        raise ConfigError(str(index), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(str(index), f"is not an index of weight files: {error}") from error
    for name, file in where.items():
        if Path(file).name != file or "\\" in file or "\0" in file or not file.endswith(".safetensors"):
            raise ConfigError(str(index), f"weight_map.{name}: {file!r} is not a weight file of this folder")
    return [folder / file for file in sorted(set(where.values()))], where


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


@contextmanager
def open_shards(files: list[Path], where: Mapping[str, str] | None) -> Iterator[Shards]:
    """Map the files, checked against the index.

    Raises:
        ConfigError: a file is missing, cut short or damaged, or does not hold what the index says.
    """
    with ExitStack() as stack:
        handles: dict[str, Any] = {}
        for file in files:
            try:
                handle = stack.enter_context(safe_open(file, framework="pt"))
                names = list(handle.keys())
            except OSError as error:
                raise ConfigError(str(file), f"cannot be read: {error.strerror or error}") from error
            except (SafetensorError, ValueError, KeyError, UnicodeDecodeError) as error:
                raise ConfigError(str(file), f"cannot be read: {error}") from error
            _check_index(file, names, where)
            handles |= dict.fromkeys(names, handle)
        yield Shards(handles)


def _check_index(file: Path, names: list[str], where: Mapping[str, str] | None) -> None:
    if where is None:
        return
    told = {name for name, shard in where.items() if shard == file.name}
    problems = [f"missing {name}" for name in sorted(told - set(names))]
    problems += [f"{name} is not in the index" for name in sorted(set(names) - told)]
    if problems:
        raise ConfigError(str(file), "; ".join(problems))


def stamps(files: list[Path]) -> list[tuple[int, int, int]]:
    """What changes when a file is replaced or written to: inode, size, time of the last write.

    Raises:
        ConfigError: a file is missing.
    """
    try:
        found = [path.stat() for path in files]
    except OSError as error:
        raise ConfigError(str(error.filename), f"cannot be read: {error.strerror}") from error
    return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in found]


def fingerprint(config: bytes, files: list[Path]) -> Fingerprint:
    """BLAKE2b-128 of the configuration and weight files: other bytes, other model version.

    Raises:
        ConfigError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(len(config).to_bytes(8, "little") + config)
    for path in files:
        try:
            with path.open("rb") as stream:
                size = path.stat().st_size
                digest.update(size.to_bytes(8, "little"))
                if not size:
                    continue
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    for start in range(0, size, _BLOCK_BYTES):
                        digest.update(data[start : start + _BLOCK_BYTES])
        except OSError as error:
            raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    return Fingerprint(digest.digest())
