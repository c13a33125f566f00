"""What `relaygr train slate` writes is what a server loads: simulated logs to answers over HTTP."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving_apps import TINY, App, error_of, events, running, save_model, settings
from slate_apps import slated

from relaygr.cli.main import main
from relaygr.config.settings import Config
from relaygr.config.slate import SlateConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.slate.opening import open_slates
from relaygr.listwise.folds import Part, Split
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.pool import Head
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.training.slate.world import HEADS


def train(*arguments: object) -> int:
    try:
        main(["train", "slate", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("slate") / "out"
    assert train("--simulate", 600, "--evaluator", "--members", 2, "--one-shot", "--out", out) == 0
    return out


def configured(trained: Path, **changes: Any) -> Config:
    ranker = trained / "ranker"
    if not ranker.exists():
        save_model(
            ranker, config=msgspec.structs.replace(TINY, action_bits=("watch", "like"), tasks=("watch",))
        )
    section = tomllib.loads((trained / "slate.toml").read_text())["slate"]
    slate = msgspec.convert(section | {"budget_ms": 0.0} | changes, SlateConfig)
    return msgspec.structs.replace(settings(ranker), slate=slate)


def test_simulated_logs_to_answers(trained: Path) -> None:
    report = json.loads((trained / "train_report.json").read_text())
    versions = report["versions"]
    with running(configured(trained, evaluator=str(trained / "evaluator"), choice="conformal")) as app:
        app.post("/v1/events", {"user": "ann", **events(30, 1)})
        answer = app.post("/v1/slate", {"user": "ann", "candidates": list(range(1, 81)), "seed": 3})
    assert answer["versions"]["step"] == versions["step"]
    assert answer["versions"]["evaluator"] == f"lists:{versions['evaluator']}"
    assert answer["versions"]["value"].startswith("watched@")
    assert answer["fallback_reason"] is None
    proposed = {name for one in answer["lists"] for name in (one["generator"], *one["also"])}
    assert {"greedy", "beam4", "mmr(0.7)", "one_shot"} <= proposed
    best = max(answer["lists"], key=lambda one: one["lower_bound"])
    assert best["lower_bound"] == answer["lower_bound"]


def test_the_settings_load_as_they_are(trained: Path) -> None:
    slates = open_slates(configured(trained).slate, HEADS)
    assert slates.step is not None
    assert "one_shot" in slates.generators


def test_settings_that_do_not_fit_are_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slate\.evaluator.*conformal"):
        configured(trained, evaluator="", choice="conformal")
    with pytest.raises(ConfigError, match=r"slate\.step"):
        SlateConfig(value="v", evaluator="e")
    with pytest.raises(ConfigError, match=r"slate\.evaluator: .*nowhere"):
        open_slates(configured(trained, evaluator="nowhere").slate, HEADS)
    changed = configured(trained, evaluator=str(trained / "evaluator")).slate
    judging = configured(trained, evaluator=str(trained / "judge")).slate
    with pytest.raises(ConfigError, match=r"slate\.evaluator: .*judge: fold: is that of a judge"):
        open_slates(judging, HEADS)
    for setting, load in (("step", StepModel.load), ("one_shot", OneShot.load)):
        model: Any = load(trained / setting)
        config = msgspec.structs.replace(model.config, fold=Split().fold(Part.JUDGE))
        type(model)(config, model.tensors).save(tmp_path / setting)
        with pytest.raises(ConfigError, match=rf"slate\.{setting}: .*is that of a judge"):
            open_slates(configured(trained, **{setting: str(tmp_path / setting)}).slate, HEADS)
    with pytest.raises(ConfigError, match="heads"):
        open_slates(changed, (Head("watch"), Head("like")))


def test_training_says_what_it_found(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--logs", trained / "logs", "--items", trained / "items.npz", "--value", trained / "value.json")
    assert train(*files, "--out", tmp_path / "again", "--position-control") == 0
    said = capsys.readouterr().out
    assert "position, session; that effect is dropped at serving" in said
    assert "calibration error over ten bins: watch" in said
    assert (tmp_path / "again" / "slate.toml").exists()
    assert train("--out", tmp_path / "x") == 2
    assert train(*files, "--simulate", 5, "--out", tmp_path / "x") == 2
    assert train("--logs", trained / "logs", "--out", tmp_path / "x") == 2
    assert train("--simulate", 0, "--out", tmp_path / "x") == 2
    assert train("--simulate", 5, "--value", trained / "value.json", "--out", tmp_path / "x") == 2
    assert "--value" in capsys.readouterr().err


def test_what_a_distilled_generator_reads_must_be_there_as_well(tmp_path: Path) -> None:
    heads = (HeadSpec(name="engage"), HeadSpec(name="like"))
    OneShot.zero(OneShotConfig(heads=heads, attributes=("format",))).save(tmp_path / "one_shot")
    reading = {"one_shot": str(tmp_path / "one_shot"), "generators": ("greedy", "one_shot")}
    with pytest.raises(ConfigError, match="lacks 'format', which one_shot reads"):
        App(slated(tmp_path, **reading))
    with running(slated(tmp_path, **reading, items="", rules="")) as app:
        app.post("/v1/events", {"user": "ann", **events(30, 1)})
        facts = {"author": [1, 2, 3], "topic": [1, 1, 2]}
        body = {"user": "ann", "candidates": [11, 12, 13], "length": 2}
        vectors = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
        error = error_of(
            app.call("POST", "/v1/slate", {**body, "attributes": facts, "vectors": vectors}), 422, "request"
        )
        assert (error["field"], "one_shot reads" in error["message"]) == ("attributes", True)
        whole = {**body, "attributes": {**facts, "format": [0, 1, 0]}, "vectors": vectors}
        assert app.post("/v1/slate", whole)["fallback_reason"] is None
