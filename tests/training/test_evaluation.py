"""Offline evaluation: incremental scores, candidates without favour, baselines and intervals."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from tiny_runs import TINY_MODEL, MakeEvents

import relaygr.training.scoring as scoring
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.split import EvalRequest, evaluation_requests, temporal_split
from relaygr.kernels.interface import Kernel
from relaygr.kernels.reference import ReferenceKernel
from relaygr.kernels.select import choose
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.window import anchor
from relaygr.training.baselines import RecentItems, popularity_scores
from relaygr.training.bootstrap import interval, resample
from relaygr.training.candidates import CandidateSource, mix, seen_rule
from relaygr.training.catalogue import catalogue_before
from relaygr.training.evaluate import SCORERS, estimates, replay
from relaygr.training.metrics import METRICS, request_metrics
from relaygr.training.offline import EvalOptions, evaluate_ranker
from relaygr.training.scoring import RankerScorer, UserEvents


def model_for(events: Events, time_bias: bool = False) -> Ranker:
    torch.manual_seed(1)
    config = msgspec.structs.replace(
        TINY_MODEL, score_time_bias=time_bias, action_bits=events.meta.actions, tasks=events.meta.actions
    )
    model = Ranker(config).eval()
    for layer in model.layers:
        if layer.time_bias is not None:
            torch.nn.init.normal_(layer.time_bias)
    return model


def busiest(events: Events) -> int:
    return int(np.argmax(np.diff(events.offsets)))


def from_scratch(
    model: Ranker, events: Events, request: EvalRequest, ids: np.ndarray, scorer: RankerScorer
) -> np.ndarray:
    items, times, actions = (torch.from_numpy(np.array(c)) for c in events.history(request.user))
    window = slice(anchor(request.history_end, scorer.limit, scorer.stride), request.history_end)
    row = RowInput(
        torch.zeros(0, dtype=torch.int64), items[window], times[window], actions[window],
        torch.from_numpy(ids), request.time_s,
    )  # fmt: skip
    with torch.inference_mode():
        return model([row], ReferenceKernel())[0][:, 0].double().numpy()


@pytest.fixture(scope="module", params=["cpu", "reference"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return choose(request.param, "fp32").kernel


@pytest.mark.parametrize("time_bias", [False, True])
@pytest.mark.parametrize("rows", [20, 2048])
def test_incremental_scores_equal_scores_from_scratch(
    synth_events: Events, kernel: Kernel, time_bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MAX_ROWS", rows)
    model = model_for(synth_events, time_bias)
    scorer = RankerScorer(model, kernel)
    user = busiest(synth_events)
    requests = [one for one in evaluation_requests(synth_events, 0, 1 << 62) if one.user == user]
    assert requests[-1].history_end > 2 * scorer.limit, "the window must move for this test to mean anything"
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 300, size=int(rng.integers(1, 50))) for _ in requests]
    got = scorer.score(UserEvents.of(synth_events.history(user)), requests, ids)
    for request, candidates, scores in zip(requests, ids, got, strict=True):
        wanted = from_scratch(model, synth_events, request, candidates, scorer)
        np.testing.assert_allclose(scores, wanted, atol=2e-5)


def test_scorer_takes_no_requests(synth_events: Events) -> None:
    scorer = RankerScorer(model_for(synth_events), ReferenceKernel())
    assert scorer.score(UserEvents.of(synth_events.history(0)), [], []) == []


def test_sampled_candidates(synth_events: Events) -> None:
    split = temporal_split(synth_events)
    catalogue = catalogue_before(synth_events, split.train_end_s)
    source = CandidateSource("sampled", catalogue, 40, seed=0)
    places, shares = [], []
    for request in evaluation_requests(synth_events, split.valid_end_s, 1 << 62):
        items = synth_events.history(request.user)[0]
        each = source.candidates(request, items)
        positives = set(items[slice(*request.positives)].tolist())
        assert len(set(each.items.tolist())) == len(each.items) == len(positives) + 40
        assert set(each.items[each.positive].tolist()) == positives
        assert np.array_equal(each.items, source.candidates(request, items).items)
        past = items[max(request.history_end - 200, 0) : request.history_end]
        recent = set(past.tolist()) - positives
        assert len(recent & set(each.items.tolist())) >= min(10, len(recent))
        places += (np.flatnonzero(each.positive) / (len(each.items) - 1)).tolist()
        shares.append(catalogue.knows(each.items[~each.positive]).mean())
    assert 0.4 < np.mean(places) < 0.6  # positives stand anywhere in the order that breaks ties
    assert np.mean(shares) > 0.9


def test_small_catalogue_gives_what_it_has(make_events: MakeEvents) -> None:
    events = make_events([(0, item, 10 * item) for item in range(1, 7)])
    source = CandidateSource("sampled", catalogue_before(events, 55), 100, seed=0)
    each = source.candidates(EvalRequest(0, 60, 5, (5, 6)), events.history(0)[0])
    assert sorted(each.items.tolist()) == [1, 2, 3, 4, 5, 6]
    assert each.items[each.positive].tolist() == [6]


def test_full_candidates_leave_unknown_positives_out(make_events: MakeEvents) -> None:
    events = make_events([(0, 1, 10), (0, 2, 20), (0, 2, 90), (0, 9, 90)])
    source = CandidateSource("full", catalogue_before(events, 50), 1, seed=0)
    each = source.candidates(EvalRequest(0, 90, 2, (2, 4)), events.history(0)[0])
    assert sorted(each.items.tolist()) == [1, 2]
    assert (each.items[each.positive].tolist(), each.left_out) == ([2], 1)


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_seen_items_can_be_dropped(synth_events: Events, mode: str) -> None:
    split = temporal_split(synth_events)
    catalogue = catalogue_before(synth_events, split.train_end_s)
    source = CandidateSource(mode, catalogue, 40, seed=0, seen="drop")
    left_out = 0
    for request in evaluation_requests(synth_events, split.valid_end_s, 1 << 62):
        items = synth_events.history(request.user)[0]
        earlier = set(items[: request.history_end].tolist())
        positives = set(items[slice(*request.positives)].tolist())
        each = source.candidates(request, items)
        assert not earlier & set(each.items.tolist())
        wanted = positives - earlier
        if mode == "sampled":
            assert len(each.items) == len(set(each.items.tolist())) == len(wanted) + 40
        else:
            wanted &= set(catalogue.items.tolist())
            assert set(each.items.tolist()) == set(catalogue.items.tolist()) - earlier
        assert set(each.items[each.positive].tolist()) == wanted
        assert each.left_out == len(positives) - len(wanted)
        left_out += each.left_out
    assert left_out > 0, "some positive must be a repeat for this test to mean anything"


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
def test_share_of_own_negatives(synth_events: Events, share: float) -> None:
    split = temporal_split(synth_events)
    catalogue = catalogue_before(synth_events, split.train_end_s)
    source = CandidateSource("sampled", catalogue, 40, seed=0, own_share=share)
    own = []
    for request in evaluation_requests(synth_events, split.valid_end_s, 1 << 62):
        items = synth_events.history(request.user)[0]
        each = source.candidates(request, items)
        recent = set(items[max(request.history_end - 200, 0) : request.history_end].tolist())
        recent -= set(items[slice(*request.positives)].tolist())
        found = len(recent & set(each.items[~each.positive].tolist()))
        assert found >= min(round(40 * share), len(recent))
        own.append(found / 40)
    # Own items are also met by chance, among the popular ones; without a share only so.
    assert np.mean(own) < share + 0.2


def test_seen_rule_looks_at_repeats_in_training(make_events: MakeEvents) -> None:
    # Items 1 and 2 occur with two users, which is no repeat; the only repeat is after second 50.
    events = make_events([(0, 1, 10), (0, 2, 20), (0, 2, 90), (1, 1, 5), (1, 2, 15)])
    assert seen_rule("auto", events, 50) == "drop"
    assert seen_rule("auto", events, 100) == "keep"
    assert (seen_rule("keep", events, 50), seen_rule("drop", events, 100)) == ("keep", "drop")


def test_report_says_which_rule_was_followed(make_events: MakeEvents) -> None:
    events = make_events(
        [(user, 3 * user + item, 10 * item + user) for user in range(6) for item in range(9)]
    )
    model, kernel = model_for(events), ReferenceKernel()
    report = evaluate_ranker(model, "m", events, kernel, EvalOptions(negatives=3))
    assert (report.seen, report.negatives_mix) == ("drop", mix("drop", 0.25))
    kept = evaluate_ranker(model, "m", events, kernel, EvalOptions(negatives=3, seen="keep"))
    assert (kept.seen, kept.requests) == ("keep", report.requests + report.unrankable_requests)


def test_baselines(make_events: MakeEvents) -> None:
    events = make_events([(0, 1, 10), (0, 2, 20), (0, 3, 20), (0, 1, 30), (1, 3, 5), (1, 4, 5), (1, 4, 6)])
    catalogue = catalogue_before(events, 100)
    ids = np.array([1, 2, 3, 4, 5])
    popularity = popularity_scores(catalogue, ids)
    assert popularity.tolist() == [2, 1, 2, 2, 0]
    recent = RecentItems()
    items, times, _ = events.history(0)
    recent.advance(items, times, 3)
    # Item 3 is as recent as item 2 but more popular; 4 and 5 were never touched.
    assert np.argsort(-recent.scores(ids, popularity)).tolist() == [2, 1, 0, 3, 4]
    recent.advance(items, times, 4)
    assert np.argsort(-recent.scores(ids, popularity)).tolist() == [0, 2, 1, 3, 4]
    assert recent.scores(np.array([7, 8]), np.zeros(2)).tolist() == [1, 1]


def test_bootstrap_against_known_answers() -> None:
    users = np.repeat(np.arange(200), 3)
    noise = np.random.default_rng(0).normal(size=600)
    values = np.stack([noise, noise + 0.5], axis=1)
    sampled = resample(values, users, per_user=False, seed=0)
    assert sampled.observed == pytest.approx(values.mean(0))
    low, high = interval(sampled.draws[:, 0])
    assert low < noise.mean() < high
    assert (high - low) == pytest.approx(4 / 600**0.5, rel=0.25)
    # A constant difference is known exactly, because both columns see the same users.
    paired = interval(sampled.draws[:, 1] - sampled.draws[:, 0])
    assert paired == pytest.approx((0.5, 0.5))


def test_bootstrap_weighs_requests_or_users() -> None:
    users = np.array([0, 0, 0, 1])
    values = np.array([[1.0], [1.0], [1.0], [0.0]])
    assert resample(values, users, per_user=False, seed=0).observed.tolist() == [0.75]
    assert resample(values, users, per_user=True, seed=0).observed.tolist() == [0.5]
    assert set(resample(values, users, per_user=True, seed=0).draws[:, 0]) == {0.0, 0.5, 1.0}


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_replay_equals_a_plain_loop(synth_events: Events, mode: str) -> None:
    split = temporal_split(synth_events)
    model, kernel = model_for(synth_events), ReferenceKernel()
    options = EvalOptions(candidates=mode, negatives=30, max_requests=25)
    report = evaluate_ranker(model, "m", synth_events, kernel, options)
    source = CandidateSource(mode, catalogue_before(synth_events, split.train_end_s), 30, 0)
    scorer = RankerScorer(model, kernel)
    found = []
    for request in evaluation_requests(synth_events, split.valid_end_s, 1 << 62, max_requests=25):
        each = source.candidates(request, synth_events.history(request.user)[0])
        if each.rankable:
            scores = from_scratch(model, synth_events, request, each.items, scorer)
            found.append(request_metrics(scores, each.positive))
    assert report.requests == len(found)
    assert report.requests + report.unrankable_requests == 25
    means = {
        one.metric: one.mean
        for one in report.estimates
        if (one.scorer, one.minus, one.over) == ("model", "", "requests")
    }
    assert [means[metric] for metric in METRICS] == pytest.approx(np.mean(found, axis=0), abs=1e-9)
    assert len(report.estimates) == 2 * len(METRICS) * (len(SCORERS) + 2)


def test_differences_are_differences(synth_events: Events) -> None:
    split = temporal_split(synth_events)
    requests = evaluation_requests(synth_events, split.valid_end_s, 1 << 62, max_requests=10)
    source = CandidateSource("sampled", catalogue_before(synth_events, split.train_end_s), 20, 0)
    scorer = RankerScorer(model_for(synth_events), ReferenceKernel())
    outcome = replay(synth_events, requests, source, scorer)
    found = {(e.scorer, e.minus, e.metric, e.over): e for e in estimates(outcome, 0)}
    for metric in METRICS:
        gap = found["model", "recency", metric, "users"]
        model, recency = (found[name, "", metric, "users"] for name in ("model", "recency"))
        assert gap.mean == pytest.approx(model.mean - recency.mean)
        assert gap.low <= gap.mean <= gap.high


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (EvalOptions(max_requests=0), "max_requests: 0 must be at least 1"),
        (EvalOptions(negatives=0), "negatives: 0 must be at least 1"),
        (EvalOptions(seed=-1), "seed: -1 must not be negative"),
        (EvalOptions(own_share=0.8), r"own_share: 0.8 must be in \[0, 0.75\]"),
        (EvalOptions(seen="some"), "seen: 'some' is not one of auto, keep, drop"),
    ],
)
def test_bad_options_are_named(synth_events: Events, options: EvalOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        evaluate_ranker(model_for(synth_events), "m", synth_events, ReferenceKernel(), options)


def test_part_without_requests(make_events: MakeEvents) -> None:
    events = make_events([(user, 1, user) for user in range(10)])
    with pytest.raises(ConfigError, match="no request with an earlier event"):
        evaluate_ranker(model_for(events), "m", events, ReferenceKernel(), EvalOptions())
