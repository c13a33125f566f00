"""What docs/slate.md shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from slate_cases import HEADS, VALUE, random_pool, step_config, trained

from relaygr.listwise.arrays import Float32, Int64
from relaygr.listwise.features import Kind
from relaygr.listwise.step import StepConfig, default_groups
from relaygr.listwise.value import Fn

TEXT = (Path(__file__).parents[2] / "docs" / "slate.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_serves_a_list(tmp_path: Path) -> None:
    pool = random_pool(np.random.default_rng(0), 50)
    path = tmp_path / "value.json"
    path.write_text(block("json"))
    groups = default_groups(("author", "topic"))
    trained(StepConfig(heads=step_config().heads, groups=groups)).save(tmp_path)

    class Ranker:
        heads = HEADS

        def score(self, ids: Int64) -> Float32:
            return pool.outputs

    names = {
        "path": path,
        "folder": tmp_path,
        "ranker": Ranker(),
        "ids": pool.ids,
        "authors": pool.attributes["author"],
        "topics": pool.attributes["topic"],
        "vectors": pool.vectors,
    }
    # Without its time limit, so that the result does not depend on the machine.
    exec(block("python").replace(", budget_ms=20", ""), names)
    result = names["result"]
    assert len(result.items) == 10
    assert result.stage_reached == "evaluation"
    assert names["value"].version == VALUE.version


def test_all_features_and_functions_are_described() -> None:
    for each in (*Kind, *Fn):
        assert f"`{each}" in TEXT
