"""A model on disk: `config.json` and `model.safetensors` in one folder, and their fingerprint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize

from relaygr.core.errors import ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.models.config import HstuConfig
from relaygr.models.ranker import HstuRanker

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_ranker(model: HstuRanker, folder: Path) -> Fingerprint:
    """Write configuration and float32 weights; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().float().contiguous() for name, tensor in model.state_dict().items()}
    weights, config = folder / WEIGHTS_FILE, folder / CONFIG_FILE
    temporary = weights.with_suffix(".tmp")
    temporary.write_bytes(serialize(state))
    os.replace(temporary, weights)
    temporary = config.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(model.config), indent=2) + b"\n")
    os.replace(temporary, config)
    return fingerprint(folder)


def load_config(folder: Path) -> HstuConfig:
    """Read `config.json`.

    Raises:
        ConfigError: the file is missing, is not JSON, or holds an unknown or wrong key.
    """
    path = folder / CONFIG_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=HstuConfig)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:  # validation errors are decode errors too
        raise ConfigError(str(path), str(error)) from error


def load_ranker(folder: Path, dtype: torch.dtype = torch.float32) -> HstuRanker:
    """A ranker in evaluation mode, matrices in `dtype`.

    Raises:
        ConfigError: naming every missing, unexpected or mis-shaped tensor.
    """
    config = load_config(folder)
    path = folder / WEIGHTS_FILE
    try:
        state = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from error
    with torch.device("meta"):
        model = HstuRanker(config)
    wanted = model.state_dict()
    problems = [f"missing {name}" for name in wanted if name not in state]
    problems += [f"unexpected {name}" for name in state if name not in wanted]
    problems += [
        f"{name} has shape {list(state[name].shape)}, wanted {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if problems:
        raise ConfigError(str(path), "; ".join(problems))
    bad = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        raise ConfigError(str(path), f"not finite: {', '.join(bad)}")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False).cast(dtype)


def fingerprint(folder: Path) -> Fingerprint:
    """BLAKE2b-128 of the configuration and weight files: other bytes, other key space.

    Raises:
        ConfigError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(str(folder / name), f"cannot be read: {error.strerror}") from error
        digest.update(len(data).to_bytes(8, "little") + data)
    return Fingerprint(digest.digest())
