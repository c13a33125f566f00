"""Build the settings from their sources: defaults < TOML file < environment < `--set a.b=c`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from relaygr.config.limits import Section
from relaygr.config.settings import Config
from relaygr.config.sizes import parse_bytes
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB

_SECRET = ("keys", "key")  # settings whose values no message shows
ENV_PREFIX = "RELAYGR_"
MAX_TOML_BYTES = MIB

_SECTIONS: dict[str, type[Section]] = {field.name: field.type for field in msgspec.structs.fields(Config)}
_FIELDS: dict[str, dict[str, msgspec.structs.FieldInfo]] = {
    section: {field.name: field for field in msgspec.structs.fields(struct)}
    for section, struct in _SECTIONS.items()
}
_KEYS = [f"{section}.{name}" for section, names in _FIELDS.items() for name in names]


def load_config(
    toml: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    tables: Mapping[str, Any] | None = None,
) -> Config:
    """Merge the sources; a later one wins key by key.

    Args:
        toml: a TOML file with one table per section.
        environ: variables such as `RELAYGR_ENGINE__DEVICE_BYTES`; others, without `__`, are not settings.
        overrides: `section.key=value`, the last of equal keys wins.
        tables: what a TOML file would hold, before all others.

    Raises:
        ConfigError: with the dotted path, the value and the limit; for an unknown key, the nearest valid one.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for path, value in _from_tables(tables or {}):
        _put(values, path, value, "", from_text=False)
    if toml is not None:
        for path, value in _from_toml(toml):
            _put(values, path, value, f" (in {toml})", from_text=False)
    for path, text, variable in _from_environ(environ or {}):
        _put(values, path, text, f" (in {variable})", from_text=True)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals:
            raise ConfigError("--set", f"{override!r} must have the form section.key=value")
        _put(values, path.strip(), text.strip(), " (in --set)", from_text=True)
    built: dict[str, Any] = {name: section(**values[name]) for name, section in _SECTIONS.items()}
    return Config(**built)


def _from_toml(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_TOML_BYTES + 1)
    except OSError as error:
        raise ConfigError("config", f"cannot read {file}: {error.strerror}") from error
    if len(data) > MAX_TOML_BYTES:
        raise ConfigError("config", f"{file} has more than {MAX_TOML_BYTES} bytes")
    try:
        tables = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{file} is not TOML: {error}") from error
    yield from _from_tables(tables)


def _from_tables(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, table in tables.items():
        if not isinstance(table, dict):
            # A key at the top level, or `engine = 3`; the key check names what is valid instead.
            yield section, table
            continue
        if section not in _FIELDS and not table:
            yield section, table
        for name, value in table.items():
            yield f"{section}.{name}", value


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for variable in sorted(environ):
        rest = variable.removeprefix(ENV_PREFIX)
        if rest != variable and "__" in rest:
            yield rest.lower().replace("__", ".", 1), environ[variable], variable


def _put(
    values: dict[str, dict[str, Any]], path: str, value: object, origin: str, *, from_text: bool
) -> None:
    section, _, name = path.partition(".")
    field = _FIELDS.get(section, {}).get(name)
    if field is None:
        raise ConfigError(path, f"unknown key{_suggestion(path)}{origin}")
    typed = _coerce(path, field, value, origin, from_text=from_text)
    _SECTIONS[section].check(name, typed, origin)
    values[section][name] = typed


def _suggestion(path: str) -> str:
    if path in _FIELDS:
        return f"; {path!r} is a section with the keys {', '.join(_FIELDS[path])}"
    near = difflib.get_close_matches(path, _KEYS, n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}?" if near else ""


def _coerce(
    path: str, field: msgspec.structs.FieldInfo, value: object, origin: str, *, from_text: bool
) -> object:
    if field.name.endswith("_bytes") and isinstance(value, str):
        try:
            return parse_bytes(value)
        except ValueError as error:
            raise ConfigError(path, f"{error}{origin}") from error
    if from_text and isinstance(value, str) and _is_words(field.type):
        value = [word.strip() for word in value.split(",") if word.strip()]
    try:
        return msgspec.convert(value, type=field.type, strict=not from_text)
    except msgspec.ValidationError as error:
        shown = "the value" if path.rsplit(".", 1)[-1] in _SECRET else repr(value)
        raise ConfigError(path, f"{shown} {_wanted(field.type, error)}{origin}") from error


def _is_words(kind: Any) -> bool:
    """Whether values are any number of words, which text has between commas."""
    parts = get_args(kind)
    return get_origin(kind) is tuple and (parts[0] is str or get_origin(parts[0]) is Literal)


def _wanted(kind: Any, error: msgspec.ValidationError) -> str:
    """What a value of type `kind` must be: one of some words, a number or a word, or what the error says."""
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return f"must be one of {', '.join(map(repr, parts))}"
    if _is_words(kind):
        names = f" of {', '.join(map(repr, get_args(parts[0])))}" if get_args(parts[0]) else ""
        return f"must be names{names}, with commas between them"
    words = [repr(word) for part in parts for word in get_args(part)]
    return f"must be a number or {' or '.join(words)}" if words else f"is not valid: {error}"
