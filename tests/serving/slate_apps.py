"""A value function, a step model, rules and an item table on disk for the tests of slates over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from serving_apps import save_model, settings

from relaygr.config.settings import Config
from relaygr.config.slate import SlateConfig
from relaygr.listwise.step import HeadSpec, StepConfig, StepModel, default_groups

ITEMS = 300
AUTHORS, TOPICS = 40, 12
VALUE = {
    "id": "test-value",
    "terms": [
        {"weight": 1.0, "factors": [{"head": "engage"}]},
        {"weight": 2.0, "factors": [{"head": "like"}]},
    ],
}
RULES = {
    "id": "test-rules",
    "rules": [{"kind": "gap", "name": "authors", "attribute": "author", "distance": 3}],
}


def item_arrays(seed: int = 0) -> dict[str, Any]:
    """Items 1..; the last hundred are in no table."""
    random = np.random.default_rng(seed)
    return {
        "item_ids": np.arange(1, ITEMS + 1),
        "author": random.integers(0, AUTHORS, ITEMS),
        "topic": random.integers(0, TOPICS, ITEMS),
        "vectors": random.standard_normal((ITEMS, 8)).astype(np.float32),
    }


def save_step(folder: Path, seed: int = 1, size: float = 1.0) -> StepModel:
    """A step model with random weights."""
    config = StepConfig(
        heads=(HeadSpec(name="engage"), HeadSpec(name="like")), groups=default_groups(("author", "topic"))
    )
    zero, random = StepModel.zero(config), np.random.default_rng(seed)
    tensors = {
        name: values + size * random.standard_normal(values.shape).astype(np.float32)
        for name, values in zero.tensors.items()
        if name.startswith("groups.")
    }
    model = StepModel(config, {**zero.tensors, **tensors})
    model.save(folder)
    return model


def slated(folder: Path, **changes: Any) -> Config:
    """Settings of a service with a ranker and a list layer under `folder`; made if they are not there."""
    files = {name: folder / name for name in ("ranker", "step", "value.json", "rules.json", "items.npz")}
    if not files["ranker"].exists():
        save_model(files["ranker"])
        save_step(files["step"])
        files["value.json"].write_text(json.dumps(VALUE))
        files["rules.json"].write_text(json.dumps(RULES))
        np.savez(files["items.npz"], **item_arrays())
    slate = SlateConfig(
        **{
            "value": str(files["value.json"]),
            "step": str(files["step"]),
            "rules": str(files["rules.json"]),
            "items": str(files["items.npz"]),
            "budget_ms": 0.0,
        }
        | changes
    )
    return replace(settings(files["ranker"]), slate=slate)
