"""Configurations that cannot run are refused by field, value and limit; odd but valid ones run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from variant_cases import META, NVIDIA_BASE, RELAY, RESEARCH, random_model, random_row, row_input, switched

from relaygr.core.errors import ConfigError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.switches import Table

NARROW, WIDE = Table(name="narrow", rows=5, dim=8), Table(name="wide", rows=5)
ITEMS = Table(name="item", rows=60)
REFUSED: list[tuple[HstuConfig, dict[str, Any], str, str]] = [
    (META, {"contextual": ("a",), "slot_tables": (NARROW,)}, "narrow", "8"),
    (META, {"contextual": ("a", "b"), "slot_tables": (WIDE, replace(WIDE, rows=9))}, "slot_tables", "wide"),
    (META, {"contextual": ("a",), "slot_tables": ()}, "slot_tables", "0 tables for 1"),
    (META, {"position_buckets": 0}, "position_buckets", "0"),
    (META, {"position": "backward_time"}, "time_buckets", "0"),
    (META, {"action_weights": ()}, "action_weights", "add"),
    (META, {"action_weights": (1, 0)}, "action_weights", "0"),
    (META, {"action_weights": (-1,)}, "action_weights", "-1"),
    (META, {"action_weights": (1 << 64,)}, "action_weights", str(1 << 64)),
    (META, {"items": None}, "items", "meta_stu"),
    (META, {"full_tail": 2}, "full_tail", "window"),
    (
        META,
        {"contextual": ("a",), "slot_tables": (WIDE,), "slot_min_history": (-1,)},
        "slot_min_history",
        "-1",
    ),
    (META, {"slot_min_history": (3,)}, "slot_min_history", "1 values for 0"),
    (NVIDIA_BASE, {"items": replace(ITEMS, dim=8), "token_mlp": 8}, "action", "24"),
    (NVIDIA_BASE, {"items": replace(ITEMS, dim=8)}, "item", "8"),
    (
        NVIDIA_BASE,
        {"contextual": ("a", "b"), "slot_tables": (NARROW, WIDE), "slot_mlp": 8},
        "wide",
        "24",
    ),
    (NVIDIA_BASE, {"head_sizes": (0,)}, "head_sizes", "0"),
    (NVIDIA_BASE, {"head_sizes": (-3,)}, "head_sizes", "-3"),
    (NVIDIA_BASE, {"actions": None}, "actions", "interleave"),
    (RESEARCH, {"position_buckets": 0}, "position_buckets", "0"),
    (RESEARCH, {"items": replace(ITEMS, dim=8)}, "item", "8"),
    (RESEARCH, {"tasks": ("engage", "like")}, "tasks", "one score"),
    (RESEARCH, {"query_times": "candidate"}, "query_times", "candidate"),
    (RELAY, {"items": ITEMS}, "items", "relay"),
    (RELAY, {"slot_min_history": (1,), "contextual": ("a",)}, "slot_min_history", "relay"),
]


@pytest.mark.parametrize(("base", "change", "path", "text"), REFUSED)
def test_what_cannot_run_is_refused(base: HstuConfig, change: dict[str, Any], path: str, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        replace(base, **change)
    assert path in raised.value.path
    assert text in str(raised.value)


@pytest.mark.parametrize("config", [RELAY, META, NVIDIA_BASE])
def test_relative_biases_belong_to_research(config: HstuConfig) -> None:
    with pytest.raises(ConfigError, match="relative_bias"):
        switched(config, relative_bias="position")


@pytest.mark.parametrize("name", ["type", "items", "keys", "a.b", "0", "größe"])
@pytest.mark.parametrize("config", [META, NVIDIA_BASE])
def test_a_slot_table_may_have_any_name(config: HstuConfig, name: str) -> None:
    named = replace(config, contextual=("a",), slot_tables=(Table(name=name, rows=9),))
    row = random_row(named, 6, 3, 2)
    with torch.inference_mode():
        logits = random_model(named)([row_input(row)], ReferenceKernel())[0]
    assert logits.shape == (3, 2)


def test_a_table_needs_a_name_and_rows() -> None:
    for change in ({"name": ""}, {"rows": 0}, {"rows": 1, "first": 1}, {"dim": -1}, {"unknown_row": 60}):
        with pytest.raises(ConfigError):
            replace(ITEMS, **change)
