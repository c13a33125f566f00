"""Small random models of the families, in the published implementation and in ours, with equal weights."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.utils import logging

from relaygr.memory.beams import BeamPool
from relaygr.memory.stores import PrivateKv
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import open_decoder
from relaygr.models.decoder.rows import PromptRow

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCABULARY, LAYERS = 211, 3
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True)
class Case:
    config: Any
    model: Any
    changes: dict[str, Any] = field(default_factory=dict)


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": Case(LlamaConfig, LlamaForCausalLM),
    "llama-bias": Case(LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "head_dim": 32}),
    "llama-linear": Case(
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    ),
    "llama-llama3": Case(LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3}),
    "qwen2": Case(Qwen2Config, Qwen2ForCausalLM, {"rms_norm_eps": 1e-5}),
    "qwen2-tied": Case(Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": Case(Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "tie_word_embeddings": False}),
    "qwen3-tied": Case(
        Qwen3Config,
        Qwen3ForCausalLM,
        {"head_dim": 16, "tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
}
NAMES = sorted(CASES)

_LINEAR = {
    "num_experts": 0,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_L, _F = "linear_attention", "full_attention"
HYBRIDS = {
    "next": Case(Qwen3NextConfig, Qwen3NextForCausalLM, {**_LINEAR, "num_hidden_layers": 4}),
    "next-ends-linear": Case(
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
        {
            **_LINEAR,
            "layer_types": [_L, _F, _L],
            "linear_num_value_heads": 2,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "next-linear": Case(
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
        {**_LINEAR, "layer_types": [_L, _L], "num_hidden_layers": 2, "linear_num_key_heads": 1},
    ),
}
CASES |= HYBRIDS
HYBRID_NAMES = sorted(HYBRIDS)
ALL_NAMES = sorted(CASES)


@functools.cache
def theirs(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The published implementation with random weights, fp32 arithmetic, weights rounded to `dtype`."""
    case = CASES[name]
    model = case.model(case.config(**{**_SHAPE, "tie_word_embeddings": False, **case.changes})).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(_scaled(key, drawn, name in HYBRIDS).to(dtype))
    return model


def _scaled(key: str, drawn: Tensor, offset: bool) -> Tensor:
    """Of a size that makes every weight matter; states last for tens of tokens."""
    if "norm" in key:
        return drawn / 4 if offset and "linear_attn" not in key else 1 + drawn / 4
    if key.endswith(("A_log", "dt_bias")):
        return drawn - 2
    if offset and "embed" in key:
        # What a linear layer reads is normalised, however little it is, so that rounding may turn its sign:
        # in half width it must not be all there is.
        return drawn / 1.5
    return drawn / (2 if "conv1d" in key else 40 if "out_proj" in key else 10)


@functools.cache
def ours(name: str, dtype: torch.dtype = torch.float32) -> Decoder:
    """The same weights through a folder in the published layout."""
    with tempfile.TemporaryDirectory() as folder:
        theirs(name, dtype).save_pretrained(folder)
        return open_decoder(Path(folder), dtype)[0]


@torch.no_grad()
def their_logits(name: str, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scores after every token of int64 [n] or [B, n]."""
    batch = tokens if tokens.dim() == 2 else tokens[None]
    out: Tensor = theirs(name, dtype)(batch, use_cache=False).logits
    return out if tokens.dim() == 2 else out[0]


def prompt(length: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


def store(model: Decoder, tokens: int) -> PrivateKv:
    return PrivateKv(model.config.kv_layout(model.dtype, 16), tokens)


def pool(model: Decoder, slots: int) -> BeamPool:
    config = model.config
    one = 2 * config.full_layers * config.kv_size * model.dtype.itemsize
    return BeamPool(config.full_layers, config.num_kv_heads, config.head_dim, model.dtype, slots * one)


def prefilled(model: Decoder, tokens: Tensor, cuts: tuple[int, ...] = ()) -> tuple[Tensor, PrivateKv]:
    """Hidden state of the last token, and the store, of a prompt that comes in chunks ending at `cuts`."""
    kv = store(model, len(tokens))
    ends = [*cuts, len(tokens)]
    hidden = torch.empty(0)
    for start, end in zip([0, *ends], ends, strict=False):
        hidden = model.prefill([PromptRow(tokens[start:end], start, kv)])
    return hidden, kv


def apart(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative to the scale of the result."""
    return float((got.double() - wanted.double()).abs().max() / wanted.double().abs().max())


def changed(source: Path, target: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a folder with another configuration."""
    shutil.copytree(source, target)
    values = json.loads((target / "config.json").read_text())
    edit(values)
    (target / "config.json").write_text(json.dumps(values))
    return target
