"""Generators with linear layers, or with nothing else: they learn, resume, are read by others, retrieve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tiny_generators import TINY, sids_of, trainer

from relaygr.config.load import load_config
from relaygr.config.train_generator import Arch, TrainGeneratorConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.generation.recipe import open_recipe
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.models.decoder.huggingface import open_decoder
from relaygr.models.decoder.state_beams import STATE_MODES, StateMode
from relaygr.training.evaluate_generator import SidEvalOptions, evaluate_generator
from relaygr.training.generator import GeneratorProgress
from relaygr.training.sid_retrieval import SidRetriever
from relaygr.training.sid_task import served_index

ARCHS: list[Arch] = ["hybrid", "linear"]
LINEAR: dict[str, Any] = {"layers": 2, "full_every": 2, "linear_key_dim": 8, "linear_value_dim": 12}


class StoppedError(Exception):
    """Stands for a process that ends between two steps."""


@pytest.mark.parametrize("arch", ARCHS)
def test_it_learns_and_others_read_what_it_leaves(arch: Arch, cyclic: Events, tmp_path: Path) -> None:
    run = trainer(cyclic, tmp_path, arch=arch, max_steps=40, eval_every_steps=20, batch_windows=16, **LINEAR)
    report = run.run()
    assert report.evaluations[1].loss < report.evaluations[0].loss
    model, version = open_decoder(tmp_path)
    model.kernel = CpuBeams()
    options = SidEvalOptions(width=3, max_requests=40)
    found = evaluate_generator(model, version.hex(), open_recipe(tmp_path), sids_of(cyclic), cyclic, options)
    means = {(one.scorer, one.minus, one.metric): one for one in found.estimates if one.over == "requests"}
    assert means["generator", "", "ndcg@10"].mean > 0.9
    assert means["generator", "popularity", "ndcg@10"].low > 0.1
    assert found.invalid_share == 0
    _read_by_transformers(tmp_path, arch)


def _read_by_transformers(folder: Path, arch: Arch) -> None:
    """With equal logits."""
    from transformers.models.qwen3_next import Qwen3NextForCausalLM

    config = json.loads((folder / "config.json").read_text())
    last = "full_attention" if arch == "hybrid" else "linear_attention"
    assert config["layer_types"] == ["linear_attention", last]
    theirs, model = Qwen3NextForCausalLM.from_pretrained(folder), open_decoder(folder)[0]
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (2, 25), generator=generator)
    with torch.no_grad():
        wanted = theirs.eval()(tokens, use_cache=False).logits
        got = model.train_logits(tokens)
    assert float((got - wanted).abs().max() / wanted.abs().max()) <= 1e-5


@pytest.mark.parametrize("arch", ARCHS)
def test_equal_seeds_give_equal_weights_and_resuming_changes_nothing(
    arch: Arch, cyclic: Events, tmp_path: Path
) -> None:
    def kill(now: GeneratorProgress) -> None:
        if now.step == 5:
            raise StoppedError

    shape = {"arch": arch, "eval_requests": 3, **LINEAR}
    whole = trainer(cyclic, tmp_path / "whole", **shape)
    whole.run()
    with pytest.raises(StoppedError):
        trainer(cyclic, tmp_path / "cut", **shape).run(kill)
    resumed = trainer(cyclic, tmp_path / "cut", resume=True, **shape)
    assert resumed.state.step == 3
    resumed.run()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    with pytest.raises(ConfigError, match=r"model\.family was 'qwen3_next', now 'qwen3'"):
        trainer(cyclic, tmp_path / "cut", resume=True, **{**shape, "arch": "attention"})


@pytest.mark.parametrize("mode", STATE_MODES)
@pytest.mark.parametrize("arch", ARCHS)
def test_retrieval_is_the_best_of_all_items(
    arch: Arch, mode: StateMode, cyclic: Events, tmp_path: Path
) -> None:
    """With records, and with each of the baselines; one request after another."""
    run = trainer(cyclic, tmp_path, arch=arch, **LINEAR)
    run.model.state_mode = mode
    sids, token_map = sids_of(cyclic), run.recipe.token_map()
    retriever = SidRetriever(run.model, run.recipe, sids, served_index(sids, run.catalogue), 15)
    for history in (np.array([1, 2, 3, 4, 0, 1, 2]), np.array([13]), np.array([], dtype=np.int64)):
        prompt = run.recipe.prompt(sids.codes_of(history), token_map)
        found = retriever.find(history)
        assert found.returned == 15
        for row in found.rows:
            tokens = torch.from_numpy(np.concatenate([prompt, token_map.of(np.array([row.sid]))[0]]))
            logits = run.model.train_logits(tokens[None])[0, len(prompt) - 1 : -1].detach()
            score = sum(
                float(torch.log_softmax(logits[level][token_map.columns(level + 1)], 0)[code])
                for level, code in enumerate(row.sid)
            )
            assert row.score == pytest.approx(score, abs=1e-4)
        assert [row.score for row in found.rows] == sorted((row.score for row in found.rows), reverse=True)


def test_the_shape_follows_the_kind_of_layers(cyclic: Events, tmp_path: Path) -> None:
    for arch, kinds in (("attention", "FFF"), ("hybrid", "LLLF"), ("linear", "LLL")):
        model = trainer(cyclic, tmp_path / arch, arch=arch, layers=0).model
        assert "".join(kind[0].upper() for kind in model.config.layer_types) == kinds
    eight = trainer(cyclic, tmp_path / "eight", arch="hybrid", layers=8, full_every=3).model
    assert "".join(kind[0].upper() for kind in eight.config.layer_types) == "LLFLLFLL"
    assert load_config(overrides=["train_generator.arch=hybrid"]).train_generator.depth == 4


@pytest.mark.parametrize(
    ("told", "fields"),
    [
        (r"train_generator\.full_every: 5 leaves 4 layers", {"arch": "hybrid", "full_every": 5}),
        (r"train_generator\.full_every: 1 ", {"full_every": 1}),
        (r"train_generator\.linear_value_heads: 3 must", {"linear_value_heads": 3}),
        (r"train_generator\.conv_taps: 1 ", {"conv_taps": 1}),
    ],
)
def test_shapes_that_cannot_be_are_refused(told: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=told):
        TrainGeneratorConfig(**fields)
    with pytest.raises(ConfigError, match=r"train_generator\.arch: 'lstm' must be one of"):
        load_config(overrides=["train_generator.arch=lstm"])


def test_settings_of_attention_are_as_they_were() -> None:
    assert TINY.arch == TrainGeneratorConfig().arch == "attention"
    assert TrainGeneratorConfig().depth == 3
    assert msgspec.structs.replace(TINY, layers=0).depth == 3
