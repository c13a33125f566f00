"""A published `config.json` to our shape and back; what is not implemented is refused by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import torch

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.config import DecoderConfig, Family
from relaygr.models.decoder.keys import Keys
from relaygr.models.decoder.linear_settings import HEAD_DIM, ROTARY_PART, read_linear, write_linear
from relaygr.models.decoder.rope_settings import read_rope, write_rope

ARCHITECTURES: dict[Family, str] = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OWN_KEY = "relaygr"  # what other readers of the file do not know


def read_settings(path: Path, data: bytes) -> DecoderConfig:
    """The shape that a `config.json` describes.

    Raises:
        ConfigError: it is no JSON object, a key is missing or wrong, or asks for what is not implemented.
    """
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(str(path), f"is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(str(path), "must hold a JSON object")
    keys = Keys(path, values)
    family = _family(keys)
    _refuse_unknown_maths(keys, family)
    size, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    hybrid = family == "qwen3_next"
    if keys.get("head_dim") is None and size % heads and not hybrid:
        raise keys.refuse("head_dim", f"is missing, and {heads} heads do not divide hidden_size, {size}")
    own = keys.below(_OWN_KEY)
    fields = {
        "vocab_size": keys.count("vocab_size"),
        "hidden_size": size,
        "mlp_size": keys.count("intermediate_size"),
        "num_layers": (layers := keys.count("num_hidden_layers")),
        "num_heads": heads,
        "num_kv_heads": keys.count("num_key_value_heads", heads if family == "llama" else None),
        "head_dim": keys.count("head_dim", HEAD_DIM if hybrid else size // heads),
        "max_positions": keys.count("max_position_embeddings"),
    }
    rope = read_rope(keys, ROTARY_PART if hybrid else None)
    linear = read_linear(keys, layers) if hybrid else None
    try:
        return DecoderConfig(
            family=family,
            norm_eps=keys.number("rms_norm_eps", 1e-6),
            rope=rope,
            tie_embeddings=keys.flag("tie_word_embeddings"),
            attention_bias=True if family == "qwen2" else keys.flag("attention_bias"),
            level_heads=own.flag("level_heads"),
            linear=linear,
            **fields,
        )
    except ConfigError as error:
        raise ConfigError(str(path), str(error)) from error


def write_settings(config: DecoderConfig, dtype: torch.dtype) -> bytes:
    """The `config.json` of a model, in the published layout.

    Raises:
        ConfigError: the layout has no name for `dtype`.
    """
    names = {kind: name for name, kind in _DTYPES.items()}
    if dtype not in names:
        raise ConfigError("dtype", f"{dtype} is none of {', '.join(_DTYPES)}")
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "dtype": names[dtype],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        **write_rope(config.rope),
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
    }
    if config.family == "llama":
        values["mlp_bias"] = False
    else:
        values["use_sliding_window"] = False
    if config.family != "qwen2":
        values["attention_bias"] = config.attention_bias
    if config.linear is not None:
        values |= write_linear(config.linear) | {"partial_rotary_factor": config.rope.part}
    if config.level_heads:
        values[_OWN_KEY] = {"level_heads": True}
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"


def _family(keys: Keys) -> Family:
    family = keys.get("model_type")
    if family not in get_args(Family):
        raise keys.refuse("model_type", f"{family!r} is not one of {', '.join(get_args(Family))}")
    known = cast("Family", family)
    named = keys.get("architectures")
    if named is not None and named != [ARCHITECTURES[known]]:
        raise keys.refuse("architectures", f"{named!r} must be {[ARCHITECTURES[known]]} for {known}")
    return known


def _refuse_unknown_maths(keys: Keys, family: Family) -> None:
    """Refuse every setting that would change a result and is not implemented."""
    if keys.get("hidden_act", "silu") != "silu":
        raise keys.refuse("hidden_act", f"{keys.get('hidden_act')!r} is not implemented, only 'silu'")
    experts = {"num_local_experts", "n_routed_experts", "num_experts", "moe_intermediate_size"}
    if family == "qwen3_next":  # where files without experts still give their size; see `read_linear`
        experts -= {"num_experts", "moe_intermediate_size"}
    for key in sorted(experts):
        if keys.get(key):
            raise keys.refuse(key, f"{keys.get(key)!r}: mixtures of experts are not implemented")
    for key in ("quantization_config", "compression_config"):
        if keys.get(key):
            raise keys.refuse(key, "quantised weights are not implemented")
    if keys.flag("mlp_bias"):
        raise keys.refuse("mlp_bias", "biases in the feed-forward layers are not implemented")
    if family == "qwen2" and not keys.flag("attention_bias", True):
        raise keys.refuse("attention_bias", "qwen2 without biases on Q, K and V is not implemented")
    for key in ("dtype", "torch_dtype"):
        if keys.get(key, "float32") not in tuple(_DTYPES):  # which also takes what has no hash
            raise keys.refuse(key, f"{keys.get(key)!r} is none of {', '.join(_DTYPES)}")
    _refuse_windows(keys, family)


def _refuse_windows(keys: Keys, family: Family) -> None:
    """A window that is set but switched off, as the Qwen files have it, is none."""
    kinds = keys.get("layer_types", [])
    if family != "qwen3_next" and (
        not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)
    ):
        raise keys.refuse("layer_types", f"{kinds!r}: only full_attention is implemented for {family}")
    if keys.flag("use_sliding_window"):
        raise keys.refuse("use_sliding_window", "sliding windows are not implemented")
    if family == "llama" and keys.get("sliding_window"):
        raise keys.refuse("sliding_window", f"{keys.get('sliding_window')!r}: is not implemented")
