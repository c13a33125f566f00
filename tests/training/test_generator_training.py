"""A generator learns what repeats, continues bit for bit, survives a kill and refuses what does not fit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tiny_generators import TINY, sids_of, trainer
from tiny_runs import MakeEvents

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.split import temporal_split
from relaygr.generation.recipe import open_recipe
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.kernels.reference.beams import ReferenceBeams
from relaygr.models.decoder.huggingface import open_decoder
from relaygr.training.catalogue import catalogue_before
from relaygr.training.checkpoint import STATE_FILE
from relaygr.training.cuts import training_groups
from relaygr.training.evaluate_generator import SidEvalOptions, evaluate_generator
from relaygr.training.generator import GeneratorProgress, GeneratorTrainer
from relaygr.training.generator_report import GeneratorReport
from relaygr.training.report import REPORT_FILE
from relaygr.training.sid_metrics import SID_METRICS, list_metrics
from relaygr.training.sid_retrieval import SidRetriever
from relaygr.training.sid_task import recipe_of, served_index, wanted_items
from relaygr.training.sid_windows import WindowSource, WindowSpec


class KilledError(Exception):
    """Stands for a process that ends between two steps."""


def test_a_generator_learns_and_beats_popularity(cyclic: Events, tmp_path: Path) -> None:
    run = trainer(cyclic, tmp_path, max_steps=60, eval_every_steps=30, batch_windows=16)
    report = run.run()
    assert report.stopped == "steps"
    assert [one.step for one in report.evaluations] == [30, 60]
    assert report.evaluations[1].loss < report.evaluations[0].loss
    assert msgspec.json.decode((tmp_path / REPORT_FILE).read_bytes(), type=GeneratorReport) == report
    model, version = open_decoder(tmp_path)
    model.kernel = CpuBeams()
    recipe = open_recipe(tmp_path)
    options = SidEvalOptions(width=3)
    found = evaluate_generator(model, version.hex(), recipe, sids_of(cyclic), cyclic, options)
    means = {(one.scorer, one.minus, one.metric): one for one in found.estimates if one.over == "requests"}
    assert means["generator", "", "ndcg@10"].mean > 0.9
    assert means["generator", "popularity", "ndcg@10"].low > 0.2
    assert found.invalid_share == 0
    assert found.ids_named == 3 * found.requests
    assert found.seen == "keep"
    assert {one.scorer: one.at[0] for one in found.coverage}["popularity"] == pytest.approx(10 / 15)


def test_equal_seeds_give_equal_weights_and_resuming_changes_nothing(cyclic: Events, tmp_path: Path) -> None:
    def kill(now: GeneratorProgress) -> None:
        if now.step == 5:
            raise KilledError

    whole = trainer(cyclic, tmp_path / "whole")
    whole.run()
    with pytest.raises(KilledError):
        trainer(cyclic, tmp_path / "cut").run(kill)
    resumed = trainer(cyclic, tmp_path / "cut", resume=True)
    assert resumed.state.step == 3
    resumed.run()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    assert [one.recall for one in whole.state.evaluations] == [
        one.recall for one in resumed.state.evaluations
    ]


def test_a_model_is_there_before_the_first_step(cyclic: Events, tmp_path: Path) -> None:
    trainer(cyclic, tmp_path)
    open_decoder(tmp_path)
    assert open_recipe(tmp_path).sizes == sids_of(cyclic).sizes


def test_another_run_is_not_continued(cyclic: Events, synth_events: Events, tmp_path: Path) -> None:
    trainer(cyclic, tmp_path)
    with pytest.raises(ConfigError, match=r"train\.lr was 0\.01, now 0\.02"):
        trainer(cyclic, tmp_path, resume=True, lr=0.02)
    with pytest.raises(ConfigError, match="was trained on data"):
        GeneratorTrainer(cyclic, sids_of(cyclic), "other", tmp_path, TINY, CpuBeams(), True)
    with pytest.raises(ConfigError, match="was trained on data"):
        trainer(synth_events, tmp_path, resume=True)
    (tmp_path / STATE_FILE).write_bytes((tmp_path / STATE_FILE).read_bytes()[:-1])
    with pytest.raises(ConfigError, match="damaged"):
        trainer(cyclic, tmp_path, resume=True)


def test_ids_must_cover_the_training_part(cyclic: Events, synth_events: Events, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sids: no codes for"):
        GeneratorTrainer(synth_events, sids_of(cyclic), "d", tmp_path, TINY, CpuBeams())


def test_windows_never_see_what_they_ask_for(synth_events: Events) -> None:
    sids = sids_of(synth_events, (8, 8, 8))
    recipe = recipe_of(sids, "d", 8)
    end = temporal_split(synth_events).train_end_s
    groups = training_groups(synth_events, end, 0.5)
    source = WindowSource(synth_events, groups, sids, recipe, WindowSpec(4, 2, 8, 0.0), 0)
    token_map = recipe.token_map()
    for step in range(30):
        batch = source.batch(step)
        again = source.batch(step)
        assert torch.equal(batch.tokens, again.tokens)
        flat = batch.tokens.flatten()
        for level, (places, codes) in enumerate(zip(batch.places, batch.codes, strict=True), start=1):
            # The code that counts is the next token of its row, and never the first item's.
            assert flat[places + 1].tolist() == token_map.of_level(level, codes.numpy()).tolist()
            within = places % batch.tokens.shape[1]
            assert int(within.min()) >= recipe.levels
        assert (batch.weights == 1).all()
        assert batch.tokens.shape[1] <= recipe.max_prompt_tokens


def test_windows_end_before_the_split(make_events: MakeEvents) -> None:
    events = make_events([(0, item, 10 * item) for item in range(20)])
    sids = sids_of(events, (4,))
    recipe = recipe_of(sids, "d", 30)
    groups = training_groups(events, 160, 1.0)
    source = WindowSource(events, groups, sids, recipe, WindowSpec(16, 30, 30, 1.0), 0)
    late = {tuple(row) for row in sids.codes_of(np.arange(16, 20)).tolist()}
    seen = {tuple(row) for row in sids.codes_of(np.arange(16)).tolist()}
    token_map = recipe.token_map()
    tokens = set()
    for step in range(20):
        tokens |= set(source.batch(step).tokens[:, 1:].flatten().tolist())
    only_late = {int(token) for row in late - seen for token in token_map.of(np.array([row]))[0]}
    assert len(seen & late) == 0
    assert not any(
        tuple(row) in late
        for step in range(20)
        for row in np.stack([codes.numpy() for codes in source.batch(step).codes], axis=1).tolist()
    )
    assert only_late


@pytest.mark.parametrize("kernel", [ReferenceBeams(), CpuBeams()], ids=["reference", "cpu"])
def test_retrieval_is_the_best_of_all_items(
    cyclic: Events, tmp_path: Path, kernel: CpuBeams | ReferenceBeams
) -> None:
    run = trainer(cyclic, tmp_path)
    run.model.kernel = kernel
    sids = sids_of(cyclic)
    index = served_index(sids, run.catalogue)
    history = np.array([1, 2, 3, 4, 0, 1, 2])
    found = SidRetriever(run.model, run.recipe, sids, index, 15).find(history)
    assert found.returned == 15
    token_map = run.recipe.token_map()
    prompt = run.recipe.prompt(sids.codes_of(history), token_map)
    for row in found.rows:
        named = token_map.of(np.array([row.sid]))[0]
        tokens = torch.from_numpy(np.concatenate([prompt, named]))
        logits = run.model.train_logits(tokens[None])[0, len(prompt) - 1 : -1].detach()
        score = sum(
            float(torch.log_softmax(logits[level][token_map.columns(level + 1)], 0)[code])
            for level, code in enumerate(row.sid)
        )
        assert row.score == pytest.approx(score, abs=1e-4)
        assert [tuple(codes) for codes in sids.codes_of(np.array(row.items)).tolist()] == [row.sid]
    assert [row.score for row in found.rows] == sorted((row.score for row in found.rows), reverse=True)


def test_long_histories_are_cut_to_the_newest_items(cyclic: Events) -> None:
    recipe = recipe_of(sids_of(cyclic), "d", 3)
    codes = np.arange(30).reshape(10, 3) % 8
    codes[:, 2] = 0
    token_map = recipe.token_map()
    assert recipe.max_items == 3
    assert recipe.prompt(codes, token_map).tolist() == recipe.prompt(codes[-3:], token_map).tolist()
    assert len(recipe.prompt(codes, token_map)) == recipe.max_prompt_tokens
    assert recipe.prompt(codes[:0], token_map).tolist() == [0]


def test_wanted_items_are_distinct_and_known(make_events: MakeEvents) -> None:
    from relaygr.data.split import EvalRequest

    events = make_events([(0, 1, 1), (0, 2, 2), (0, 2, 9), (0, 1, 9), (0, 7, 9), (0, 2, 9)])
    catalogue = catalogue_before(events, 5)
    request = EvalRequest(0, 9, 2, (2, 6))
    assert wanted_items(events, request, catalogue).tolist() == [1, 2]


def test_metrics_of_lists() -> None:
    values = dict(zip(SID_METRICS, list_metrics(np.array([5, 1, 9]), np.array([1, 2])), strict=True))
    assert values["recall@10"] == 0.5
    assert values["ndcg@10"] == pytest.approx((1 / np.log2(3)) / (1 + 1 / np.log2(3)))
    many = dict(zip(SID_METRICS, list_metrics(np.arange(50), np.arange(100)), strict=True))
    assert many["recall@10"] == many["recall@50"] == many["ndcg@50"] == 1.0
    assert list_metrics(np.array([], dtype=np.int64), np.array([1])) == (0.0,) * 4
