"""Rotary settings in both published spellings: `rope_parameters`, or `rope_theta` with `rope_scaling`."""

from __future__ import annotations

from typing import Any, cast, get_args

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.config import RopeConfig, RopeKind
from relaygr.models.decoder.keys import Keys

_BASE = 10000.0  # of all families, if a file leaves it out
_ORIGINAL = "original_max_position_embeddings"
_PART = "partial_rotary_factor"
_KNOWN = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    _ORIGINAL,
    _PART,
}


def read_rope(keys: Keys, part: float | None = None) -> RopeConfig:
    """The rotary settings of a `config.json`.

    Args:
        part: share of a head that is turned if the file leaves it out; None refuses any but whole heads.

    Raises:
        ConfigError: an unknown kind or setting, or two spellings that contradict each other.
    """
    spelt = [_read_one(keys, name, part) for name in ("rope_parameters", "rope_scaling") if keys.get(name)]
    if not spelt:
        return _read_one(keys, None, part)
    if spelt[0] != spelt[-1]:
        raise keys.refuse("rope_scaling", "contradicts rope_parameters")
    return spelt[0]


def write_rope(rope: RopeConfig) -> dict[str, Any]:
    """Both spellings, for readers of any age."""
    scaling: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        scaling["factor"] = rope.factor
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling[_ORIGINAL] = rope.original_positions
    if rope.part != 1:
        scaling[_PART] = rope.part
    values = {"rope_theta": rope.theta, "rope_parameters": scaling | {"rope_theta": rope.theta}}
    return values if rope.kind == "default" else values | {"rope_scaling": scaling}


def _read_one(keys: Keys, name: str | None, part: float | None) -> RopeConfig:
    inner = keys.below(name) if name else Keys(keys.path, {})
    for key, value in inner.values.items():
        if key not in _KNOWN and value is not None:
            raise inner.refuse(key, f"{value!r} is not implemented")
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind not in get_args(RopeKind):
        raise inner.refuse("rope_type", f"{kind!r} is not one of {', '.join(get_args(RopeKind))}")
    fields: dict[str, Any] = {"theta": _theta(keys, inner), "kind": cast("RopeKind", kind)}
    fields["part"] = _part(keys, inner, part)
    if kind != "default":
        fields["factor"] = inner.number("factor")
    if kind == "llama3":
        fields["low_freq_factor"] = inner.number("low_freq_factor")
        fields["high_freq_factor"] = inner.number("high_freq_factor")
        fields["original_positions"] = inner.count(_ORIGINAL)
    try:
        return RopeConfig(**fields)
    except ConfigError as error:
        if error.path == "rope.part":
            raise keys.refuse(_PART, str(error).removeprefix("rope.part: ")) from error
        spelt = name or ("rope_theta" if error.path == "rope.theta" else "rope_parameters")
        raise keys.refuse(spelt, str(error)) from error


def _theta(keys: Keys, inner: Keys) -> float:
    outside, inside = keys.get("rope_theta"), inner.get("rope_theta")
    if outside is not None and inside is not None and outside != inside:
        raise inner.refuse("rope_theta", f"{inside!r} contradicts rope_theta, {outside!r}")
    return inner.number("rope_theta") if inside is not None else keys.number("rope_theta", _BASE)


def _part(keys: Keys, inner: Keys, default: float | None) -> float:
    if default is not None:
        outside, inside = keys.get(_PART), inner.get(_PART)
        if outside is not None and inside is not None and outside != inside:
            raise inner.refuse(_PART, f"{inside!r} contradicts {_PART}, {outside!r}")
        return inner.number(_PART) if inside is not None else keys.number(_PART, default)
    for place in (keys, inner):
        if place.number(_PART, 1.0) != 1.0:
            raise place.refuse(_PART, "heads that are turned in part are not implemented for this family")
    return 1.0
