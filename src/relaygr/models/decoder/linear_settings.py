"""Linear layers in a published `config.json`: their kinds and shape; mixtures of experts are refused."""

from __future__ import annotations

from typing import Any, cast, get_args

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.keys import Keys
from relaygr.models.decoder.linear_config import LayerKind, LinearConfig, layer_kinds

ROTARY_PART = 0.25  # of a head, if a file leaves it out
HEAD_DIM = 256
_INTERVAL = 4
_DEFAULTS = {
    "linear_num_key_heads": ("key_heads", 16),
    "linear_num_value_heads": ("value_heads", 32),
    "linear_key_head_dim": ("key_dim", 128),
    "linear_value_head_dim": ("value_dim", 128),
    "linear_conv_kernel_dim": ("taps", 4),
}


def read_linear(keys: Keys, layers: int) -> LinearConfig:
    """The linear layers of a decoder of so many layers.

    Raises:
        ConfigError: naming the key, a layer kind that is not implemented, or experts.
    """
    experts = keys.get("num_experts")
    if experts is None:
        raise keys.refuse("num_experts", "is missing, which stands for experts; only 0 is implemented")
    if experts != 0 or isinstance(experts, bool):
        raise keys.refuse("num_experts", f"{experts!r}: mixtures of experts are not implemented, only 0 is")
    shape = {field: keys.count(key, default) for key, (field, default) in _DEFAULTS.items()}
    kinds = _kinds(keys, layers)
    try:
        return LinearConfig(layer_types=kinds, **shape)
    except ConfigError as error:
        published = {f"linear.{field}": key for key, (field, _) in _DEFAULTS.items()}
        raise keys.refuse(published[error.path], str(error).removeprefix(f"{error.path}: ")) from error


def write_linear(linear: LinearConfig) -> dict[str, Any]:
    """The keys of linear layers, and those that say that there are no experts."""
    shape = {key: getattr(linear, field) for key, (field, _) in _DEFAULTS.items()}
    none = {"num_experts": 0, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return {"layer_types": list(linear.layer_types), **shape, **none}


def _kinds(keys: Keys, layers: int) -> tuple[LayerKind, ...]:
    kinds = keys.get("layer_types")
    if kinds is None:
        return layer_kinds(layers, keys.count("full_attention_interval", _INTERVAL))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise keys.refuse("layer_types", f"{kinds!r} must name the kind of each of {layers} layers")
    for kind in kinds:
        if kind not in get_args(LayerKind):
            raise keys.refuse("layer_types", f"{kind!r} is not one of {', '.join(get_args(LayerKind))}")
    return tuple(cast("list[LayerKind]", kinds))
