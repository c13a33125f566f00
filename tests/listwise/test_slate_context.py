"""The context kept pick by pick, and of whole lists, is what recomputation from everything before gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slate_cases import (
    ATTRIBUTES,
    GROUPS,
    list_model,
    make_scene,
    random_pool,
    random_scene,
    random_shown,
    trained,
)
from slate_cases import step_config as config

from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.features import parse_feature
from relaygr.listwise.list_context import ListContext
from relaygr.listwise.pool import Shown
from relaygr.listwise.reference import context_row
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import Group

EVERYTHING = (*GROUPS, Group(name="vectors", features=("vector:3", "vector:0")))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), shown=st.sampled_from([0, 1, 2, 7]), window=st.integers(1, 4))
def test_context_is_recomputation(seed: int, shown: int, window: int) -> None:
    scene = random_scene(seed, candidates=9, length=6, shown=shown)
    model = list_model(groups=EVERYTHING, window=window)
    random = np.random.default_rng(seed)
    context, moving = model.context(scene), model.step.features.moving
    state, lists = context.start(), [[]]
    whole = np.stack([random.permutation(9)[:6] for _ in range(3)]).astype(np.int32)
    rows = ListContext(context, scene).rows(whole)
    for t in range(6):
        found = np.empty((len(lists), len(moving), 9), dtype=np.float32)
        context.rows(state, t, found)
        for beam, picks in enumerate(lists):
            for item in range(9):
                wanted = np.array(context_row(model.step, scene, picks, item))
                assert found[beam, :, item] == pytest.approx(wanted[moving], abs=2e-6)
                assert context.still[:, t] == pytest.approx(wanted[model.step.features.still], abs=1e-12)
        for g, picks in enumerate(whole.tolist()):
            wanted = np.array(context_row(model.step, scene, picks[:t], picks[t]))
            assert rows[g, :, t] == pytest.approx(wanted, abs=1e-12)
        # Lists fork, die out and change places, as in a beam.
        parents = np.sort(random.integers(0, len(lists), 3))
        items = np.array([random.choice([i for i in range(9) if i not in lists[p]]) for p in parents])
        state = context.step(state, t, parents, items)
        lists = [[*lists[p], int(i)] for p, i in zip(parents, items, strict=True)]


def test_state_of_a_fork_is_left_alone() -> None:
    scene = random_scene(3, candidates=6, length=4)
    context = list_model().context(scene)
    state = context.start()
    before = [getattr(state, name).copy() for name in ("ring", "counts", "last", "watch")]
    for item in range(3):
        context.step(state, 0, np.zeros(1, dtype=np.int64), np.array([item]))
    for name, was in zip(("ring", "counts", "last", "watch"), before, strict=True):
        assert np.array_equal(getattr(state, name), was)


def test_a_page_goes_on_where_the_last_one_ended() -> None:
    """Picks 0..3 shown, 4 and 5 picked: similarities, counts and distances are those of one list of six."""
    random = np.random.default_rng(5)
    pool = random_pool(random, 8)
    whole = make_scene(SlateAsk(request_id="a", length=6), pool)
    picks = [2, 0, 5, 1, 7, 3]
    model = trained(config(groups=GROUPS[:-1]))
    first = whole.pool.select(np.array(picks[:4]))
    shown = Shown(ids=first.ids, attributes=first.attributes, vectors=first.vectors)
    rest = np.array([i for i in range(8) if i not in picks[:4]])
    paged = make_scene(SlateAsk(request_id="b", length=2, shown=shown), whole.pool.select(rest))
    for t in (4, 5):
        before = [int(np.flatnonzero(paged.pool.ids == whole.pool.ids[i])[0]) for i in picks[4:t]]
        item = int(np.flatnonzero(paged.pool.ids == whole.pool.ids[picks[t]])[0])
        wanted = context_row(model, whole, picks[:t], picks[t])
        assert context_row(model, paged, before, item) == pytest.approx(wanted, abs=1e-12)


def test_shown_items_are_not_picked_again() -> None:
    pool = random_pool(np.random.default_rng(1), 6)
    shown = Shown(ids=pool.ids[:2], attributes={n: pool.attributes[n][:2] for n in ATTRIBUTES})
    scene = make_scene(SlateAsk(request_id="a", length=4, shown=shown), pool)
    assert not set(scene.pool.ids[scene.fallback].tolist()) & set(shown.ids.tolist())


def test_missing_inputs_are_named() -> None:
    scene = random_scene(0, candidates=5, length=2)
    model = list_model()

    def context_of(pool) -> None:  # type: ignore[no-untyped-def]
        model.context(Scene(scene.ask, pool, scene.value, scene.walk, scene.columns))

    with pytest.raises(RequestError, match="author"):
        context_of(replace(scene.pool, attributes={}))
    with pytest.raises(RequestError, match="vectors"):
        context_of(replace(scene.pool, vectors=None))
    shown = replace(random_shown(np.random.default_rng(0), 2), vectors=None)
    ask = replace(scene.ask, shown=shown)
    with pytest.raises(RequestError, match=r"shown\.vectors"):
        model.context(Scene(ask, scene.pool, scene.value, scene.walk, scene.columns))


@pytest.mark.parametrize("name", ["", "similarity", "similarity:min", "count", "slot:a", "position:1", "age"])
def test_unknown_features_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="groups"):
        parse_feature("groups[0].features", name)
