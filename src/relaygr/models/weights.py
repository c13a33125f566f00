"""A model on disk: `config.json` and `model.safetensors` in one folder, and their fingerprint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize

from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.models.initial import blank
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_CONFIG_DIGEST = "relaygr.config"  # key in the weight file's metadata


def save_ranker(model: Ranker, folder: Path) -> Fingerprint:
    """Write configuration and float32 weights; a reader sees the old pair, the new pair or an error.

    Raises BackendError when the file system refuses.

    The weight file carries a digest of the configuration it belongs to, so that a save cut short between
    the two files is noticed.
    """
    config = msgspec.json.format(msgspec.json.encode(model.config), indent=2) + b"\n"
    state = {name: tensor.detach().float().contiguous() for name, tensor in model.state_dict().items()}
    weights = serialize(state, {_CONFIG_DIGEST: _digest(config).hex()})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in ((WEIGHTS_FILE, weights), (CONFIG_FILE, config)):
            _replace(folder / name, data)
    except OSError as error:
        raise BackendError(f"cannot write model {folder}: {error.strerror or error}") from error
    return _fingerprint(config, weights)


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(file.name + ".tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def load_config(folder: Path) -> AnyConfig:
    """Read `config.json`.

    Raises:
        ConfigError: the file is missing, is not JSON, or holds an unknown or wrong key.
    """
    return _decode(folder / CONFIG_FILE, _read(folder / CONFIG_FILE))


def load_ranker(folder: Path, dtype: torch.dtype = torch.float32) -> Ranker:
    """A ranker in evaluation mode, matrices in `dtype`; as `open_ranker`."""
    return open_ranker(folder, dtype)[0]


def open_ranker(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Ranker, Fingerprint]:
    """A ranker and the fingerprint of the very bytes it was made of; the files may change afterwards.

    Raises:
        ConfigError: naming every missing, unexpected, mis-shaped or unusable tensor.
    """
    path = folder / WEIGHTS_FILE
    config_data, data = _read(folder / CONFIG_FILE), _read(path)
    config = _decode(folder / CONFIG_FILE, config_data)
    try:
        state = deserialize(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from error
    if _names_another(data, _digest(config_data).hex()):
        raise ConfigError(
            str(folder / CONFIG_FILE), f"is not the configuration that {WEIGHTS_FILE} was saved with"
        )
    with blank():
        model = Ranker(config)
    _check(path, state, model.state_dict())
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    return model.eval().requires_grad_(False).cast(dtype), _fingerprint(config_data, data)


def fingerprint(folder: Path) -> Fingerprint:
    """BLAKE2b-128 of the configuration and weight files: other bytes, other key space.

    Raises:
        ConfigError: a file cannot be read.
    """
    return _fingerprint(_read(folder / CONFIG_FILE), _read(folder / WEIGHTS_FILE))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error


def _decode(path: Path, data: bytes) -> AnyConfig:
    try:
        return msgspec.json.decode(data, type=AnyConfig)
    except (msgspec.DecodeError, RecursionError) as error:  # validation errors are decode errors too
        raise ConfigError(str(path), str(error)) from error


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _fingerprint(*files: bytes) -> Fingerprint:
    digest = hashlib.blake2b(digest_size=16)
    for data in files:
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return Fingerprint(digest.digest())


def _names_another(weights: bytes, config_digest: str) -> bool:
    """Whether the weight file names another configuration; files without a name pass."""
    size = int.from_bytes(weights[:8], "little")
    try:
        header = msgspec.json.decode(weights[8 : 8 + size], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(header.get("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
    except msgspec.DecodeError:
        return True
    return metadata.get(_CONFIG_DIGEST, config_digest) != config_digest


def _check(path: Path, state: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    problems = [f"missing {name}" for name in wanted if name not in state]
    for name, tensor in state.items():
        if name not in wanted:
            problems.append(f"unexpected {name}")
        elif tensor.shape != wanted[name].shape:
            problems.append(f"{name} has shape {list(tensor.shape)}, wanted {list(wanted[name].shape)}")
        elif tensor.dtype not in _FLOATS:
            problems.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, wanted floating point")
        elif not bool(torch.isfinite(tensor.float()).all()):  # as it will be used
            problems.append(f"not finite: {name}")
    if problems:
        raise ConfigError(str(path), "; ".join(problems))
