"""Weight files: saved and read back, in shards, and what is wrong with those of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_cases import ALL_NAMES, CASES, changed, ours, prompt, their_logits, theirs
from safetensors.torch import load_file, save_file
from transformers.models.auto import AutoModelForCausalLM

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import open_decoder, save_decoder


def _reweighed(source: Path, target: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a folder with other tensors."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_saved_model_is_read_by_both(name: str, tmp_path: Path) -> None:
    version = save_decoder(ours(name), tmp_path)
    model, read = open_decoder(tmp_path)
    assert read == version
    assert model.config == ours(name).config
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, ours(name).state_dict()[key])
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = prompt(40)
    with torch.no_grad():
        assert torch.equal(again(tokens[None], use_cache=False).logits[0], their_logits(name, tokens))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_saved_half_width_model_keeps_its_bits(tmp_path: Path) -> None:
    model = ours("qwen3", torch.bfloat16)
    save_decoder(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    again = open_decoder(tmp_path, torch.bfloat16)[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(ConfigError, match="float64"):
        save_decoder(open_decoder(tmp_path, torch.float64)[0], tmp_path)


def test_level_heads_are_kept(tmp_path: Path) -> None:
    config = DecoderConfig(
        family="qwen3",
        vocab_size=24,
        hidden_size=8,
        mlp_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        level_heads=True,
    )
    save_decoder(Decoder(config).init_weights(0), tmp_path)
    assert open_decoder(tmp_path)[0].config == config


@pytest.mark.parametrize("name", ALL_NAMES)
def test_shards(name: str, tmp_path: Path, published: Callable[[str], Path]) -> None:
    theirs(name).save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model, version = open_decoder(tmp_path)
    state = ours(name).state_dict()
    assert all(torch.equal(weight, state[key]) for key, weight in model.state_dict().items())
    assert version != open_decoder(published(name))[1]
    with pytest.raises(ConfigError, match="sharded"):
        save_decoder(model, tmp_path)


_UP, _NORM, _EMBED = "model.layers.1.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"


def test_every_wrong_tensor_is_named(tmp_path: Path, published: Callable[[str], Path]) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[_UP]
        tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(2)
        tensors[_NORM] = torch.ones(63)
        tensors[_EMBED] = tensors[_EMBED].to(torch.int8)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # harmless, of older files

    with pytest.raises(ConfigError) as caught:
        open_decoder(_reweighed(published("llama"), tmp_path / "bad", spoil))
    told = str(caught.value)
    assert f"missing {_UP}" in told
    assert "unexpected model.layers.3.mlp.up_proj.weight" in told
    assert f"{_NORM} has shape [63], wanted [64]" in told
    assert f"{_EMBED} holds I8" in told
    assert "inv_freq" not in told


def test_values_that_are_not_finite_as_used(tmp_path: Path, published: Callable[[str], Path]) -> None:
    folder = _reweighed(published("llama"), tmp_path / "big", lambda tensors: tensors[_UP][3].fill_(1e30))
    assert open_decoder(folder)[0].dtype == torch.float32
    with pytest.raises(ConfigError, match=f"not finite: {_UP}"):
        open_decoder(folder, torch.float16)


def test_a_tied_model_may_hold_a_copy_of_its_table_and_no_other(
    tmp_path: Path, published: Callable[[str], Path]
) -> None:
    def copied(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors[_EMBED].clone()

    open_decoder(_reweighed(published("qwen3-tied"), tmp_path / "copy", copied))

    def other(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors[_EMBED] * 2

    with pytest.raises(ConfigError, match=r"unexpected lm_head.weight"):
        open_decoder(_reweighed(published("qwen3-tied"), tmp_path / "other", other))


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_weight_file_that_is_cut_short(keep: int, tmp_path: Path, published: Callable[[str], Path]) -> None:
    folder = changed(published("qwen2"), tmp_path / "cut", dict)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:keep])
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        open_decoder(folder)


def test_a_header_that_claims_more_than_there_is(tmp_path: Path, published: Callable[[str], Path]) -> None:
    folder = changed(published("qwen2"), tmp_path / "claims", dict)
    header = json.dumps({_NORM: {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        open_decoder(folder)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        "x.bin",
        "a\\b.safetensors",
        "\0.safetensors",
    ],
)
def test_a_shard_outside_the_folder(shard: str, tmp_path: Path, published: Callable[[str], Path]) -> None:
    shutil.copy(published("llama") / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {_NORM: shard}}))
    with pytest.raises(ConfigError, match="is not a weight file of this folder"):
        open_decoder(tmp_path)


def test_an_index_that_lies(tmp_path: Path) -> None:
    theirs("llama").save_pretrained(tmp_path, max_shard_size="60KB")
    index = tmp_path / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    shards = list(told["weight_map"].values())
    first = next(
        name
        for name, shard in told["weight_map"].items()
        if shard != told["weight_map"][_NORM] and shards.count(shard) > 1
    )

    def write(weight_map: Any) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))

    write(told["weight_map"] | {_NORM: told["weight_map"][first]})
    with pytest.raises(ConfigError, match=_NORM):
        open_decoder(tmp_path)
    write({name: shard for name, shard in told["weight_map"].items() if name != first})
    with pytest.raises(ConfigError, match=f"{first} is not in the index"):
        open_decoder(tmp_path)
    write(told["weight_map"] | {_NORM: "gone.safetensors"})
    with pytest.raises(ConfigError, match=r"gone\.safetensors: cannot be read"):
        open_decoder(tmp_path)
    write([1])
    with pytest.raises(ConfigError, match="is not an index"):
        open_decoder(tmp_path)
    write(told["weight_map"])
    theirs("llama").save_pretrained(tmp_path / "whole")
    shutil.copy(tmp_path / "whole" / "model.safetensors", tmp_path)
    with pytest.raises(ConfigError, match="holds both"):
        open_decoder(tmp_path)


def test_the_version_follows_every_byte(tmp_path: Path, published: Callable[[str], Path]) -> None:
    source = published("qwen3")
    versions = {open_decoder(source)[1], open_decoder(source)[1]}
    assert len(versions) == 1
    versions.add(open_decoder(changed(source, tmp_path / "a", lambda v: v.update(bos_token_id=3)))[1])
    versions.add(open_decoder(_reweighed(source, tmp_path / "b", lambda t: t[_UP][0, 0].add_(1)))[1])
    assert len(versions) == 3


def test_an_opened_model_does_not_change_with_its_file(
    tmp_path: Path, published: Callable[[str], Path]
) -> None:
    folder = changed(published("qwen3"), tmp_path / "m", dict)
    model, _ = open_decoder(folder)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(-4096, 2)
        stream.write(b"\x11" * 4096)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not any(weight.requires_grad for weight in model.parameters())
    assert not model.training


def test_every_case_is_of_a_known_family() -> None:
    assert {ours(name).config.family for name in CASES} == {"llama", "qwen2", "qwen3", "qwen3_next"}
