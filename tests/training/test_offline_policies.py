"""Policies behind logged prefixes, and estimates from logged lists to the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.lists import ListModel
from relaygr.listwise.step import StepModel, shapes
from relaygr.training.slate.offline.cascade import estimate
from relaygr.training.slate.offline.explored import Explored, as_lists, of_world, rewards, usable
from relaygr.training.slate.offline.policies import Softmax, Tilted, behind, matching, steps_of
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.world import VALUE, World, WorldConfig

SMALL = WorldConfig(items=200, topics=8, authors=20, candidates=10, length=4)


@pytest.fixture(scope="module")
def explored() -> Explored:
    requests = World(SMALL).requests(150, 1)
    return of_world(requests, explored_logs(requests, 1, 0.5))


@pytest.fixture(scope="module")
def model() -> ListModel:
    """A step model of random weights: context matters to it."""
    random = np.random.default_rng(3)
    config = world_config()
    tensors = {
        name: (0.7 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes(config).items()
    }
    return ListModel(StepModel(config, tensors), VALUE)


def test_the_logging_policy_gives_the_logged_propensities(explored: Explored, model: ListModel) -> None:
    base = Softmax(temperature=0.5, of="watch")
    steps = steps_of(explored, explored.scenes(VALUE), base, model)
    assert steps.log_target[steps.seen] == pytest.approx(steps.log_logging[steps.seen], abs=1e-9)


def test_softmax_is_the_plackett_luce_generator(explored: Explored) -> None:
    for n, scene in enumerate(explored.scenes(VALUE)[:20]):
        picks = np.argsort(scene.columns)[explored.picks[n]].astype(np.int32)
        said = Softmax(temperature=0.2).log_probabilities(scene, picks)
        assert np.exp(said).sum(axis=1) == pytest.approx(1.0)
        total = said[np.arange(len(picks)), picks].sum()
        assert total == pytest.approx(PlackettLuce(temperature=0.2).log_propensity(scene, picks))


def test_what_a_model_says_behind_prefixes_is_what_it_says_of_lists(
    explored: Explored, model: ListModel
) -> None:
    for n, scene in enumerate(explored.scenes(VALUE)[:5]):
        picks = np.argsort(scene.columns)[explored.picks[n]].astype(np.int32)
        value, stay = behind(model, scene, picks)
        for t in range(len(picks)):
            for item in range(len(scene)):
                if item in picks[:t]:
                    assert value[t, item] == 0
                    continue
                whole = model(scene, np.append(picks[:t], item).astype(np.int32)[None])
                assert value[t, item] == pytest.approx(whole.value[0, t], abs=1e-5)
                assert stay[t, item] == pytest.approx(1 - whole.hazard[0, t], abs=1e-5)


def test_a_policy_leans_as_far_as_it_is_told(explored: Explored, model: ListModel) -> None:
    base, scenes = Softmax(temperature=0.5, of="watch"), explored.scenes(VALUE)
    picks = np.argsort(scenes[0].columns)[explored.picks[0]].astype(np.int32)
    still = Tilted(base=base, model=model, strength=0.0).log_probabilities(scenes[0], picks)
    assert still == pytest.approx(base.log_probabilities(scenes[0], picks))
    value, stay = behind(model, scenes[0], picks)
    gain = value[0] + stay[0] * 3 * scenes[0].value[:4].mean() - scenes[0].value
    means, sizes = [], []
    for strength in (0.0, 2.0, 8.0):
        policy = Tilted(base=base, model=model, strength=strength)
        means.append(float(np.exp(policy.log_probabilities(scenes[0], picks)[0]) @ gain))
        sizes.append(estimate("p", steps_of(explored, scenes, policy, model), depths=[4])[0].ess)
    assert means[0] < means[1] < means[2]
    assert sizes[0] == pytest.approx(len(explored))
    assert sizes[0] > sizes[1] > sizes[2]


def test_matching_counts_first_picks(explored: Explored) -> None:
    lists = explored.picks.copy()
    lists[1, 2] = lists[1, 3]
    lists[2, 0] = -1
    assert matching(explored, lists)[:4].tolist() == [4, 2, 0, 4]


def test_rewards_are_zero_behind_the_exit_and_missing_where_labels_are(explored: Explored) -> None:
    logs = explored.logs
    found = rewards(VALUE, logs)
    assert (found[~logs.observed] == 0).all()
    assert found[logs.observed] == pytest.approx(logs.labels[logs.observed][:, 0])
    labels = logs.labels.copy()
    labels[3, 0] = np.nan
    spoilt = replace(logs, labels=labels)
    assert np.isnan(rewards(VALUE, spoilt)[3, 0])
    assert 3 not in usable(VALUE, spoilt)
    assert len(usable(VALUE, spoilt)) == len(logs) - 1
    silent = logs.log_propensity.copy()
    silent[5] = np.nan
    assert 5 not in usable(VALUE, replace(logs, log_propensity=silent))


def test_lists_that_nobody_saw_have_the_facts_of_their_items(explored: Explored) -> None:
    again = as_lists(explored.logs, explored.pools, explored.picks)
    assert np.array_equal(again.items, explored.logs.items)
    assert np.array_equal(again.outputs, explored.logs.outputs)
    assert np.array_equal(again.attributes["topic"], explored.logs.attributes["topic"])
    assert again.vectors is not None
    assert np.array_equal(again.vectors, explored.logs.vectors)
    assert np.isnan(again.labels).all()


def test_candidates_of_other_requests_are_refused(explored: Explored) -> None:
    with pytest.raises(ConfigError, match="request 0 shows items"):
        Explored(explored.logs, list(reversed(explored.pools)), explored.picks)
    with pytest.raises(ConfigError, match="of 149 requests, for 150 lists"):
        Explored(explored.logs, explored.pools[1:], explored.picks)
