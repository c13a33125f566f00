"""A published configuration: both spellings, what may be left out, and what is refused by its key."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decoder_cases import ALL_NAMES, apart, changed, ours, prompt, their_logits

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.config import RopeConfig
from relaygr.models.decoder.huggingface import load_settings, open_decoder


def _old_spelling(values: dict[str, Any]) -> None:
    rope = values.pop("rope_parameters")
    values["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    values["partial_rotary_factor"] = rope.pop("partial_rotary_factor", None)
    values["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    values["torch_dtype"] = values.pop("dtype")


@pytest.mark.parametrize("name", ALL_NAMES)
def test_the_older_spelling(name: str, tmp_path: Path, published: Callable[[str], Path]) -> None:
    folder = changed(published(name), tmp_path / "old", _old_spelling)
    model, version = open_decoder(folder)
    assert model.config == ours(name).config
    assert version != open_decoder(published(name))[1]
    tokens = prompt(90)
    assert apart(model.train_logits(tokens[None])[0], their_logits(name, tokens)) <= 1e-5


def test_what_a_file_may_leave_out(tmp_path: Path, published: Callable[[str], Path]) -> None:
    def shorten(values: dict[str, Any]) -> None:
        for key in ("head_dim", "rope_parameters", "attention_bias", "mlp_bias", "hidden_act", "dtype"):
            values.pop(key, None)
        values |= {"rope_theta": None, "rms_norm_eps": None, "num_key_value_heads": None}

    config = load_settings(changed(published("llama"), tmp_path / "short", shorten))
    assert (config.head_dim, config.num_kv_heads, config.norm_eps) == (16, 4, 1e-6)
    assert config.rope == RopeConfig(theta=10000.0)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    "architecture": ("qwen3", {"architectures": ["Qwen3ForSequenceClassification"]}, "architectures"),
    "dtype list": ("llama", {"dtype": ["float32"]}, "dtype"),
    "experts": ("qwen3", {"num_experts": 8}, "num_experts"),
    "family": ("llama", {"model_type": "mistral"}, "model_type"),
    "family missing": ("llama", {"model_type": None}, "model_type"),
    "float8": ("llama", {"dtype": "float8_e4m3fn"}, "dtype"),
    "float8, older": ("llama", {"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
    "head_dim odd": ("llama", {"head_dim": 15}, "head_dim"),
    "heads": ("llama", {"num_key_value_heads": 3}, "num_kv_heads"),
    "hidden_size missing": ("llama", {"hidden_size": None}, "hidden_size"),
    "hidden_size text": ("llama", {"hidden_size": "64"}, "hidden_size"),
    "hidden_size true": ("llama", {"hidden_size": True}, "hidden_size"),
    "layers without end": (
        "qwen3",
        {"num_hidden_layers": 10**9},
        "num_layers: 1000000000 must be at most 4096",
    ),
    "number without end": ("qwen3", {"rms_norm_eps": 10**400}, "rms_norm_eps"),
    "theta": ("llama", {"rope_parameters": None, "rope_theta": 0}, "rope_theta"),
    "kv heads missing": ("qwen3", {"num_key_value_heads": None}, "num_key_value_heads"),
    "layers zero": ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    "layer types": ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    "mlp bias": ("llama", {"mlp_bias": True}, "mlp_bias"),
    "no bias": ("qwen2", {"attention_bias": False}, "attention_bias"),
    "norm": ("llama", {"rms_norm_eps": -1.0}, "norm_eps"),
    "quantised": ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "rope contradicts": ("llama", {"rope_scaling": {"type": "linear", "factor": 3.0}}, "rope_scaling"),
    "rope factor": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
    "rope kind": ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type"),
    "rope part": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "rope setting": (
        "llama",
        {"rope_parameters": {"mrope_section": [1, 2]}},
        "rope_parameters.mrope_section",
    ),
    "rope theta": ("llama", {"rope_theta": 5.0}, "rope_parameters.rope_theta"),
    "rope theta text": ("llama", {"rope_parameters": None, "rope_theta": "1e4"}, "rope_theta"),
    "rope is text": ("llama", {"rope_parameters": "linear"}, "rope_parameters"),
    "tied": ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    "window": ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
    "window of llama": ("llama", {"sliding_window": 128}, "sliding_window"),
}


@pytest.mark.parametrize("which", sorted(REFUSED))
def test_settings_that_are_refused_by_name(
    which: str, tmp_path: Path, published: Callable[[str], Path]
) -> None:
    name, changes, told = REFUSED[which]
    folder = changed(published(name), tmp_path / "other", lambda values: values.update(changes))
    with pytest.raises(ConfigError, match=told) as caught:
        open_decoder(folder)
    assert "config.json" in str(caught.value)


def test_a_window_that_is_switched_off_is_none(tmp_path: Path, published: Callable[[str], Path]) -> None:
    changes = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 2}
    folder = changed(published("qwen2"), tmp_path / "off", lambda values: values.update(changes))
    assert load_settings(folder) == ours("qwen2").config


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "\xff", "[" * 100_000], ids=["empty", "list", "cut", "latin", "deep"]
)
def test_a_configuration_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_decoder(tmp_path)


def test_missing_files(tmp_path: Path, published: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        open_decoder(tmp_path / "nowhere")
    shutil.copy(published("llama") / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="holds neither"):
        open_decoder(tmp_path)
