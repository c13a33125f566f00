"""Training lowers the loss, continues bit for bit, survives being killed and refuses what does not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from tiny_runs import TINY_MODEL, TINY_TRANSFORMER, MakeEvents, tiny_train

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.presets import AnyConfig, preset
from relaygr.models.weights import load_ranker
from relaygr.training.checkpoint import STATE_FILE
from relaygr.training.initial import ranker_config
from relaygr.training.ranker import Progress, RankerTrainer
from relaygr.training.report import REPORT_FILE, TrainReport


class KilledError(Exception):
    """Stands for a process that ends between two steps."""


def trainer(
    events: Events, out: Path, resume: bool = False, base: AnyConfig = TINY_MODEL, **changes: object
) -> RankerTrainer:
    train = tiny_train(**changes)
    config = ranker_config(base, events, train)
    return RankerTrainer(events, out, config, train, ReferenceKernel(), resume)


def kill_after(step: int) -> object:
    def observe(now: Progress) -> None:
        if now.step == step:
            raise KilledError

    return observe


@pytest.mark.parametrize("base", [TINY_MODEL, TINY_TRANSFORMER])
def test_loss_falls_and_the_best_weights_are_kept(
    synth_events: Events, tmp_path: Path, base: AnyConfig
) -> None:
    run = trainer(synth_events, tmp_path, base=base, max_steps=40, eval_every_steps=10)
    report = run.run()
    losses = [one.loss for one in report.evaluations]
    assert report.stopped == "steps"
    assert [one.step for one in report.evaluations] == [10, 20, 30, 40]
    assert losses[-1] < losses[0] - 0.1
    assert report.best is not None
    assert report.best.ndcg == max(one.ndcg for one in report.evaluations)
    stored = msgspec.json.decode((tmp_path / REPORT_FILE).read_bytes(), type=TrainReport)
    assert stored == report
    assert stored.tasks == ("engage", "like", "long_view")
    assert load_ranker(tmp_path).config.tasks == stored.tasks


def test_equal_seeds_give_equal_weights(synth_events: Events, tmp_path: Path) -> None:
    reports = [trainer(synth_events, tmp_path / name, max_steps=3, seed=5).run() for name in "ab"]
    other = trainer(synth_events, tmp_path / "c", max_steps=3, seed=6).run()
    assert reports[0].model_fingerprint == reports[1].model_fingerprint != other.model_fingerprint


@pytest.mark.parametrize("killed_at", [4, 6])
def test_resumed_run_is_bit_identical(synth_events: Events, tmp_path: Path, killed_at: int) -> None:
    whole = trainer(synth_events, tmp_path / "whole")
    expected = whole.run()
    with pytest.raises(KilledError):
        trainer(synth_events, tmp_path / "cut").run(kill_after(killed_at))
    resumed = trainer(synth_events, tmp_path / "cut", resume=True)
    assert resumed.state.step == 4
    got = resumed.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    assert got.model_fingerprint == expected.model_fingerprint
    assert [(one.step, one.loss, one.ndcg) for one in got.evaluations] == [
        (one.step, one.loss, one.ndcg) for one in expected.evaluations
    ]


def test_finished_run_can_be_resumed_and_extended(synth_events: Events, tmp_path: Path) -> None:
    first = trainer(synth_events, tmp_path, max_steps=4).run()
    assert trainer(synth_events, tmp_path, resume=True, max_steps=4).run().evaluations == first.evaluations
    assert trainer(synth_events, tmp_path, resume=True, max_steps=6).run().steps == 6


def test_killed_process_leaves_a_model_that_loads(synth_events: Events, tmp_path: Path) -> None:
    out = tmp_path / "model"
    script = "from relaygr.cli.main import main; main()"
    command = [sys.executable, "-c", script, "train", "ranker", "--events", str(synth_events.path)]
    options = ["--set", "train.eval_requests=20", "--set", "train.eval_every_steps=2"]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--max-steps", "100000", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 120
        while not (out / STATE_FILE).exists() and time.monotonic() < deadline:
            assert process.poll() is None, "training ended by itself"
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    load_ranker(out)


def test_resume_refuses_other_data_model_and_settings(
    synth_events: Events, make_events: MakeEvents, tmp_path: Path
) -> None:
    trainer(synth_events, tmp_path / "m", max_steps=2).run()
    other = make_events([(user, item, 10 * item) for user in range(9) for item in range(9)])
    with pytest.raises(ConfigError, match="was trained on data"):
        trainer(other, tmp_path / "m", resume=True, max_steps=2)
    with pytest.raises(ConfigError, match=r"train.lr was 0.01, now 0.5"):
        trainer(synth_events, tmp_path / "m", resume=True, max_steps=2, lr=0.5)
    with pytest.raises(ConfigError, match=r"model.position_buckets was 32, now 16"):
        trainer(synth_events, tmp_path / "m", resume=True, max_steps=2, max_history=16)
    with pytest.raises(ConfigError, match="cannot read"):
        trainer(synth_events, tmp_path / "nothing", resume=True)
    whole = (tmp_path / "m" / STATE_FILE).read_bytes()
    for at in range(0, len(whole), max(len(whole) // 9, 1)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (tmp_path / "m" / STATE_FILE).write_bytes(bytes(damaged))
        with pytest.raises(ConfigError, match="damaged or not a training state"):
            trainer(synth_events, tmp_path / "m", resume=True, max_steps=2)
    (tmp_path / "m" / STATE_FILE).write_bytes(b"no state")
    with pytest.raises(ConfigError, match="damaged or not a training state"):
        trainer(synth_events, tmp_path / "m", resume=True)


def test_time_limit_and_patience(synth_events: Events, tmp_path: Path) -> None:
    clock = ManualClock()
    train = tiny_train(max_steps=0, max_minutes=1.0)
    config = ranker_config(TINY_MODEL, synth_events, train)
    run = RankerTrainer(synth_events, tmp_path, config, train, ReferenceKernel(), clock=clock)
    report = run.run(lambda now: clock.advance(15))
    assert (report.stopped, report.steps) == ("time", 5)  # the clock is read before the observer moves it
    flat = trainer(synth_events, tmp_path, patience=2, lr=1e-9, table_lr=1e-9, max_steps=400).run()
    assert flat.stopped == "patience"
    assert flat.best is not None
    assert flat.steps == flat.best.step + 2 * 4


def test_tiny_data(make_events: MakeEvents, tmp_path: Path) -> None:
    # Two items, fewer than negatives; one user with one event; nothing to validate on.
    events = make_events([(0, 1, 10), (0, 2, 20), (0, 1, 30), (0, 2, 40), (1, 1, 15)])
    report = trainer(events, tmp_path / "m", max_steps=2).run()
    assert report.best is None
    assert report.evaluations == ()
    load_ranker(tmp_path / "m")


def test_data_without_a_past_is_refused(make_events: MakeEvents, tmp_path: Path) -> None:
    events = make_events([(user, 1, user) for user in range(10)])
    with pytest.raises(ConfigError, match="no user has events in two different seconds"):
        trainer(events, tmp_path / "m")


@pytest.mark.parametrize("name", ["meta-dlrm-v3", "meta-research-ml20m", "nvidia-kuairand"])
def test_variants_that_are_only_served_are_refused(synth_events: Events, name: str) -> None:
    with pytest.raises(ConfigError, match="served, not trained"):
        ranker_config(preset(name), synth_events, tiny_train())


def test_profile_slots_are_refused(synth_events: Events, tmp_path: Path) -> None:
    config = msgspec.structs.replace(TINY_MODEL, contextual=("country",))
    with pytest.raises(ConfigError, match=r"model.contextual.*no profile columns"):
        RankerTrainer(synth_events, tmp_path, config, tiny_train(), ReferenceKernel())
