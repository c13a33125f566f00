"""Published files of hybrid decoders: kinds of layers, what is refused by its key, orders and conventions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_cases import apart, changed, ours, prompt, their_logits, theirs
from hybrid_cases import hybrid_prefilled
from safetensors.torch import load_file, save_file

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import load_settings, open_decoder, save_decoder
from relaygr.models.dense import OffsetRmsNorm

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "architecture": ({"architectures": ["Qwen3NextModel"]}, "architectures"),
    "experts": ({"num_experts": 512}, "num_experts: 512"),
    "experts, left out": ({"num_experts": None}, "num_experts: is missing"),
    "experts, a flag": ({"num_experts": False}, "num_experts"),
    "interval": ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval"),
    "kind": ({"layer_types": ["linear_attention"] * 3 + ["mamba"]}, "layer_types: 'mamba' is not one of"),
    "kind, a window": ({"layer_types": ["sliding_attention"] * 4}, "layer_types: 'sliding_attention'"),
    "kinds, too few": ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
    "kinds, a text": ({"layer_types": "linear_attention"}, "layer_types"),
    "rope part": ({"partial_rotary_factor": 0.5}, "rope_parameters.partial_rotary_factor"),
    "rope part, none": (
        {"rope_parameters": None, "partial_rotary_factor": 0.0},
        "config.json: partial_rotary_factor: 0.0 must be above 0",
    ),
    "rope part, odd": (
        {"rope_parameters": None, "partial_rotary_factor": 0.1},
        "head_dim.*partial_rotary_factor 0.1 leaves 3",
    ),
    "taps": ({"linear_conv_kernel_dim": 1}, "config.json: linear_conv_kernel_dim: 1 must be"),
    "value heads": ({"linear_num_value_heads": 3}, "config.json: linear_num_value_heads: 3 must be"),
    "value heads, text": ({"linear_num_value_heads": "4"}, "linear_num_value_heads"),
    "window": ({"use_sliding_window": True}, "use_sliding_window"),
}


@pytest.mark.parametrize("which", sorted(REFUSED))
def test_settings_that_are_refused_by_name(
    which: str, tmp_path: Path, published: Callable[[str], Path]
) -> None:
    changes, told = REFUSED[which]
    folder = changed(published("next"), tmp_path / "other", lambda values: values.update(changes))
    with pytest.raises(ConfigError, match=told) as caught:
        open_decoder(folder)
    assert "config.json" in str(caught.value)


def test_kinds_by_interval_and_sizes_that_a_file_may_leave_out(
    tmp_path: Path, published: Callable[[str], Path]
) -> None:
    def shorten(values: dict[str, Any]) -> None:
        values.pop("layer_types")
        values["full_attention_interval"] = 2
        for key in [key for key in values if key.startswith("linear_")] + ["head_dim", "rope_parameters"]:
            values.pop(key)

    config = load_settings(changed(published("next"), tmp_path / "short", shorten))
    assert config.layer_types == ("linear_attention", "full_attention") * 2
    assert config.linear is not None
    assert (config.linear.key_heads, config.linear.value_heads) == (16, 32)
    assert (config.linear.key_dim, config.linear.value_dim, config.linear.taps) == (128, 128, 4)
    assert (config.head_dim, config.rotary_dim, config.full_layers) == (256, 64, 2)
    assert config.kv_layout(torch.float32, 16).layers == 2


def _reweighed(source: Path, target: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def test_draft_layers_are_ignored_and_others_not(tmp_path: Path, published: Callable[[str], Path]) -> None:
    def draft(tensors: dict[str, torch.Tensor]) -> None:
        tensors["mtp.layers.0.input_layernorm.weight"] = torch.zeros(64)

    def more(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.linear_attn.bias"] = torch.zeros(64)

    model = open_decoder(_reweighed(published("next"), tmp_path / "draft", draft))[0]
    state = ours("next").state_dict()
    assert all(torch.equal(weight, state[key]) for key, weight in model.state_dict().items())
    with pytest.raises(ConfigError, match=r"unexpected model\.layers\.0\.linear_attn\.bias"):
        open_decoder(_reweighed(published("next"), tmp_path / "more", more))


def test_both_conventions_of_norms() -> None:
    """All multiply by 1 + weight, but for the one of what linear layers read."""
    model = ours("next")
    offset = {name for name, module in model.named_modules() if isinstance(module, OffsetRmsNorm)}
    assert {name.rpartition(".")[2] for name in offset} == {
        *("attention_norm", "mlp_norm", "q_norm", "k_norm", "norm")
    }
    assert len(offset) == 4 * 2 + 2 + 1
    published = dict(theirs("next").named_parameters())
    assert torch.equal(model.layers[0].state_norm.weight, published["model.layers.0.linear_attn.norm.weight"])
    assert torch.equal(model.norm.scale, 1 + published["model.norm.weight"])


def test_each_order_of_channels_matters() -> None:
    """Exchanging channels of two heads, before the convolution or in it, changes the result."""
    tokens, wanted = prompt(30), their_logits("next", prompt(30))[-1:]
    for parameter, rows in (("inputs", (0, 16)), ("inputs", (64, 112)), ("convolution", (0, 64))):
        model = open_like(ours("next"))
        weight = getattr(model.layers[0], parameter).weight
        one, other = rows
        with torch.no_grad():
            weight[[one, other]] = weight[[other, one]]
        assert apart(model.logits(hybrid_prefilled(model, tokens)[0]), wanted) > 1e-4


def open_like(model: Decoder) -> Decoder:
    other = Decoder(model.config)
    other.load_state_dict(model.state_dict())
    return other.requires_grad_(False)


def test_fresh_weights_are_written_in_the_published_layout(tmp_path: Path) -> None:
    model = Decoder(ours("next").config).init_weights(3)
    again = Decoder(ours("next").config).init_weights(3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    decay = model.layers[0].decay
    step = torch.nn.functional.softplus(decay.offset)
    assert bool(((step > 0.9e-3) & (step < 1.1e-1)).all())
    assert bool(((decay.log_rate >= 0) & (decay.log_rate <= 2.78)).all())
    save_decoder(model, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["architectures"] == ["Qwen3NextForCausalLM"]
    assert values["num_experts"] == 0
    read = open_decoder(tmp_path)[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), read.parameters(), strict=True))
    narrow = read.cast(torch.bfloat16)
    assert narrow.layers[0].decay.offset.dtype == torch.float32
    assert narrow.layers[0].inputs.weight.dtype == torch.bfloat16


def test_whole_heads_are_turned_if_the_file_says_so(tmp_path: Path) -> None:
    config = ours("next").config
    rope = type(config.rope)(theta=config.rope.theta, part=1.0)
    model = Decoder(
        type(config)(**{f: getattr(config, f) for f in config.__struct_fields__} | {"rope": rope})
    )
    save_decoder(model.init_weights(0), tmp_path)
    assert load_settings(tmp_path).rotary_dim == 32
