"""Greedy and beam: the day-0 order, the monotone rule, the exhaustive limit, and what steps cost."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import case
from slate_cases import HEADS, VALUE, free_budget, list_model, random_scene, trained, zero_model

from relaygr.core.errors import ConfigError
from relaygr.listwise.errors import InfeasibleError, SlateNanError
from relaygr.listwise.generators.beam import Beam, Rest, remaining, take
from relaygr.listwise.lists import ListModel
from relaygr.listwise.masks import NoRules
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.reference import all_lists, best_list, utility
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.search import StepSearch
from relaygr.listwise.step import Group, HeadSpec, StepConfig, StepModel
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction


def picks(beam: Beam, scene: Scene) -> list[int]:
    return beam.propose(scene, free_budget())[0].picks.tolist()


def pointwise_requests(number: int, seed: int, most: int = 6, longest: int = 4) -> list[Scene]:
    """Requests with many ties: half of them have rounded outputs, so that equal values are common."""
    random = np.random.default_rng(seed)
    ids = np.arange(most, dtype=np.int64)
    scenes = []
    for at in range(number):
        candidates = int(random.integers(1, most + 1))
        outputs = random.standard_normal((candidates, 3)).astype(np.float32)
        if at % 2:
            outputs = np.round(outputs * 0.7).astype(np.float32)
        outputs[:, 2] = np.exp(outputs[:, 2])
        pool = Pool(
            ids=ids[:candidates],
            heads=HEADS,
            outputs=outputs,
            attributes={"topic": random.integers(0, 2, candidates)},
        )
        value = VALUE(pool.natural())
        order = np.array(sorted(range(candidates), key=lambda i: (-value[i], i)))
        ask = SlateAsk(request_id=str(at), length=int(random.integers(1, min(candidates, longest) + 1)))
        ranked = pool.select(order)
        walk = NoRules().open(ranked, value[order], ask.length)
        scenes.append(Scene(ask, ranked, value[order], walk, order))
    return scenes


LIKED = ValueFunction(
    ValueDocument(id="like", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),)), (Head("like"),)
)
RULED = trained(
    StepConfig(
        heads=(HeadSpec(name="like"),),
        groups=(
            Group(name="similarity", features=("similarity:max",)),
            Group(name="author", features=("count:author", "recency:author")),
        ),
        positions=5,
    ),
    size=1.5,
)
TOPIC_ONLY = {"groups": (), "watch_head": None, "exit_hidden": 0}


def check_day_zero(number: int, seed: int, most: int = 6, longest: int = 4) -> None:
    model = zero_model(**TOPIC_ONLY)
    greedy = [Beam(model, 1, rest=rest) for rest in (Rest.MEAN, Rest.NONE)]
    for at, scene in enumerate(pointwise_requests(number, seed, most, longest)):
        # Columns are in the order of (value descending, index ascending).
        assert picks(greedy[at // 2 % 2], scene) == list(range(scene.ask.length))


def test_untrained_greedy_is_the_pointwise_order_on_many_requests() -> None:
    check_day_zero(10_000, seed=0)


def test_untrained_greedy_is_the_pointwise_order_on_requests_of_servers() -> None:
    """Up to 200 candidates, of which greedy looks at the first 30, and lists of up to 20."""
    check_day_zero(1000, seed=2, most=200, longest=20)


@pytest.mark.slow
def test_untrained_greedy_is_the_pointwise_order_on_many_more_requests() -> None:
    check_day_zero(50_000, seed=1)


def test_untrained_model_with_every_feature_keeps_the_order() -> None:
    for seed in range(20):
        scene = random_scene(seed, candidates=12, length=6, shown=seed % 3, ties=bool(seed % 2))
        for width in (1, 3):
            assert picks(Beam(zero_model(), width), scene) == list(range(6))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), rest=st.sampled_from(list(Rest)), ties=st.booleans())
def test_the_best_list_never_gets_worse_with_more_beams(seed: int, rest: Rest, ties: bool) -> None:
    scene = random_scene(seed, candidates=8, length=4, ties=ties)
    model = list_model(seed, size=1.5)
    best = -np.inf
    for width in (1, 2, 3, 5, 12):
        found = Beam(model, width, rest=rest).propose(scene, free_budget())[0]
        worth = float(model(scene, found.picks[None]).utility[0])
        assert worth >= best
        best = worth


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_slots_do_not_depend_on_how_many_there_are(seed: int) -> None:
    """Over random scores with dead ends: the first B slots of any wider beam are those of beam B."""
    random = np.random.default_rng(seed)
    tables = [np.round(random.standard_normal((40, 5)), 1) for _ in range(4)]  # ties are common
    for table in tables:
        table[random.random(table.shape) < 0.5] = -np.inf

    def slots_of(width: int) -> list[dict[int, tuple[int, ...]]]:
        slots, lists = np.zeros(1, dtype=np.int64), [()]
        levels = []
        for table in tables:
            # What is behind a list depends on the list alone.
            rows = np.array([sum((x + 1) * 7**i for i, x in enumerate(one)) % 40 for one in lists], dtype=int)
            parents, items, slots = take(table[rows], slots, width)
            lists = [(*lists[p], int(i)) for p, i in zip(parents, items, strict=True)]
            levels.append(dict(zip(slots.tolist(), lists, strict=True)))
            if not lists:
                break
        return levels

    wide = slots_of(9)
    for width in range(1, 9):
        for narrow, full in zip(slots_of(width), wide, strict=False):
            assert narrow == {slot: one for slot, one in full.items() if slot < width}


def test_take_against_its_definition() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        n, width = int(random.integers(1, 5)), int(random.integers(1, 7))
        scores = np.round(random.standard_normal((n, 4)), 0)
        scores[random.random(scores.shape) < 0.3] = -np.inf
        slots = np.sort(random.permutation(6)[:n])
        slots[0] = min(slots[0], width - 1)
        slots = slots[slots < width]
        scores = scores[: len(slots)]
        pool: list[tuple[float, int, int]] = []
        wanted = []
        for slot in range(width):
            for row in np.flatnonzero(slots == slot):
                pool += [(-s, i, int(row)) for i, s in enumerate(scores[row]) if s > -np.inf]
            if pool:
                pool.sort()
                _, item, row = pool.pop(0)
                wanted.append((row, item, slot))
        parents, items, found = take(scores.copy(), slots, width)
        assert list(zip(parents.tolist(), items.tolist(), found.tolist(), strict=True)) == wanted


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), shown=st.sampled_from([0, 2]))
def test_exhaustive_beam_finds_the_optimum(seed: int, shown: int) -> None:
    random = np.random.default_rng(seed)
    candidates = int(random.integers(3, 6))
    scene = random_scene(seed, candidates, length=int(random.integers(1, 4)), shown=shown)
    model = list_model(seed, size=1.5)
    lists = list(all_lists(scene.walk, candidates))
    found = picks(Beam(model, len(lists), top=None), scene)
    wanted, worth = best_list(scene, lambda one: utility(model.step, VALUE, scene, one))
    assert utility(model.step, VALUE, scene, found) == pytest.approx(worth, rel=1e-12)
    assert float(model(scene, np.array([found], dtype=np.int32)).utility[0]) == pytest.approx(worth, rel=1e-9)
    assert len(found) == len(wanted)


def test_exhaustive_beam_finds_the_optimum_under_rules() -> None:
    """Among the lists that the independent checker passes, prices of soft rules taken off."""
    model, tally = ListModel(RULED, LIKED), Counter[str]()
    for seed in range(120):
        small = case(seed, candidates=6, length=4, rules=3, vectors=4, soft=0.4)
        try:
            walk = small.rules.open(small.pool, small.value, small.length, small.shown)
        except InfeasibleError:
            continue
        ask = SlateAsk(request_id="r", length=small.length, rules=small.rules, shown=small.shown)
        scene = Scene(ask, small.pool, small.value, walk, np.arange(len(small.pool)))
        every = [
            one
            for one in itertools.permutations(range(len(scene)), walk.length)
            if not small.rules.violations(
                scene.pool, np.array(one), walk.length, small.shown, walk.relaxations
            )
        ]
        if walk.relaxations:  # a rule that was given up in part is none for the checker
            tally["relaxed"] += 1
            continue
        found = picks(Beam(model, 400, top=None), scene)
        assert tuple(found) in every, seed
        worth = model(scene, np.array(every, dtype=np.int32)).utility
        assert worth[every.index(tuple(found))] == worth.max(), seed
        assert worth.max() == pytest.approx(utility(RULED, LIKED, scene, found), rel=1e-9), seed
        tally["hard" if not walk.priced else "soft"] += 1
        tally["several"] += len(every) > 1
    assert min(tally["hard"], tally["soft"], tally["several"]) >= 25, tally


@pytest.mark.slow
def test_exhaustive_beam_finds_the_optimum_of_seven_candidates() -> None:
    for seed in range(6):
        scene = random_scene(seed, 7, 4)
        model = list_model(seed, size=1.5)
        lists = np.array(list(all_lists(scene.walk, 7)), dtype=np.int32)
        best = float(model(scene, lists).utility.max())
        found = Beam(model, len(lists), top=None).propose(scene, free_budget())[0].picks
        assert float(model(scene, found[None]).utility[0]) == best


def test_width_one_is_greedy() -> None:
    """Against a greedy that asks for the whole list's value at every step."""
    for seed in range(10):
        scene = random_scene(seed, candidates=7, length=4)
        model = list_model(seed, size=1.5)
        so_far: list[int] = []
        for t in range(4):
            left = [i for i in range(7) if i not in so_far]
            lists = np.array([[*so_far, i] for i in left], dtype=np.int32)
            found = model(scene, lists)
            rest = (3 - t) * float(scene.value[:4].mean())
            onward = found.survival[:, -1] * (1.0 - found.hazard[:, -1])
            so_far.append(left[int((found.utility + onward * rest).argmax())])
        assert picks(Beam(model, 1, top=None), scene) == so_far


def test_all_candidates_is_unrestricted_and_top_m_is_not() -> None:
    restricted = 0
    for seed in range(20):
        scene = random_scene(seed, candidates=10, length=4)
        model = list_model(seed, size=1.5)
        everything = picks(Beam(model, 3, top=None), scene)
        assert picks(Beam(model, 3, top=10), scene) == everything
        narrow = picks(Beam(model, 3, top=5), scene)
        assert max(narrow) < 5
        restricted += narrow != everything
    assert restricted


def test_kept_lists_are_the_best_finished_ones() -> None:
    scene = random_scene(7, candidates=9, length=4)
    model = list_model(7, size=1.5)
    kept = Beam(model, 6, keep=3).propose(scene, free_budget())
    assert [one.generator for one in kept] == ["beam6"] * 3
    worth = [float(model(scene, one.picks[None]).utility[0]) for one in kept]
    assert worth == sorted(worth, reverse=True)
    assert len({tuple(one.picks.tolist()) for one in kept}) == 3


def test_work_is_linear_in_width_candidates_and_length() -> None:
    for width, candidates, length in ((1, 8, 4), (4, 8, 4), (4, 16, 8)):
        scene = random_scene(0, candidates, length)
        model = list_model()
        Beam(model, width).propose(scene, free_budget())
        search = StepSearch.of(model, scene)
        assert search.calls == length
        assert search.pairs <= length * width * candidates
        assert search.pairs == candidates + (length - 1) * width * candidates


def test_remaining_is_the_best_that_is_left() -> None:
    random = np.random.default_rng(2)
    value = np.sort(random.standard_normal(7))[::-1].copy()
    lists = np.array([[0, 3], [6, 1]], dtype=np.int32)
    for left in (1, 3, 4):
        found = remaining(value, lists, left)
        for beam in range(2):
            for item in set(range(7)) - set(lists[beam].tolist()):
                rest = [value[i] for i in range(7) if i not in lists[beam] and i != item]
                assert found[beam, item] == pytest.approx(sum(sorted(rest, reverse=True)[:left]))


def test_numbers_that_are_not_finite_end_the_search() -> None:
    scene = random_scene(0, candidates=6, length=3)
    model = list_model()
    tensors = dict(model.step.tensors)
    tensors["heads.bias"] = np.array([0, 0, 3e38], dtype=np.float32)
    tensors["groups.place.out.weight"] = np.full_like(tensors["groups.place.out.weight"], 3e38)
    broken = list_model()
    broken.step = StepModel(model.step.config, tensors)
    with np.errstate(all="ignore"), pytest.raises(SlateNanError):
        Beam(broken, 2).propose(scene, free_budget())


def test_settings_are_checked() -> None:
    for wrong in ({"width": 0}, {"top": 0}, {"keep": 0}):
        with pytest.raises(ConfigError, match="below 1"):
            Beam(list_model(), **wrong)  # type: ignore[arg-type]
