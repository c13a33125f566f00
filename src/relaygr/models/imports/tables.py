"""Embedding tables and profile slots of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from relaygr.core.errors import ConfigError
from relaygr.models.imports.ledger import Ledger
from relaygr.models.imports.settings import Settings
from relaygr.models.switches import Table, Unknown
from relaygr.models.variants import module_key

COLLECTION = "_embedding_collection.embeddings."
_STORED = re.compile(
    r"_embedding_collection\.(?:_(?:data|model)_parallel_embedding_collection\.)?embeddings\.(.+)\.weight"
)
_MAX_SLOTS = 4096


@dataclass(frozen=True, slots=True)
class Slot:
    """One profile slot and the feature whose table it reads."""

    name: str
    feature: str


def collected(name: str) -> str:
    """The name of a table, whichever way its collection was wrapped; other names as they are."""
    match = _STORED.fullmatch(name)
    return f"{COLLECTION}{match[1]}.weight" if match else name


def slots(settings: Settings) -> tuple[Slot, ...]:
    """Slots in order; a feature of several slots numbers them."""
    given = settings.contextual or ()
    counts = given if isinstance(given, dict) else dict.fromkeys(given, 1)
    if len(counts) != len(given):
        raise ConfigError("config.contextual", f"{list(given)} holds a name twice")
    for feature, count in counts.items():
        if not 1 <= count <= _MAX_SLOTS:
            raise ConfigError("config.contextual", f"{feature}: {count} slots are outside [1, {_MAX_SLOTS}]")
    return tuple(
        Slot(feature if count == 1 else f"{feature}.{i}", feature)
        for feature, count in counts.items()
        for i in range(count)
    )


def feature_name(ledger: Ledger, settings: Settings, key: str, others: Iterable[str]) -> str:
    """The feature of the item or action table: as given, or the only table that is none of `others`."""
    given: str | None = getattr(settings, key)
    if given:
        return given
    taken = {settings.table_of(other) for other in others}
    found = [
        name[len(COLLECTION) : -len(".weight")]
        for name in ledger.names(re.escape(COLLECTION) + r".+\.weight")
    ]
    free = [name for name in found if name not in taken]
    if len(free) == 1:
        return free[0]
    raise ConfigError(
        "config",
        f"{key}: the checkpoint does not tell which of its tables ({', '.join(free) or 'none'}) this is; "
        f"give the feature's name in --config, or as --set {key}=NAME; a table of another file by --tables",
    )


def move_table(
    ledger: Ledger, settings: Settings, feature: str, target: str, dim: int, name: str = ""
) -> Table:
    """Move a feature's table [rows, dim] to `target` (with {} for its name) and describe it."""
    table = settings.table_of(feature)
    name = name or f"{COLLECTION}{table}.weight"
    shape = ledger.shape(name)
    if not ledger.has(name):
        ledger.problems.append(f"missing table {table!r} ({name}); give it as --tables {table}=FILE")
    else:
        ledger.move(name, target.format(module_key(table)), (shape[0] if shape else 0, dim))
    policy = settings.unknown if isinstance(settings.unknown, str) else settings.unknown.get(table, "reject")
    row = settings.unknown_rows.get(table)
    unknown: Unknown = policy if row is None else "unknown_row"
    rows = shape[0] if shape else 0
    if not rows or not 0 <= (row or 0) < rows:
        if shape:
            ledger.problems.append(f"unknown_rows.{table}: {row or 0} is outside [0, {rows})")
        rows, row = max(rows, 1), 0
    return Table(name=table, rows=rows, unknown=unknown, unknown_row=row or 0)


def check_policies(settings: Settings, names: Iterable[str]) -> None:
    """Refuse policies for tables that the model does not read."""
    known = set(names)
    for key, given in (("unknown", settings.unknown), ("unknown_rows", settings.unknown_rows)):
        for table in given if isinstance(given, dict) else ():
            if table not in known:
                raise ConfigError(
                    f"config.{key}", f"{table!r} is none of the tables {', '.join(sorted(known))}"
                )
