"""A model folder: what is written comes back, and whatever is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.engine import Engine
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import PRESETS, preset
from relaygr.models.ranker import Ranker
from relaygr.models.weights import fingerprint, load_config, load_ranker, save_ranker

CONFIG = HstuConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=1,
    qk_dim=8,
    v_dim=8,
    item_rows=11,
    embedding_dim=8,
    max_seq_len=64,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_ranker(Ranker(CONFIG), tmp_path)
    return tmp_path


def test_round_trip(folder: Path) -> None:
    torch.manual_seed(0)
    want = Ranker(CONFIG).state_dict()
    got = load_ranker(folder)
    assert got.config == CONFIG
    assert not got.training
    for name, tensor in got.state_dict().items():
        assert torch.equal(tensor, want[name])
    assert load_ranker(folder, torch.bfloat16).compute_dtype == torch.bfloat16
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_any_changed_byte_is_another_fingerprint(folder: Path) -> None:
    before = fingerprint(folder)
    assert fingerprint(folder) == before
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(data))
    assert fingerprint(folder) != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layers.0.output.weight"), "missing layers.0.output.weight"),
        (lambda s: s.update(extra=torch.zeros(1)), "unexpected extra"),
        (
            lambda s: s.update({"tokens.gap": torch.zeros(2, 16)}),
            r"tokens.gap has shape \[2, 16\], wanted \[65, 16\]",
        ),
        (lambda s: s.update({"tokens.gap": torch.full((65, 16), torch.nan)}), "not finite: tokens.gap"),
        (
            lambda s: s.update({"tokens.gap": torch.ones(65, 16).long()}),
            "tokens.gap holds int64, wanted floating",
        ),
    ],
)
def test_wrong_tensors_are_named(folder: Path, change: object, message: str) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)  # type: ignore[operator]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        load_ranker(folder)


def test_broken_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_ranker(folder)
    (folder / "config.json").write_text('{"hidden_size": 8, "hiden": 3}')
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_config(folder)
    with pytest.raises(ConfigError, match=r"nowhere.config\.json: cannot be read"):
        Engine.load(tmp_path / "nowhere", EngineConfig(dtype="fp32", device_bytes=1 << 20))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("max_seq_len", 0),
        ("window", -1),
        ("full_tail", 3),
        ("tasks", ()),
        ("tasks", ("like",)),
        ("action_bits", ("engage", "engage")),
        ("norm_eps", 0.0),
    ],
)
def test_wrong_configurations_name_the_key(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"model.{field}"):
        msgspec.convert(msgspec.to_builtins(CONFIG) | {field: value}, HstuConfig)


def test_presets() -> None:
    shapes = {n: (c.num_layers, c.num_heads, c.qk_dim, c.v_dim, c.hidden_size) for n, c in PRESETS.items()}
    assert shapes == {
        "hstu-tiny": (2, 2, 32, 32, 64),
        "hstu-small": (4, 4, 64, 64, 256),
        "hstu-kuairand": (3, 4, 128, 128, 512),
        "hstu-mlperf": (5, 4, 128, 128, 512),
        "meta-dlrm-v3": (5, 4, 128, 128, 512),
        "meta-research-ml20m": (8, 4, 64, 64, 256),
        "nvidia-kuairand": (3, 4, 128, 128, 512),
        "transformer-tiny": (2, 2, 32, 32, 64),
        "transformer-small": (4, 4, 64, 64, 256),
    }
    with pytest.raises(ConfigError, match="hstu-small"):
        preset("hstu-smal")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_converted(folder: Path, dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    assert {p.dtype for p in load_ranker(folder).parameters()} == {torch.float32}


def test_a_loaded_model_does_not_depend_on_its_files(folder: Path) -> None:
    model = load_ranker(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(10)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_save_cut_short_is_noticed(folder: Path) -> None:
    old = (folder / "config.json").read_bytes()
    changed = msgspec.structs.replace(CONFIG, scaling_seqlen=16)
    save_ranker(Ranker(changed), folder)
    assert load_ranker(folder).config == changed
    (folder / "config.json").write_bytes(old)
    with pytest.raises(ConfigError, match=r"config\.json: is not the configuration that model\.safetensors"):
        load_ranker(folder)


def test_too_many_action_bits() -> None:
    names = [f"a{i}" for i in range(64)]
    with pytest.raises(ConfigError, match=r"model\.action_bits: 64"):
        msgspec.convert(msgspec.to_builtins(CONFIG) | {"action_bits": names, "tasks": ["a0"]}, HstuConfig)
