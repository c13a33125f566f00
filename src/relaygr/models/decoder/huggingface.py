"""A decoder on disk, in the layout that others publish and read: `config.json` and safetensors files."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save as serialize
from torch import Tensor

from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.names import LM_HEAD, Part, parts
from relaygr.models.decoder.settings import read_settings, write_settings
from relaygr.models.decoder.shards import (
    INDEX_FILE,
    WEIGHTS_FILE,
    Shards,
    fingerprint,
    open_shards,
    stamps,
    weight_files,
)
from relaygr.models.initial import blank

CONFIG_FILE = "config.json"
_FLOATS = ("F64", "F32", "BF16", "F16")
_FREQUENCIES = "rotary_emb.inv_freq"  # older files keep what the configuration says already
_DRAFT = "mtp."  # layers that guess several tokens ahead; the model is the same without them


def load_settings(folder: Path) -> DecoderConfig:
    """The shape of the model in a folder; weights are not touched.

    Raises:
        ConfigError: see `read_settings`.
    """
    return read_settings(folder / CONFIG_FILE, _read(folder / CONFIG_FILE))


def open_decoder(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Decoder, Fingerprint]:
    """A decoder in evaluation mode, matrices in `dtype`, and the fingerprint of its files.

    Weight files are mapped and copied tensor by tensor, so that no second copy of the model is in memory.
    No code of a checkpoint is executed.

    Raises:
        ConfigError: a setting is not implemented, by its key; or naming every missing, unexpected, mis-shaped
            or unusable tensor; or a file is missing, cut short or damaged.
    """
    config_data = _read(folder / CONFIG_FILE)
    config = read_settings(folder / CONFIG_FILE, config_data)
    files, where = weight_files(folder)
    before = stamps(files)
    with open_shards(files, where) as shards:
        _check(folder, config, shards)
        version = fingerprint(config_data, files)
        model = _empty(config, dtype)
        problems = _fill(model, config, shards)
    if stamps(files) != before:
        problems.append("weight files changed while they were read")
    if problems:
        raise ConfigError(str(folder), "; ".join(problems))
    return model.eval().requires_grad_(False), version


def save_decoder(model: Decoder, folder: Path) -> Fingerprint:
    """Write configuration and weights, each tensor in its own dtype; a reader sees whole files only.

    Raises:
        ConfigError: the layout has no name for the model's dtype, or the folder holds a sharded model.
        BackendError: the file system refuses.
    """
    config = write_settings(model.config, model.dtype)
    if (folder / INDEX_FILE).exists():
        raise ConfigError(str(folder), f"holds {INDEX_FILE}, a sharded model; choose another folder")
    state = dict(model.named_parameters())
    tensors = {part.name: _published(state[part.parameter], part) for part in parts(model.config)}
    weights = serialize(tensors, {"format": "pt"})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in ((WEIGHTS_FILE, weights), (CONFIG_FILE, config)):
            _replace(folder / name, data)
    except OSError as error:
        raise BackendError(f"cannot write model {folder}: {error.strerror or error}") from error
    return fingerprint(config, [folder / WEIGHTS_FILE])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(file.name + ".tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _published(parameter: Tensor, part: Part) -> Tensor:
    """A copy of a part: the file format allows no two tensors in one memory."""
    return part.read(parameter.detach().cpu()).clone()


def _empty(config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    """A model whose memory is reserved and not yet written."""
    with blank():
        model = Decoder(config)
    model.cast(dtype)
    return model.to_empty(device="cpu")


def _check(folder: Path, config: DecoderConfig, shards: Shards) -> None:
    wanted = {part.name: part for part in parts(config)}
    found = {name for name in shards.names if not name.endswith(_FREQUENCIES)}
    if config.family == "qwen3_next":
        found = {name for name in found if not name.startswith(_DRAFT)}
    if config.tie_embeddings:
        found.discard(LM_HEAD)  # some writers keep a copy; `_fill` compares it
    problems = [f"missing {name}" for name in wanted if name not in found]
    for name in sorted(found):
        if name not in wanted:
            problems.append(f"unexpected {name}")
        elif shards.shape(name) != wanted[name].shape:
            problems.append(f"{name} has shape {list(shards.shape(name))}, wanted {list(wanted[name].shape)}")
        elif shards.dtype(name) not in _FLOATS:
            problems.append(f"{name} holds {shards.dtype(name)}, wanted floating point")
    if problems:
        raise ConfigError(str(folder), "; ".join(problems))


def _fill(model: Decoder, config: DecoderConfig, shards: Shards) -> list[str]:
    """Copy every tensor to its place; returns what is wrong with their values."""
    problems, state = [], dict(model.named_parameters())
    with torch.no_grad():
        for part in parts(config):
            parameter = state[part.parameter]
            part.write(parameter, shards.tensor(part.name))
            if not bool(torch.isfinite(part.read(parameter)).all()):  # as it will be used
                problems.append(f"not finite: {part.name}")
    if config.tie_embeddings and LM_HEAD in shards.names:
        table = shards.tensor("model.embed_tokens.weight")
        if not torch.equal(shards.tensor(LM_HEAD), table):
            problems.append(f"unexpected {LM_HEAD}: tie_word_embeddings is set, and it is another matrix")
    return problems
