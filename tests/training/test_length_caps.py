"""A cap of n means the newest n events, nothing else changes between caps, and every model sees the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tiny_runs import TINY_MODEL, MakeEvents, tiny_train
from torch import Tensor

import relaygr.training.blocks as blocks_module
from relaygr.core.errors import ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.data.dataset import Events
from relaygr.data.split import EvalRequest, evaluation_requests, temporal_split
from relaygr.kernels.interface import Kernel
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.ranker import RowInput
from relaygr.models.weights import load_ranker
from relaygr.training.baselines import popularity_scores
from relaygr.training.blocks import blocks
from relaygr.training.calibration import Calibration
from relaygr.training.candidates import CandidateSource
from relaygr.training.cap_replay import CapScorers, calibrate, replay_caps
from relaygr.training.catalogue import catalogue_before
from relaygr.training.initial import ranker_config
from relaygr.training.length import LengthOptions, NamedModel, evaluate_lengths
from relaygr.training.metrics import request_metrics
from relaygr.training.ranker import RankerTrainer
from relaygr.training.scoring import RankerScorer, UserEvents

Score = Callable[[Sequence[RowInput], Kernel], list[Tensor]]

CAPS = (4, 16, 64)
FIT = Calibration(0.7, -2.0)


@pytest.fixture(scope="module")
def folders(synth_events: Events, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of two seeds, a few steps each, so that weights, ages and biases are not symmetric."""
    found = []
    for seed in range(2):
        train = tiny_train(seed=seed, max_steps=3, max_history=64)
        folder = tmp_path_factory.mktemp("models") / f"seed{seed}"
        config = msgspec.structs.replace(ranker_config(TINY_MODEL, synth_events, train), position_buckets=64)
        RankerTrainer(synth_events, folder, config, train, ReferenceKernel()).run()
        found.append(folder)
    return found


def source_for(events: Events, mode: str = "sampled", negatives: int = 20) -> CandidateSource:
    catalogue = catalogue_before(events, temporal_split(events).train_end_s)
    return CandidateSource(mode, catalogue, negatives, seed=0)


def requests_of(events: Events, most: int | None = None) -> list[EvalRequest]:
    return evaluation_requests(events, temporal_split(events).valid_end_s, 1 << 62, max_requests=most)


def by_hand(model: Score, events: Events, request: EvalRequest, ids: np.ndarray, cap: int) -> np.ndarray:
    """Scores of a history that holds nothing but its newest `cap` events."""
    items, times, actions = (torch.from_numpy(np.array(column)) for column in events.history(request.user))
    window = slice(max(request.history_end - cap, 0), request.history_end)
    row = RowInput(
        contextual=torch.zeros(0, dtype=torch.int64),
        items=items[window].clone(),
        timestamps=times[window].clone(),
        actions=actions[window].clone(),
        candidates=torch.from_numpy(ids),
        query_time=request.time_s,
    )
    with torch.inference_mode():
        return model([row], ReferenceKernel())[0][:, 0].double().numpy()


def test_values_are_those_of_histories_cut_by_hand(synth_events: Events, folders: list[Path]) -> None:
    model, kernel = load_ranker(folders[0]), ReferenceKernel()
    requests, source = requests_of(synth_events), source_for(synth_events)
    assert max(one.history_end for one in requests) > 64, "a cap must cut for this test to mean anything"
    outcome = replay_caps(synth_events, requests, source, [CapScorers(model, kernel, CAPS, FIT)])
    row = 0
    for request in requests:
        each = source.candidates(request, synth_events.history(request.user)[0])
        if not each.rankable:
            continue
        for c, cap in enumerate(CAPS):
            scores = by_hand(model, synth_events, request, each.items, cap)
            ranked = request_metrics(scores, each.positive)
            assert outcome.values[0, row, c, :3] == pytest.approx(ranked, abs=1e-9), (request, cap)
            assert outcome.values[0, row, c, 3] == pytest.approx(
                FIT.cross_entropy(scores, each.positive), abs=1e-4
            )
        popularity = popularity_scores(source.catalogue, each.items)
        assert outcome.baselines[row, 0].tolist() == list(request_metrics(popularity, each.positive))
        assert (outcome.users[row], outcome.events_before[row]) == (request.user, request.history_end)
        assert outcome.share[row] == each.positive.mean()
        row += 1
    assert row == len(outcome.users)
    assert outcome.unrankable == len(requests) - row


def test_only_the_newest_events_matter(synth_events: Events, folders: list[Path]) -> None:
    model, kernel, cap = load_ranker(folders[0]), ReferenceKernel(), 16
    user = int(np.argmax(np.diff(synth_events.offsets)))
    items, times, actions = (np.array(column) for column in synth_events.history(user))
    end = 100
    request = EvalRequest(user, int(times[end]), end, (end, end + 1))
    candidates = np.unique(items[:40])

    def scores(changed: Sequence[int]) -> np.ndarray:
        other = items.copy()
        other[list(changed)] += 1
        scorer = RankerScorer(model, kernel, cap, stride=1)
        return scorer.score(UserEvents.of((other, times, actions)), [request], [candidates])[0]

    unchanged = scores([])
    assert np.array_equal(scores(range(end - cap)), unchanged)
    assert np.array_equal(scores(range(end, len(items))), unchanged)
    assert not np.array_equal(scores([end - cap]), unchanged)
    # The window of serving jumps: it may already have dropped the oldest of the newest 16 events.
    with pytest.raises(ValueError, match=r"stride: 17 must be in \[1, 16\]"):
        RankerScorer(model, kernel, cap, stride=17)


def test_a_short_history_reads_the_same_at_larger_caps(synth_events: Events, folders: list[Path]) -> None:
    model = load_ranker(folders[0])
    requests, source = requests_of(synth_events), source_for(synth_events)
    outcome = replay_caps(synth_events, requests, source, [CapScorers(model, ReferenceKernel(), CAPS, FIT)])
    for c in range(1, len(CAPS)):
        same = outcome.events_before <= CAPS[c - 1]
        assert same.any()
        assert np.array_equal(outcome.values[:, same, c], outcome.values[:, same, c - 1])
        assert not np.array_equal(outcome.values[:, ~same, c], outcome.values[:, ~same, c - 1])


def test_models_rank_the_same_requests_and_candidates(synth_events: Events, folders: list[Path]) -> None:
    kernel = ReferenceKernel()
    one, two = (load_ranker(folder) for folder in folders)
    requests, source = requests_of(synth_events, 30), source_for(synth_events)

    def values(*models: Any) -> np.ndarray:
        rankers = [CapScorers(model, kernel, CAPS, FIT) for model in models]
        return replay_caps(synth_events, requests, source, rankers).values

    together = values(one, two, one)
    assert np.array_equal(together[0], together[2])
    assert not np.array_equal(together[0], together[1])
    assert np.array_equal(together[1], values(two)[0])


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_blocks_change_nothing(
    synth_events: Events, folders: list[Path], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, kernel = load_ranker(folders[0]), ReferenceKernel()
    requests, source = requests_of(synth_events, 40), source_for(synth_events, mode)
    found, fits, counts = [], [], []
    for size in (1 << 22, 1):
        monkeypatch.setattr(blocks_module, "BLOCK_CANDIDATES", size)
        counts.append(len(list(blocks(synth_events, requests, source))))
        seen: list[int] = []
        rankers = [CapScorers(model, kernel, CAPS, FIT)]
        found.append(replay_caps(synth_events, requests, source, rankers, seen.append))
        fits.append(calibrate(synth_events, requests, source, model, kernel))
        assert seen[-1] == len(requests)
    assert counts[1] == len(requests) > counts[0]
    assert found[0].values == pytest.approx(found[1].values, abs=1e-5)
    assert np.array_equal(found[0].baselines, found[1].baselines)
    assert (found[0].left_out, found[0].unrankable) == (found[1].left_out, found[1].unrankable)
    assert (fits[0].slope, fits[0].intercept) == pytest.approx((fits[1].slope, fits[1].intercept), abs=1e-4)


def named(folders: list[Path]) -> list[NamedModel]:
    return [
        NamedModel(f"m{i}", load_ranker(folder), Fingerprint(bytes([i]) * 16))
        for i, folder in enumerate(folders)
    ]


def test_report_from_models_to_estimates(synth_events: Events, folders: list[Path]) -> None:
    watched: list[tuple[str, int, int]] = []
    options = LengthOptions(caps=CAPS, negatives=20, max_requests=50, calibration_requests=30)
    report = evaluate_lengths(
        named(folders), synth_events, ReferenceKernel(), options, lambda *now: watched.append(now)
    )
    whole = {
        (one.over, one.metric, one.cap, one.minus): one for one in report.estimates if one.segment == "all"
    }
    assert whole["requests", "ndcg@10", 64, 4].mean == pytest.approx(
        whole["requests", "ndcg@10", 64, 0].mean - whole["requests", "ndcg@10", 4, 0].mean
    )
    assert len(whole["users", "ne", 64, 16].per_model) == 2
    assert [model.history_limit for model in report.models] == [64, 64]
    assert report.models[0].slope != report.models[1].slope
    assert (report.seen, report.segments[0].name) == ("keep", "all")
    assert sum(size.requests for size in report.segments[1:]) == report.segments[0].requests
    assert report.segments[0].requests + report.unrankable_requests == 50
    assert [now for now in watched if now[1] == now[2]] == [
        ("calibrate m0", 30, 30),
        ("calibrate m1", 30, 30),
        ("rank", 50, 50),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"caps": ()}, "caps: none given"),
        ({"caps": (0, 4)}, "caps: 0 must be at least 1"),
        ({"caps": (4, 4)}, "caps: 4 after 4: caps must ascend"),
        ({"caps": (16, 65)}, "caps: 65 is more than the 64 events that model m0 can read"),
        ({"max_requests": 0}, "max_requests: 0 must be at least 1"),
        ({"calibration_requests": 0}, "calibration_requests: 0 must be at least 1"),
        ({"negatives": 0}, "negatives: 0 must be at least 1"),
        ({"seed": -1}, "seed: -1 must not be negative"),
        ({"seen": "some"}, "seen: 'some' is not one of auto, keep, drop"),
    ],
)
def test_bad_options_are_named(
    synth_events: Events, folders: list[Path], changes: dict[str, object], words: str
) -> None:
    options = msgspec.structs.replace(LengthOptions(caps=CAPS), **changes)
    with pytest.raises(ConfigError, match=words):
        evaluate_lengths(named(folders), synth_events, ReferenceKernel(), options)


def test_data_without_validation_or_positives(make_events: MakeEvents, folders: list[Path]) -> None:
    # Item 9 is no training item, so with the whole catalogue no validation request has a positive.
    rows = [(0, item, 10 * item) for item in range(1, 9)] + [(0, 9, 90), (0, 1, 100)]
    events, options = make_events(rows), LengthOptions(caps=CAPS, candidates="full", seen="keep")
    with pytest.raises(ConfigError, match="calibration_requests: none of 1 has both"):
        evaluate_lengths(named(folders), events, ReferenceKernel(), options)
    with pytest.raises(ConfigError, match="models: none given"):
        evaluate_lengths([], events, ReferenceKernel(), options)


class _Counting:
    """A ranker whose score of every candidate is the number of events it was given."""

    def __init__(self, config: object) -> None:
        self.config = config
        self.compute_dtype = torch.float32

    def __call__(self, rows: Sequence[RowInput], kernel: Kernel) -> list[Tensor]:
        high = rows[0].candidate_high
        seen = torch.full((len(rows[0].candidates),), len(rows[0].items)) if high is None else high
        return [seen[:, None].float()]


def test_a_model_is_given_exactly_the_cap(synth_events: Events, folders: list[Path]) -> None:
    config = load_ranker(folders[0]).config
    user = int(np.argmax(np.diff(synth_events.offsets)))
    requests = [one for one in evaluation_requests(synth_events, 0, 1 << 62) if one.user == user]
    ids = [np.array([1, 2])] * len(requests)
    for cap in CAPS:
        scorer = RankerScorer(_Counting(config), ReferenceKernel(), cap, stride=1)
        got = scorer.score(UserEvents.of(synth_events.history(user)), requests, ids)
        assert [one[0] for one in got] == [min(cap, request.history_end) for request in requests]
