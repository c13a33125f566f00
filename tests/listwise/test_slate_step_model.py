"""The step model's arrays: on disk, checked, and named by a digest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from slate_cases import HEADS, list_model, random_scene, step_config, trained

from relaygr.core.errors import ConfigError
from relaygr.listwise.step import Group, StepModel, default_groups, shapes


def test_saved_and_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = trained(step_config(), seed=3)
    model.save(tmp_path)
    again = StepModel.load(tmp_path)
    assert again.version == model.version
    assert again.heads == HEADS
    for name, values in model.tensors.items():
        assert np.array_equal(again.tensors[name], values)


def test_any_change_is_another_version() -> None:
    config = step_config()
    model = trained(config)
    seen = {model.version}
    for name in shapes(config):
        tensors = dict(model.tensors)
        tensors[name] = tensors[name].copy()
        if name == "heads.scale":
            tensors[name][0] += 0.5  # the last head has no scale
        else:
            tensors[name].flat[-1] += 0.5
        seen.add(StepModel(config, tensors).version)
    assert len(seen) == 1 + len(shapes(config))


def test_damage_is_noticed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    trained(step_config()).save(tmp_path)
    path = tmp_path / "step.json"
    record = json.loads(path.read_bytes())
    record["window"] = 2
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="not the configuration"):
        StepModel.load(tmp_path)
    file = tmp_path / "step.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ConfigError, match="cannot be read"):
        StepModel.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"groups": (Group(name="a.b", features=("position",)),)}, "dot"),
        ({"groups": (Group(name="a", features=()),)}, "at least one"),
        ({"groups": (Group(name="a", features=("height",)),)}, "height"),
        ({"groups": (Group(name="a", features=("position",), hidden=0),)}, "hidden"),
        ({"window": 0}, "window"),
        ({"watch_head": "share"}, "watch_head"),
        ({"watch_head": None}, "watch_head"),
        ({"format_version": 9}, "format_version"),
    ],
)
def test_shapes_that_make_no_sense(change: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        StepModel.zero(step_config(**change))  # type: ignore[arg-type]


def test_arrays_are_checked() -> None:
    config = step_config()
    good = dict(StepModel.zero(config).tensors)
    for change, part in (
        ({"heads.bias": None}, "missing heads.bias"),
        ({"extra": np.zeros(1, dtype=np.float32)}, "unexpected extra"),
        ({"exit.bias": np.zeros(2, dtype=np.float32)}, "shape"),
        ({"exit.bias": np.zeros(5)}, "float64"),
        ({"exit.bias": np.full(5, np.nan, dtype=np.float32)}, "not finite"),
        ({"heads.scale": np.full(3, 2, dtype=np.float32)}, "regression"),
    ):
        tensors = {name: each for name, each in (good | change).items() if each is not None}
        with pytest.raises(ConfigError, match=part):
            StepModel(config, tensors)


def test_default_groups_and_no_groups_work() -> None:
    scene = random_scene(0, candidates=6, length=3)
    lists = np.arange(3, dtype=np.int32)[None]
    for groups in (default_groups(("author", "topic")), ()):
        model = list_model(groups=groups)
        assert np.isfinite(model(scene, lists).utility).all()


def test_a_group_adds_to_its_own_line_only() -> None:
    scene = random_scene(0, candidates=6, length=4)
    lists = np.array([[1, 3, 0, 2]], dtype=np.int32)
    config = step_config()
    tensors = dict(trained(config).tensors)
    before = list_model(0)(scene, lists).terms
    tensors["groups.topic.out.weight"] = 2 * tensors["groups.topic.out.weight"]
    model = list_model(0)
    model.step = StepModel(config, tensors)
    after = model(scene, lists).terms
    at = [group.name for group in config.groups].index("topic")
    assert after[at] == pytest.approx(2 * before[at])
    rest = [j for j in range(len(config.groups)) if j != at]
    assert np.array_equal(after[rest], before[rest])
