"""What shapes cannot tell, under canonical or published names."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.models.imports.names import NAMES, NESTED, Source
from relaygr.models.switches import Unknown

_MAX_BYTES = MIB


_BINARY = (0, "BINARY_CLASSIFICATION", "0", "MultitaskTaskType.BINARY_CLASSIFICATION")
_REGRESSION = (1, "REGRESSION", "1", "MultitaskTaskType.REGRESSION")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task of a published configuration; types are 0 (binary) and 1 (regression), or their names."""

    task_name: str
    task_weight: int = 0
    task_type: int | str = 0

    def __post_init__(self) -> None:
        if self.task_type not in _BINARY + _REGRESSION:
            raise ValueError(f"task_type {self.task_type!r} is none of {_BINARY[:2] + _REGRESSION[:2]}")

    @property
    def regression(self) -> bool:
        return self.task_type in _REGRESSION


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Canonical settings of an import; None where the caller said nothing.

    Attributes:
        hidden_size, num_layers, num_heads, qk_dim, v_dim: sizes that shapes tell, mostly; a value that
            contradicts them is an error.
        table_dim, slot_dim, stack_size, prediction_head_arch: likewise.
        max_seq_len: most tokens of a row in front of the candidates, slots included.
        max_history: most events of a row, for configurations that count these.
        max_output_len: research rows are longer than `max_seq_len` by this much.
        contextual: names of the profile slots, or how many slots each feature has.
        slot_min_history: per feature, the history below which its slots are zero.
        items, actions, timestamps: names of the features of an event.
        tables: the table of a feature, where it is not called like the feature.
        unknown, unknown_rows: what ids outside a table get, for all tables or by table; a certain row.
        tasks: names of the outputs, or their published configurations.
    """

    hidden_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    qk_dim: int | None = None
    v_dim: int | None = None
    table_dim: int | None = None
    slot_dim: int | None = None
    stack_size: int | None = None
    prediction_head_arch: tuple[int, ...] | None = None
    max_seq_len: int | None = None
    max_history: int | None = None
    max_output_len: int | None = None
    max_num_candidates: int = 16384
    max_num_candidates_inference: int | None = None
    contextual: tuple[str, ...] | dict[str, int] | None = None
    contextual_max_seqlen: int | None = None
    slot_min_history: dict[str, int] | None = None
    items: str | None = None
    actions: str | None = None
    timestamps: str | None = None
    tables: dict[str, str] = {}
    unknown: Unknown | dict[str, Unknown] = "reject"
    unknown_rows: dict[str, int] = {}
    action_bits: tuple[str, ...] | None = None
    action_weights: tuple[int, ...] | None = None
    action_mode: str | None = None
    window: int = 0
    full_tail: int = 0
    alpha: float = 0.0
    scaling_seqlen: int | None = None
    contextual_two_way: bool | None = None
    disable_contextual_mask: bool | None = None
    tasks: tuple[str | Task, ...] | None = None
    num_tasks: int | None = None
    position_buckets: int | None = None
    time_buckets: int | None = None
    time_bucket_limit: str | None = None
    group_norm: bool | None = None
    norm_eps: float | None = None
    concat_ua: bool | None = None
    linear_activation: str | None = None
    residual: bool | None = None
    learnable_input_layernorm: bool | None = None
    learnable_output_layernorm: bool | None = None
    add_uvqk_bias: bool | None = None
    prediction_head_bias: bool | None = None
    enable_postprocessor: bool | None = None
    use_layer_norm_postprocessor: bool | None = None

    def table_of(self, feature: str) -> str:
        return self.tables.get(feature, feature)


FIELDS = {one.name: one for one in msgspec.structs.fields(Settings)}


@dataclass(frozen=True, slots=True)
class Given:
    """Settings, under which foreign names they came, and which keys have no effect on scores."""

    settings: Settings
    aliases: dict[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def read_settings(source: Source, file: Path | None, overrides: tuple[str, ...] = ()) -> Given:
    """Settings of a JSON or TOML file, then of `key=value` overrides; the latter win.

    Raises:
        ConfigError: a key is unknown (with the nearest valid one), has a wrong type or a value that this
            project cannot reproduce, or two names of one setting disagree.
    """
    values: dict[str, tuple[str, Any]] = {}
    aliases: dict[str, str] = {}
    unused: list[str] = []
    _put_all(source, _pairs(_read(file)) if file else iter(()), values, aliases, unused)
    over: dict[str, tuple[str, Any]] = {}
    _put_all(source, _pairs(dict(map(_override, overrides))), over, aliases, unused)
    merged = values | over
    typed: dict[str, Any] = {
        name: _convert(name, key, value) for name, (key, value) in merged.items() if value is not None
    }
    return Given(Settings(**typed), aliases, tuple(unused))


def _put_all(
    source: Source,
    pairs: Iterator[tuple[str, Any]],
    values: dict[str, tuple[str, Any]],
    aliases: dict[str, str],
    unused: list[str],
) -> None:
    names = NAMES[source]
    for key, value in pairs:
        if key in names.only:
            allowed, reason = names.only[key]
            if value not in allowed:
                raise ConfigError(f"config.{key}", f"{value!r} is not supported: {reason}")
        targets = names.aliases.get(key, (key,) if key in names.fields else ())
        if not targets:
            if key not in names.only and key not in names.unused:
                raise ConfigError(f"config.{key}", f"unknown key; did you mean {_nearest(source, key)!r}?")
            unused.append(key)
            continue
        for target in targets:
            if key != target:
                aliases[key] = target
            other, before = values.get(target, (key, value))
            if before != value:
                raise ConfigError(f"config.{key}", f"{value!r}, but {other} says {before!r}")
            values[target] = (key, value)


def _nearest(source: Source, key: str) -> str:
    names = NAMES[source]
    valid = [*sorted(names.fields), *names.aliases, *names.only, *sorted(names.unused)]
    return difflib.get_close_matches(key, valid, n=1, cutoff=0.0)[0]


def _convert(name: str, key: str, value: object) -> object:
    try:
        return msgspec.convert(value, type=FIELDS[name].type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.{key}", f"{value!r} is not valid: {error}") from error


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--set", f"{text!r} must have the form key=value")
    try:
        return key.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return key.strip(), value.strip()  # a word without quotes


def _pairs(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values, with the tables that only group others taken apart."""
    for key, value in values.items():
        if key not in NESTED:
            yield key, value
        elif isinstance(value, dict):
            yield from value.items()
        elif value is not None:
            raise ConfigError(f"config.{key}", f"{value!r} is not a table of keys")


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError("--config", f"cannot read {file}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError("--config", f"{file} has more than {_MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:  # of both parsers and of the decoder
        raise ConfigError(
            "--config", f"{file} is not {file.suffix[1:].upper() or 'JSON'}: {error}"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError("--config", f"{file} holds {type(values).__name__}, wanted keys and values")
    return values
