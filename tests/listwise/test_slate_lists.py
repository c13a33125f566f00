"""The value of whole lists: the closed form, unit by unit, and its parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slate_cases import HEADS, VALUE, list_model, random_scene, step_config, trained, zero_model

from relaygr.core.errors import ConfigError
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.lists import ListModel, ListValues, survivals
from relaygr.listwise.pool import Head, sigmoid
from relaygr.listwise.reference import utility
from relaygr.listwise.step import MAX_HAZARD, StepModel, hazard
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shown=st.sampled_from([0, 3]),
    exit=st.booleans(),
    heads=st.sampled_from([0, 4]),
)
def test_utility_is_its_definition(seed: int, shown: int, exit: bool, heads: int) -> None:
    scene = random_scene(seed, candidates=8, length=5, shown=shown)
    model = list_model(seed, exit=exit, exit_hidden=heads)
    random = np.random.default_rng(seed)
    lists = np.stack([random.permutation(8)[:5] for _ in range(4)]).astype(np.int32)
    found = model(scene, lists)
    for g in range(4):
        wanted = utility(model.step, VALUE, scene, lists[g].tolist())
        assert found.utility[g] == pytest.approx(wanted, rel=1e-10)
    # A list's values do not depend on its company, to the bit.
    assert model(scene, lists[2:3]).utility[0] == found.utility[2]


def test_survival_and_sum() -> None:
    scene = random_scene(1, candidates=8, length=5)
    lists = np.arange(5, dtype=np.int32)[None]
    found = list_model(1)(scene, lists)
    total, survival = 0.0, 1.0
    for t in range(5):
        assert found.survival[0, t] == pytest.approx(survival, rel=1e-12)
        total += survival * found.value[0, t]
        survival *= 1.0 - found.hazard[0, t]
    assert found.utility[0] == pytest.approx(total, rel=1e-12)
    assert (found.hazard >= 0).all()
    assert (found.hazard <= MAX_HAZARD).all()


def test_without_exit_the_utility_is_the_plain_sum() -> None:
    scene = random_scene(2, candidates=8, length=5)
    lists = np.array([[3, 1, 0, 6, 7]], dtype=np.int32)
    found = zero_model(exit=False)(scene, lists)
    assert found.utility[0] == pytest.approx(scene.value[lists[0]].sum(), rel=1e-12)
    assert (found.survival == 1.0).all()


def test_untrained_corrections_change_nothing() -> None:
    scene = random_scene(3, candidates=8, length=5)
    lists = np.array([[3, 1, 0, 6, 7]], dtype=np.int32)
    found = zero_model()(scene, lists)
    assert found.value[0].tolist() == scene.value[lists[0]].tolist()
    assert len(set(found.hazard[0].tolist())) == 1


def test_hazards_are_held_below_one() -> None:
    logits = np.array([-1e4, -40.0, 0.0, 40.0, 1e4])
    found = hazard(logits)
    assert (found >= 0).all()
    assert (found <= 1 - 1e-6).all()
    assert survivals(np.full(400, found[-1]))[-1] >= 0


def test_sigmoid_is_exact_at_both_ends() -> None:
    assert sigmoid(np.array([-800.0, 0.0, 800.0])).tolist() == [0.0, 0.5, 1.0]
    logits = np.linspace(-700, 40, 1000)
    wanted = [1 / (1 + math.exp(-one)) for one in logits]
    assert sigmoid(logits) == pytest.approx(wanted, rel=1e-14)


def test_what_is_not_finite_is_said() -> None:
    scene = random_scene(4, candidates=6, length=3)
    config = step_config()
    tensors = dict(StepModel.zero(config).tensors)
    tensors["heads.bias"] = np.array([0, 0, 3e38], dtype=np.float32)  # exp of it overflows
    model = ListModel(StepModel(config, tensors), ValueFunction(_linear(), HEADS))
    with np.errstate(over="ignore"), pytest.raises(SlateNanError, match="step model"):
        model(scene, np.arange(3, dtype=np.int32)[None])


def _linear() -> ValueDocument:
    return ValueDocument(id="linear", terms=(Term(weight=1.0, factors=(Factor(head="watch_s"),)),))


def test_heads_must_agree() -> None:
    value = ValueFunction(_linear(), (Head("like"), *HEADS[2:]))
    with pytest.raises(ConfigError, match="heads"):
        ListModel(trained(step_config()), value)


def test_a_list_of_a_batch_is_the_list_alone() -> None:
    scene = random_scene(5, candidates=8, length=4)
    lists = np.array([[0, 1, 2, 3], [7, 2, 5, 1], [3, 0, 6, 4]], dtype=np.int32)
    model = list_model(5)
    batch = model(scene, lists)
    for picks in (lists[1], np.array([6, 5, 4, 3], dtype=np.int32)):
        fresh = list_model(5)(random_scene(5, candidates=8, length=4), picks[None])
        found = model.of(scene, picks)
        for name in ListValues.__slots__:
            assert np.array_equal(getattr(found, name), getattr(fresh, name)), name
    assert batch.one(1).utility[0] == batch.utility[1]
