"""Reports: what may stand where, and the whole protocol in a small world."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.training.slate.fit import StepTraining
from relaygr.training.slate.offline.cascade import Estimator
from relaygr.training.slate.offline.compare import Comparison, compare
from relaygr.training.slate.offline.coverage import pool_variety, variety
from relaygr.training.slate.offline.explored import of_world
from relaygr.training.slate.offline.methods import METHODS
from relaygr.training.slate.offline.protocol import EvalSlateOptions, Requested, segments_of
from relaygr.training.slate.offline.relevance import relevance
from relaygr.training.slate.offline.report import OUTCOMES, Evidence, SlateReport, Source
from relaygr.training.slate.offline.simulated import SimulatedOptions, simulated_report
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.world import World, WorldConfig

SMALL = WorldConfig(items=200, topics=10, authors=20, candidates=20, length=5, repetition=0.6)
OPTIONS = SimulatedOptions(
    lists=2000,
    requests=80,
    seeds=2,
    temperature=0.5,
    world=SMALL,
    training=StepTraining(epochs=15),
    evaluation=EvalSlateOptions(most_lists=250),
)


@pytest.fixture(scope="module")
def report() -> SlateReport:
    return simulated_report(OPTIONS)


def comparison() -> Comparison:
    return compare(["pointwise", "b"], np.zeros((5, 4, 2)), np.arange(4), "pointwise")


@pytest.mark.parametrize(
    "metric",
    [
        *("ndcg", "NDCG@10", "n-dcg", "map", "MAP@5", "mean average precision", "mrr", "reciprocal rank"),
        *("hr@10", "reranked clicks", "ctr", "auc", "Utility@ndcg", ""),
    ],
)
def test_reordered_labels_are_no_evidence(metric: str) -> None:
    """Whatever they are called: evidence is what outcomes of lists give."""
    for known in OUTCOMES:
        Evidence(
            source=Source.LOGS, metric=known, segment="all", requests=4, means={}, comparison=comparison()
        )
    with pytest.raises(ConfigError, match="no evidence for effects of lists"):
        Evidence(
            source=Source.LOGS, metric=metric, segment="all", requests=4, means={}, comparison=comparison()
        )


def test_relevance_takes_reordered_labels_alone(report: SlateReport) -> None:
    assert {one.metric for one in report.relevance} == {"ndcg", "map"}
    utility = msgspec.structs.replace(report.relevance[0], metric="utility")
    with pytest.raises(ConfigError, match="'utility' is none of ndcg, map"):
        msgspec.structs.replace(report, relevance=(utility,))


def test_a_report_whose_selector_is_its_judge_is_refused(report: SlateReport) -> None:
    with pytest.raises(ConfigError, match="chose the lists that it judges"):
        msgspec.structs.replace(report, judge_version=report.selector)
    with pytest.raises(ConfigError, match="by whom is not said"):
        msgspec.structs.replace(report, judge_version=None)


def test_all_sections_are_filled(report: SlateReport) -> None:
    sources = {one.source for one in report.evidence}
    assert sources == {Source.TRUTH, Source.JUDGE}
    for one in report.evidence:
        assert tuple(one.means) == METHODS
        assert one.comparison.preliminary
        assert len(one.comparison.differences[0].by_seed) == 2
    assert report.judge is not None
    assert report.judge.rank_correlation is not None
    assert report.disagreement is not None
    assert report.pool is not None
    assert "linear" in (report.independence or "")
    forms = {one.estimator for one in report.estimates}
    assert forms == set(Estimator)
    assert any("propensities differ" in note for note in report.notes)
    assert {one.method for one in report.varieties} == set(METHODS)
    costs = {one.method: one for one in report.cost}
    assert costs["greedy"].model_calls == SMALL.length
    assert costs["pointwise"].model_calls == costs["mmr"].model_calls == 0
    assert costs["default"].lists > 1
    again = msgspec.json.decode(msgspec.json.encode(report), type=SlateReport)
    assert again == report


def test_the_judge_agrees_with_the_truth_about_the_order(report: SlateReport) -> None:
    truth, judge = report.evidence
    for one in (truth, judge):
        assert one.means["default"] > one.means["pointwise"]
        assert one.means["beam4"] >= one.means["greedy"] - 0.02
    assert judge.means["default"] == pytest.approx(truth.means["default"], rel=0.2)
    assert truth.inflation["pointwise"] == pytest.approx(1.0, abs=0.15)


def test_estimates_of_the_logging_policy_are_right(report: SlateReport) -> None:
    base = [one for one in report.estimates if one.policy == "softmax 0.5"]
    assert all(one.estimable and one.mean_weight == pytest.approx(1) for one in base)
    ips, robust = (
        {one.depth: one.mean for one in base if one.estimator is form}
        for form in (Estimator.CASCADE_IPS, Estimator.DOUBLY_ROBUST)
    )
    assert ips[5] == pytest.approx(robust[5], abs=0.15)


def test_the_baseline_is_needed() -> None:
    with pytest.raises(ConfigError, match="lack the baseline"):
        EvalSlateOptions(methods=("greedy",))


def test_relevance_against_hand_made_orders() -> None:
    requests = World(SMALL).requests(3, 1)
    logs = explored_logs(requests, 1, 0.5).logs
    labels = np.array([[1, 0, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=np.float32)
    logs = replace(logs, labels=labels[..., None], consumed=np.array([4, 2, 5]))
    as_shown = -np.arange(5.0) * np.ones((3, 5))
    found = {one.metric: one for one in relevance(logs, "watch", {"shown": as_shown})}
    ideal = 1 + 1 / np.log2(3)
    assert found["ndcg"].mean == pytest.approx(((1 + 0.5) / ideal + 1 / np.log2(3)) / 2)
    assert found["map"].mean == pytest.approx(((1 + 2 / 3) / 2 + 0.5) / 2)
    assert found["map"].lists == 2  # the third has no label of the other kind
    best = relevance(logs, "watch", {"best": labels.astype(np.float64)})
    assert [one.mean for one in best] == [1.0, 1.0]
    with pytest.raises(ConfigError, match="relevance: head 'like' is none of watch"):
        relevance(logs, "like", {})


def test_variety_of_known_lists() -> None:
    requests = World(SMALL).requests(2, 1)
    logs = explored_logs(requests, 1, 0.5).logs
    topics = np.array([[1, 1, 1, 1, 1], [1, 2, 3, 4, 5]])
    authors = np.array([[7, 7, 7, -1, -1], [1, 2, 3, 4, 5]])
    same = np.tile(np.eye(1, 16, dtype=np.float32), (5, 1))
    vectors = np.stack([same, np.eye(5, 16, dtype=np.float32)])
    items = np.array([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]])
    logs = replace(logs, items=items, attributes={"topic": topics, "author": authors}, vectors=vectors)
    found = variety("m", logs, np.arange(12))
    assert found.topic_entropy == pytest.approx(np.log(5) / 2)
    assert found.author_share == pytest.approx((0.6 + 0.2) / 2)
    assert found.distance == pytest.approx(0.25)
    assert (found.catalogue, found.catalogue_share) == (6, 0.5)
    bare = variety("m", replace(logs, attributes={}, vectors=None), np.arange(12))
    assert (bare.topic_entropy, bare.author_share, bare.distance) == (None, None, None)


def test_a_generator_is_worth_what_the_pool_loses_without_it(report: SlateReport) -> None:
    assert pool_variety([]) is None
    assert report.pool is not None
    gains = {one.generator: one.gain for one in report.pool.generators}
    assert all(gain >= 0 for gain in gains.values())
    assert max(gains, key=lambda name: gains[name]) == "beam4"
    assert sum(one.best for one in report.pool.generators) >= 1


def test_segments_are_thirds_of_what_differs() -> None:
    requests = World(SMALL).requests(9, 1)
    explored = of_world(requests, explored_logs(requests, 1, 0.5))
    asked = Requested(
        logs=explored.logs, pools=explored.pools, length=5, activity=np.array([1, 1, 2, 3, 4, 5, 6, 8, 9])
    )
    found = segments_of(asked)
    names = [name for name in found if name != "all"]
    assert len(names) == 3
    assert all(name.startswith("user activity") for name in names)  # all have as many candidates
    assert sum(found[name].sum() for name in names) == 9
