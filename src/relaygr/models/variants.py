"""What each HSTU variant's tokens and head can be; a configuration that cannot run is refused by field."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from torch import nn

from relaygr.core.errors import ConfigError
from relaygr.models.switches import Table

if TYPE_CHECKING:
    from relaygr.models.hstu import HstuConfig

Variant = Literal["relay", "meta_stu", "meta_research", "nvidia"]

MAX_WIDTH = 65536
MAX_LAYERS = 16  # of a head
MAX_HISTORY = 1 << 20

_NONE_OF_THESE: dict[str, tuple[object, ...]] = {
    "score_time_bias": (False,),
    "last_seen": (False,),
    "token_mlp": (0,),
    "slot_mlp": (0,),
    "head_sizes": ((),),
    "action_weights": ((),),
    "slot_min_history": ((),),
}

# The values that a variant takes where it does not take all.
_VALUES: dict[Variant, dict[str, tuple[object, ...]]] = {
    "relay": {
        **{
            name: allowed
            for name, allowed in _NONE_OF_THESE.items()
            if name not in ("score_time_bias", "last_seen")
        },
        "position": ("forward",),
        "action_mode": ("add",),
        "items": (None,),
        "actions": (None,),
        "slot_tables": ((),),
        "postprocess": ("norm",),
    },
    "meta_stu": {
        **{n: a for n, a in _NONE_OF_THESE.items() if n not in ("action_weights", "slot_min_history")},
        "action_mode": ("add", "none"),
    },
    "nvidia": {
        "score_time_bias": (False,),
        "last_seen": (False,),
        "action_weights": ((),),
        "slot_min_history": ((),),
        "position": ("forward",),
        "action_mode": ("interleave", "none"),
        "postprocess": ("l2",),
    },
    "meta_research": {
        **_NONE_OF_THESE,
        "position": ("forward",),
        "action_mode": ("none",),
        "postprocess": ("l2",),
        "query_times": ("request",),
        "contextual": ((),),
        "contextual_two_way": (False,),
        "window": (0,),
    },
}


def check_variant(config: HstuConfig) -> None:
    """Raise ConfigError for the first field that the variant cannot have."""
    for name, allowed in _VALUES[config.variant].items():
        value = getattr(config, name)
        if value not in allowed:
            raise ConfigError(
                f"model.{name}", f"{value!r} with variant {config.variant!r}, which takes {allowed}"
            )
    if config.layer.relative_bias != "none" and config.variant != "meta_research":
        raise ConfigError(
            "model.layer.relative_bias", f"{config.layer.relative_bias!r} needs variant 'meta_research'"
        )
    if config.variant == "relay":
        config.check_tasks_are_bits()
        return
    _check_tables(config)
    _check_numbers(config)
    if config.variant == "meta_stu":
        _check_meta(config)
    elif config.variant == "nvidia":
        _check_nvidia(config)
    else:
        _check_research(config)


def module_key(name: str) -> str:
    """A table's name as a module may have it."""
    return re.sub(r"\W", "_", name) + "_" * (name in _TAKEN)


_TAKEN = frozenset(dir(nn.ModuleDict()))  # names a module cannot have for its parts


def _check_tables(config: HstuConfig) -> None:
    if config.items is None:
        raise ConfigError("model.items", f"variant {config.variant!r} needs an item table")
    if len(config.slot_tables) != len(config.contextual):
        raise ConfigError(
            "model.slot_tables", f"{len(config.slot_tables)} tables for {len(config.contextual)} slots"
        )
    if (config.actions is not None) != (config.action_mode == "interleave"):
        raise ConfigError(
            "model.actions", f"a table of actions goes with 'interleave', not {config.action_mode!r}"
        )
    seen: dict[str, Table] = {}
    for table in config.slot_tables:
        other = seen.setdefault(module_key(table.name), table)
        if other.name != table.name:
            raise ConfigError(
                "model.slot_tables",
                f"tables {other.name!r} and {table.name!r} cannot be told apart; rename one",
            )
        if other != table:
            raise ConfigError("model.slot_tables", f"two different tables are called {table.name!r}")
    if config.slot_min_history and len(config.slot_min_history) != len(config.contextual):
        raise ConfigError(
            "model.slot_min_history",
            f"{len(config.slot_min_history)} values for {len(config.contextual)} slots",
        )


def _check_numbers(config: HstuConfig) -> None:
    for name, low, high in (
        ("slot_min_history", 0, MAX_HISTORY),
        ("head_sizes", 1, MAX_WIDTH),
        ("action_weights", 1, (1 << 63) - 1),
    ):
        for value in getattr(config, name):
            if not low <= value <= high:
                raise ConfigError(f"model.{name}", f"{value} is outside [{low}, {high}]")
    if len(config.head_sizes) > MAX_LAYERS:
        raise ConfigError("model.head_sizes", f"{len(config.head_sizes)} layers, limit {MAX_LAYERS}")


def _check_meta(config: HstuConfig) -> None:
    _needs_positions(config)
    if config.position == "backward_time" and not config.time_buckets:
        raise ConfigError("model.time_buckets", "0 with position 'backward_time'")
    if bool(config.action_weights) != (config.action_mode == "add"):
        raise ConfigError(
            "model.action_weights", f"{config.action_weights} with action_mode {config.action_mode!r}"
        )
    for table in config.slot_tables:
        _check_width(config, table, config.embedding_dim, "embedding_dim")


def _check_nvidia(config: HstuConfig) -> None:
    """Without a network in between, a table is as wide as the model; with one, all are equally wide."""
    tokens = [table for table in (config.items, config.actions) if table is not None]
    for tables, network in ((tokens, config.token_mlp), (list(config.slot_tables), config.slot_mlp)):
        for table in tables:
            if network:
                first = tables[0].dim or config.embedding_dim
                _check_width(config, table, first, f"width of table {tables[0].name!r}")
            else:
                _check_width(config, table, config.hidden_size, "hidden_size")


def _check_research(config: HstuConfig) -> None:
    _needs_positions(config)
    if len(config.tasks) != 1:
        raise ConfigError("model.tasks", f"{config.tasks}: 'meta_research' has one score")
    assert config.items is not None
    _check_width(config, config.items, config.hidden_size, "hidden_size")


def _needs_positions(config: HstuConfig) -> None:
    if not config.position_buckets:
        raise ConfigError("model.position_buckets", f"0: variant {config.variant!r} needs a position table")


def _check_width(config: HstuConfig, table: Table, wanted: int, what: str) -> None:
    width = table.dim or config.embedding_dim
    if width != wanted:
        raise ConfigError(f"model.table.{table.name}", f"width {width} is not {what}, {wanted}")
