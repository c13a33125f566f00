"""MMR, DPP, SSD and demotion against their formulas computed anew; ties, windows, errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from rule_cases import Case, case

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.generators import reference
from relaygr.listwise.generators.demotion import Demotion
from relaygr.listwise.generators.dpp import SMALLEST, Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.generators.relevance import scale_of
from relaygr.listwise.generators.reweighted import Reweighted
from relaygr.listwise.generators.similarity import similarity
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.scene import Scene

BUDGET = Budget(ManualClock())
KINDS = ("gap", "cap", "maximum", "pairs")


def scene_of(big: Case) -> Scene:
    walk = big.rules.open(big.pool, big.value, big.length, big.shown)
    ask = SlateAsk(request_id="r", length=big.length, rules=big.rules, shown=big.shown)
    return Scene(ask, big.pool, big.value, walk, np.arange(len(big.pool)))


def scene(seed: int, *, soft: float = 0.15, vectors: int = 16) -> Scene:
    return scene_of(
        case(
            seed,
            candidates=22,
            length=8,
            rules=3,
            shown=5,
            kinds=KINDS,
            authors=6,
            vectors=vectors,
            soft=soft,
        )
    )


# (generator, score of candidate i given rel [C + n], similarities, vectors, attributes, picks)
Naive = Callable[..., float]
FORMULAS: list[tuple[Mmr | Dpp | Ssd | Demotion, Naive]] = [
    (Mmr(trade=0.7), lambda g, rel, sim, vec, att, picks, i: reference.mmr(g.trade, rel[i], sim, picks, i)),
    (
        Mmr(trade=0.2, carry=0),
        lambda g, rel, sim, vec, att, picks, i: reference.mmr(0.2, rel[i], sim, picks, i),
    ),
    (
        Mmr(trade=0.6, window=3, positive=True, relevance="raw"),
        lambda g, rel, sim, vec, att, picks, i: reference.mmr(
            0.6, rel[i], np.maximum(vec @ vec.T, 0.0), picks[-2:], i
        ),
    ),
    (Dpp(strength=1.0), lambda g, rel, sim, vec, att, picks, i: reference.dpp(1.0, rel, sim, picks, i)),
    (
        Dpp(strength=0.3, window=3, relevance="raw"),
        lambda g, rel, sim, vec, att, picks, i: reference.dpp(0.3, rel, sim, picks[-2:], i),
    ),
    (
        Ssd(strength=0.6, window=4),
        lambda g, rel, sim, vec, att, picks, i: reference.ssd(0.6, rel[i], vec, picks[-3:], i),
    ),
    (
        Ssd(strength=2.0, window=2, relevance="raw"),
        lambda g, rel, sim, vec, att, picks, i: reference.ssd(2.0, rel[i], vec, picks[-1:], i),
    ),
    (
        Demotion(),
        lambda g, rel, sim, vec, att, picks, i: reference.demotion(
            g.factors, max(rel[i], 0.0), att, picks, i
        ),
    ),
    (
        Demotion(factors={"author": (0.9, 0.3), "class": (1.0, 0.0)}, carry=1, relevance="raw"),
        lambda g, rel, sim, vec, att, picks, i: reference.demotion(
            g.factors, max(rel[i], 0.0), att, picks, i
        ),
    ),
]


@pytest.mark.parametrize(("generator", "naive"), FORMULAS, ids=[f"{at}" for at in range(len(FORMULAS))])
def test_scores_are_those_of_the_formula_along_the_whole_list(
    generator: Mmr | Dpp | Ssd | Demotion, naive: Naive
) -> None:
    for seed in range(8):
        here = scene(seed)
        (made,) = generator.propose(here, BUDGET)
        shown = here.ask.shown
        carry = 0 if shown is None else min(generator.carry, len(shown))
        recent = slice(0) if shown is None or not carry else slice(len(shown) - carry, None)
        sim = similarity(here, generator.carry)
        vectors = here.pool.vectors
        attributes = {name: column.tolist() for name, column in here.pool.attributes.items()}
        if shown is not None:
            vectors = np.concatenate([vectors, shown.vectors[recent]])
            attributes = {
                name: column + shown.attributes[name][recent].tolist() for name, column in attributes.items()
            }
        vectors = vectors.astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        picks = list(range(len(here), len(here) + carry))
        scorer, scale = generator.scorer(here), scale_of(here, generator.relevance)
        walk, marks = here.walk, here.walk.start()
        for t, item in enumerate(made.picks.tolist()):
            value = here.value - walk.price(marks, t)[0] if walk.priced else here.value
            rel = np.concatenate([scale(value), np.zeros(carry)])
            scores = scorer.scores(value)
            wanted = np.array(
                [naive(generator, rel, sim, vectors, attributes, picks, i) for i in range(len(here))]
            )
            mask = walk.allowed(marks, t)[0]
            if isinstance(generator, Dpp):
                scores = np.exp(scores)
                open_ones = np.array([i not in picks for i in range(len(here))])
                scores, wanted = np.where(open_ones, scores, 0.0), np.where(open_ones, wanted, 0.0)
            np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-9)
            assert wanted[item] >= wanted[mask].max() - 1e-9
            picks.append(item)
            scorer.take(item)
            marks = walk.step(marks, t, np.zeros(1, dtype=np.int64), np.array([item]))


def plain(
    value: list[float], vectors: np.ndarray | None, attributes: dict[str, list[int]], length: int
) -> Scene:
    pool = Pool(
        ids=np.arange(len(value), dtype=np.int64),
        heads=(Head("like"),),
        outputs=np.array(value, dtype=np.float32)[:, None],
        attributes={name: np.array(column) for name, column in attributes.items()},
        vectors=None if vectors is None else vectors.astype(np.float32),
    )
    ask = SlateAsk(request_id="r", length=length)
    worth = np.array(value, dtype=np.float64)
    walk = ask.rules.open(pool, worth, length)
    return Scene(ask, pool, worth, walk, np.arange(len(value)))


@pytest.mark.parametrize(
    "generator",
    [
        Mmr(),
        Dpp(),
        Dpp(window=3),
        Ssd(),
        Demotion(),
        Pointwise(),
        Reweighted("same", lambda natural: natural[0]),
    ],
    ids=lambda generator: generator.name,
)
def test_ties_go_to_the_better_pointwise_rank(generator: Generator) -> None:
    """All values, vectors and attributes are equal, so that nothing but the rank decides."""
    vectors = np.zeros((6, 3))
    vectors[:, 0] = 1.0
    here = plain([0.5] * 6, vectors, {"author": [1] * 6, "topic": [1] * 6}, 6)
    (made,) = generator.propose(here, BUDGET)
    assert made.picks.tolist() == [0, 1, 2, 3, 4, 5]


def test_dpp_fills_in_pointwise_order_when_nothing_new_is_left() -> None:
    """Two directions, and (1 + cosine) / 2 has rank 3 at most: behind that every ratio is rounding."""
    angle = np.array([0.0, 0.0, 1.5, 1.5, 0.0, 1.5, 0.0])
    here = plain([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], np.stack([np.cos(angle), np.sin(angle)], 1), {}, 7)
    generator = Dpp(strength=1.0)
    (made,) = generator.propose(here, BUDGET)
    assert made.picks.tolist() == [0, 2, 1, 3, 4, 5, 6]
    scorer = generator.scorer(here)
    for item in (0, 2):
        scorer.take(item)
    assert np.exp(scorer.scores(here.value)).max() < SMALLEST


EVERY: tuple[Generator, ...] = (
    Mmr(),
    Mmr(trade=0.0),
    Dpp(),
    Dpp(window=2),
    Dpp(strength=0.0),
    Ssd(),
    Ssd(strength=1e6),
    Demotion(factors={"flagged": (0.0,)}),
    Pointwise(),
    PlackettLuce(draws=3),
    PlackettLuce(temperature=1e-320),  # a quotient by it is infinite
    Reweighted("nothing", lambda natural: np.full(natural.shape[1], -np.inf)),
    Reweighted("unknown", lambda natural: np.full(natural.shape[1], np.nan)),
)


@pytest.mark.parametrize("generator", EVERY, ids=lambda generator: generator.name)
@pytest.mark.parametrize("flagged", [[0], [0, 1], [1, 3]])
def test_a_candidate_that_is_barred_is_never_picked(generator: Generator, flagged: list[int]) -> None:
    """Not even where no other one adds anything to the picks: all that are left are copies of them."""
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]])
    pool = Pool(
        ids=np.arange(5) + 7,
        heads=(Head("like"),),
        outputs=np.array([[2.0], [1.0], [0.0], [-1.0], [-2.0]], dtype=np.float32),
        attributes={"flagged": np.isin(np.arange(5), flagged).astype(np.int64)},
        vectors=vectors.astype(np.float32),
    )
    barred = {"kind": "eligible", "name": "safe", "attribute": "flagged", "values": [1], "deny": True}
    rules = RuleSet(parse_rules({"id": "r", "rules": [barred]}))
    value = np.array([0.9, 0.7, 0.5, 0.3, 0.1])
    ask = SlateAsk(request_id="r", length=3, rules=rules)
    walk = rules.open(pool, value, 3)
    here = Scene(ask, pool, value, walk, np.arange(5))
    made = generator.propose(here, BUDGET)
    assert made
    for one in made:
        assert not rules.violations(pool, one.picks, 3, None, walk.relaxations), one.picks


def test_mmr_takes_variety_for_value_as_its_weight_says() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    here = plain([1.0, 0.9, 0.0], vectors, {}, 3)
    assert Mmr(trade=1.0).propose(here, BUDGET)[0].picks.tolist() == [0, 1, 2]
    assert Mmr(trade=0.3).propose(here, BUDGET)[0].picks.tolist() == [0, 2, 1]


def test_a_window_forgets() -> None:
    """With windows of 2 the third pick may be like the first again."""
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    here = plain([1.0, 0.9, 0.8, 0.7], vectors, {}, 4)
    assert Ssd(strength=5.0, window=2).propose(here, BUDGET)[0].picks.tolist() == [0, 1, 2, 3]
    longer = Ssd(strength=5.0, window=4).propose(here, BUDGET)[0].picks.tolist()
    assert longer == [0, 1, 2, 3]  # nothing is new from the third on: the value decides
    assert Dpp(strength=0.1, window=2).propose(here, BUDGET)[0].picks.tolist() == [0, 1, 2, 3]


def test_shown_items_count_as_picks() -> None:
    """The best candidate is a copy of what was shown last, so that re-rankers start elsewhere."""
    seeds = (seed for seed in range(5, 60) if case(seed, candidates=22, length=6, shown=5, vectors=16).shown)
    big = case(next(seeds), candidates=22, length=6, rules=1, kinds=("eligible",), shown=5, vectors=16)
    assert big.shown is not None
    assert big.pool.vectors is not None
    big.pool.vectors[0] = big.shown.vectors[-1]  # type: ignore[index]
    here = scene_of(big)
    near = Mmr(trade=0.0).scorer(here).scores(here.value)
    assert near[0] == pytest.approx(-1.0)
    assert Mmr(trade=0.0, carry=0).scorer(here).scores(here.value)[0] == 0.0
    assert Ssd().scorer(here).scores(here.value)[0] == pytest.approx(scale_of(here, "unit")(here.value)[0])
    assert np.isneginf(Dpp().scorer(here).scores(here.value)[0])


def test_without_vectors_similarity_is_the_share_of_equal_attributes() -> None:
    here = plain([3.0, 2.0, 1.0], None, {"author": [1, 1, -1], "topic": [4, 5, 5]}, 3)
    assert similarity(here).tolist() == [[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]]
    with pytest.raises(RequestError, match="vectors"):
        Ssd().propose(here, BUDGET)


def test_similarity_is_positive_semi_definite_in_its_range_and_of_unit_diagonal() -> None:
    for seed in range(6):
        for vectors in (0, 16):
            sim = similarity(scene(seed, vectors=vectors), 3)
            assert np.linalg.eigvalsh(sim).min() > -1e-9
            assert (sim == sim.T).all()
            assert (np.diag(sim) == 1.0).all()
            assert sim.min() >= 0.0
            assert sim.max() <= 1.0


def test_reweighted_follows_the_other_values() -> None:
    here = plain([0.9, 0.8, 0.7], None, {}, 3)
    (made,) = Reweighted("reversed", lambda natural: -natural[0]).propose(here, BUDGET)
    assert made.picks.tolist() == [2, 1, 0]
    assert made.generator == "reweighted(reversed)"


def test_settings_out_of_range_name_field_value_and_limit() -> None:
    for make, message in (
        (lambda: Mmr(window=1), r"mmr\.window: 1 must be in \[2, 1000\]"),
        (lambda: Mmr(trade=1.5), r"mmr\.trade: 1\.5 must be in \[0, 1\]"),
        (lambda: Dpp(window=1), r"dpp\.window: 1 must be in \[2, 1000\]"),
        (lambda: Ssd(strength=-1.0), r"ssd\.strength: -1\.0 must be in \[0, 1000000\]"),
        (
            lambda: Demotion(factors={"author": (1.0, 1.5)}),
            r"demotion\.factors\.author: 1\.5 must be in \[0, 1\]",
        ),
        (lambda: Demotion(factors={"author": ()}), r"demotion\.factors\.author: \[\] must hold"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
    with pytest.raises(RequestError, match="below 0"):
        Demotion(relevance="raw").propose(plain([0.5, -0.5], None, {}, 2), BUDGET)
