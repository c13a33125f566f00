"""Several windows and minimums together: where a list is known to be there, no rule is given up."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.bench.slate_openings import Planted
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.rules.document import Cap, Minimum, Pairs, RuleDocument
from relaygr.listwise.rules.relax import GRACE_NODES
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.rules.search import ClassSearch


@pytest.mark.parametrize(
    "sizes",
    [
        Planted(),
        Planted(topics=3, authors=6),
        Planted(topics=6, authors=20),
        Planted(share=0.0),
        Planted(minimums=3),
        Planted(count=4, topics=5),
        Planted(window=4, topics=5, authors=9),
        Planted(candidates=300, length=20, minimums=4, topics=6, authors=12, count=5, share=0.02),
        Planted(candidates=300, length=30, authors=10, count=6, share=0.02),
    ],
    ids=str,
)
def test_no_rule_is_given_up_where_a_list_is_there(sizes: Planted) -> None:
    for seed in range(8):
        rules, pool = sizes.request(seed)
        walk = rules.open(pool, np.linspace(1, 0, len(pool)), sizes.length)
        assert walk.relaxations == (), seed
        picks = walk.first if walk.witness is None else walk.witness
        assert picks is not None
        assert not rules.violations(pool, picks, sizes.length, None, ())


def test_counting_over_rules_finds_dead_ends_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two disjoint classes, each demanded where the other's items fill the windows."""
    made = 0
    children = ClassSearch._children

    def counted(self: ClassSearch, *args: object) -> object:
        nonlocal made
        made += len(self._rules) > 2
        return children(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ClassSearch, "_children", counted)
    topic = np.array([0] * 8 + [1] * 8 + [2] * 24)
    rules = RuleSet(
        RuleDocument(
            id="tight",
            rules=(
                Cap(name="topics", attribute="topic", most=1, window=4, relax="never"),
                Minimum(name="zeros", attribute="topic", values=(0, 1), count=6, relax="never"),
                Minimum(name="ones", attribute="half", values=(1,), count=1, relax="never"),
            ),
        )
    )
    half = (np.arange(40) % 2).astype(np.int64)
    pool = Pool(
        ids=np.arange(40, dtype=np.int64),
        heads=(Head("like"),),
        outputs=np.linspace(1, 0, 40, dtype=np.float32)[:, None],
        attributes={"topic": topic.astype(np.int64), "half": half},
    )
    with pytest.raises(InfeasibleError):
        rules.open(pool, np.linspace(1, 0, 40), 8, allow_short=False)
    assert made == 0


def test_without_time_nothing_is_searched_and_rules_go_that_the_pointwise_list_breaks() -> None:
    rules, pool = Planted(share=0.0).request(3)
    value = np.linspace(1, 0, len(pool))
    assert not rules.open(pool, value, 10).relaxations
    walk = rules.open(pool, value, 10, late=lambda: True)
    assert {one.rule for one in walk.relaxations} == {"class0", "class1"}
    assert all("in time" in one.reason for one in walk.relaxations)
    picks = walk.rescue(np.array([], dtype=np.int32), value)
    assert picks is not None
    assert not rules.violations(pool, picks, 10, None, walk.relaxations)


def test_rules_that_are_never_given_up_keep_a_few_nodes_when_the_time_is_over() -> None:
    """Of the best two and the third only the third fits behind the pair's partner."""
    pool = Pool(
        ids=np.arange(3, dtype=np.int64),
        heads=(Head("like"),),
        outputs=np.array([[3], [2], [1]], dtype=np.float32),
        attributes={"topic": np.array([0, 1, 2])},
    )
    rules = RuleSet(RuleDocument(id="pairs", rules=(Pairs(name="rivals", pairs=((0, 1), (0, 2))),)))
    looks = 0

    def late() -> bool:
        nonlocal looks
        looks += 1
        return True

    walk = rules.open(pool, np.array([3.0, 2.0, 1.0]), 2, allow_short=False, late=late)
    assert walk.witness is not None
    assert walk.witness.tolist() == [1, 2]
    assert not walk.relaxations
    assert looks < GRACE_NODES


def test_the_search_stops_soon_after_the_time_is_over() -> None:
    """However hard the rules are: a count of looks at the clock bounds the states behind it."""
    sizes = Planted(candidates=120, length=20, minimums=5, topics=4, authors=6, count=6, share=0.0)
    for seed in range(5):
        rules, pool = sizes.request(seed)
        looks = 0

        def late() -> bool:
            nonlocal looks
            looks += 1
            return looks > 10

        walk = rules.open(pool, np.linspace(1, 0, len(pool)), sizes.length, late=late)
        picks = walk.first if walk.witness is None else walk.witness
        assert picks is None or not rules.violations(pool, picks, walk.length, None, walk.relaxations)
        assert looks < 60
