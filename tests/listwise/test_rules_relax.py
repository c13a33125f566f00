"""Relaxation, prices and paging on requests small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rule_cases import items
from slate_cases import HEADS, VALUE, list_model, random_pool

from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.pool import Head, Pool, Shown
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.rules.checker import check
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.relax import first_list
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.rules.walk import RuleWalk
from relaygr.listwise.slates import Slates


def rules(*each: dict[str, Any], **document: Any) -> RuleSet:
    named = [{"name": f"{one['kind']}{at}", **one} for at, one in enumerate(each)]
    return RuleSet(parse_rules({"id": "d", "rules": named, **document}))


def pool(**attributes: list[int]) -> Pool:
    """Candidates 0, 1, ... of falling value; ids are 100 + their index."""
    count = len(next(iter(attributes.values())))
    return Pool(
        ids=100 + np.arange(count),
        heads=(Head("like"),),
        outputs=np.linspace(1, 0, count, dtype=np.float32)[:, None],
        attributes={name: np.array(column) for name, column in attributes.items()},
    )


def opened(ruleset: RuleSet, candidates: Pool, length: int, **more: Any) -> tuple[RuleWalk, list[int]]:
    walk = ruleset.open(candidates, np.linspace(1, 0, len(candidates)), length, **more)
    picks = first_list(walk)
    assert picks is not None
    return walk, picks.tolist()


GAP = {"kind": "gap", "attribute": "author", "distance": 2}
CAP = {"kind": "cap", "attribute": "topic", "most": 1, "window": 2}
NEWS = {"kind": "minimum", "attribute": "news", "values": [1], "count": 2}
ADS = {"kind": "slot", "attribute": "ad", "values": [1], "positions": [1], "exclusive": True}


def test_a_rule_that_can_hold_costs_the_pointwise_order_only_what_it_must() -> None:
    walk, picks = opened(rules(GAP), pool(author=[1, 1, 1, 2, 3]), 4)
    assert picks == [0, 3, 1, 4]
    assert walk.relaxations == ()


def test_look_ahead_saves_others_for_the_later_positions() -> None:
    """Greedily 2 and 3 would be used up between the author's items too late: four of 1 need three others."""
    walk, picks = opened(rules(GAP), pool(author=[2, 3, 1, 1, 1]), 5)
    assert picks == [2, 0, 3, 1, 4]
    assert walk.relaxations == ()


def test_rules_are_given_up_in_their_order_and_no_more_than_needed() -> None:
    """One author, one topic, no news: everything is in the way; without the length, all of it goes."""
    here = pool(author=[1, 1, 1], topic=[5, 5, 5], news=[0, 0, 1], ad=[0, 0, 0])
    walk, picks = opened(rules(GAP, CAP, NEWS), here, 3)
    assert picks == [0, 1, 2]
    assert [(each.rule, each.position) for each in walk.relaxations] == [
        ("minimum2", 2),
        ("cap1", 1),
        ("gap0", 1),
    ]
    assert walk.relaxations[0].reason == "it needs 2 of 1 candidates within 3 positions"
    assert walk.relaxations[1].reason == "it leaves candidates for 1 of the first 2 positions"


def test_what_comes_first_in_the_order_yields_alone_if_that_is_enough() -> None:
    """News has the author twice: the quota and the gap cannot both hold, and the quota is the first to go."""
    here = pool(author=[1, 2, 3, 9, 9], news=[0, 0, 0, 1, 1])
    news = NEWS | {"within": 2}
    walk, picks = opened(rules(GAP, news), here, 3)
    assert [(each.rule, each.position) for each in walk.relaxations] == [("minimum1", 1)]
    assert walk.relaxations[0].reason == "no list of 3 satisfies it and gap0"
    # Its wish still counts: one of the two is there where the gap allows it.
    assert picks[:2] == [3, 0]
    # With the order turned round the gap goes.
    walk, picks = opened(rules(GAP | {"relax": 1}, news), here, 3)
    assert [(each.rule, each.position) for each in walk.relaxations] == [("gap0", 1)]
    assert picks == [3, 4, 0]


def test_an_earlier_rule_comes_back_if_a_later_one_was_all_that_was_in_the_way() -> None:
    """The gap cannot hold; dropping it is tried after the quota, which then holds again."""
    here = pool(author=[1, 1, 1], news=[0, 1, 1])
    walk, picks = opened(rules(GAP, NEWS), here, 3)
    assert [each.rule for each in walk.relaxations] == ["gap0"]
    assert picks == [0, 1, 2]


def test_what_is_never_relaxed_shortens_the_list_instead() -> None:
    """The slot at position 1 takes advertisements, and there is none."""
    here = pool(author=[1, 2, 3], ad=[0, 0, 0])
    walk, picks = opened(rules(ADS, GAP), here, 3)
    assert picks == [0]
    assert [(each.rule, each.position) for each in walk.relaxations] == [("length", 1)]
    assert walk.relaxations[0].reason == "it has 0 candidates for 1 positions"
    with pytest.raises(InfeasibleError, match="slot0: it has 0 candidates for 1 positions"):
        opened(rules(ADS, GAP), here, 3, allow_short=False)


def test_safety_eligibility_and_blocked_pairs_are_never_relaxed() -> None:
    here = pool(safe=[1, 0, 1, 1], author=[1, 2, 3, 4])
    safe = {"kind": "eligible", "attribute": "safe", "values": [1]}
    pairs = {"kind": "pairs", "pairs": [[100, 102], [100, 103], [102, 103]]}
    walk, picks = opened(rules(safe, pairs), here, 4)
    assert picks == [0]
    assert [each.rule for each in walk.relaxations] == ["length"]
    with pytest.raises(InfeasibleError, match="none of 4 candidates is eligible"):
        opened(rules(safe | {"values": [7]}), here, 4)
    with pytest.raises(InfeasibleError, match="3 eligible candidates for 4 positions"):
        opened(rules(safe), here, 4, allow_short=False)
    walk, picks = opened(rules(safe), here, 4)
    assert (picks, walk.relaxations[0].reason) == ([0, 2, 3], "3 eligible candidates for 4 positions")


def test_a_pin_holds_where_the_rules_let_it_and_its_absence_is_logged() -> None:
    here = pool(author=[1, 2, 2, 3])
    pin = {"kind": "pin", "item": 102, "position": 2}
    walk, picks = opened(rules(GAP, pin), here, 4)
    assert picks[2] == 2
    assert walk.relaxations == ()
    walk, _ = opened(rules(pin | {"item": 999}), here, 4)
    assert [(each.rule, each.position) for each in walk.relaxations] == [("pin0", 2)]
    assert walk.relaxations[0].reason == "item 999 is not an eligible candidate"


def test_the_room_before_a_pinned_author_is_kept_free_without_a_search() -> None:
    here = pool(author=[1, 2, 1, 3, 4, 5, 6, 7])
    walk, picks = opened(rules(GAP | {"distance": 3}, {"kind": "pin", "item": 102, "position": 2}), here, 5)
    assert picks == [1, 3, 2, 4, 5]  # candidate 0 is of the pinned author and has to wait
    assert walk.budget_hits == 0


def test_an_item_that_two_rules_pin_to_one_place_takes_that_place_once() -> None:
    here = pool(author=[1, 1, 2])
    pin = {"kind": "pin", "item": 101, "position": 1}
    most = {"kind": "maximum", "attribute": "author", "values": [1], "count": 1}
    walk, picks = opened(rules(pin, most, pin), here, 2)
    assert picks == [2, 1]
    assert walk.relaxations == ()


def test_soft_rules_are_priced_and_the_price_is_in_the_explanation() -> None:
    """A soft rule forbids nothing; what it takes is reported per pick and per list, U with it and without."""
    ranked = random_pool(np.random.default_rng(3), 30)
    soft = rules(
        {"kind": "cap", "attribute": "topic", "most": 1, "window": 4, "price": 0.05},
        {"kind": "maximum", "attribute": "author", "values": [1], "count": 1, "price": 3.0},
        {"kind": "minimum", "attribute": "format", "values": [2], "count": 3, "within": 4, "price": 0.2},
    )
    slates = Slates(VALUE, list_model())
    paid = 0
    for request in range(6):
        ranked = random_pool(np.random.default_rng(request), 30)
        result = slates.serve(SlateAsk(request_id=str(request), length=8, rules=soft), ranked)
        assert result.fallback_reason is None, result.error
        assert result.relaxations == ()
        parts = result.explanation
        assert parts is not None
        listed = items(ranked.ids[result.picks], {n: c[result.picks] for n, c in ranked.attributes.items()})
        broken = [(each.rule, each.position) for each in check(soft.document, [], listed)]
        charged = {(effect.rule, t) for t, pick in enumerate(parts.picks) for effect in pick.effects}
        assert charged == set(broken)
        paid += len(charged)
        assert parts.unpriced == pytest.approx(parts.utility + sum(parts.priced_by.values()))
        for name, price in parts.priced_by.items():
            terms = [
                pick.survival * effect.price
                for pick in parts.picks
                for effect in pick.effects
                if effect.rule == name
            ]
            assert price == pytest.approx(sum(terms))
    assert paid >= 6


def test_a_price_moves_the_fallback_as_far_as_it_is_worth() -> None:
    here = pool(topic=[5, 5, 6])

    def served(price: float) -> list[int]:
        soft = rules({"kind": "cap", "attribute": "topic", "most": 1, "window": 2, "price": price})
        walk = soft.open(here, np.array([1.0, 0.9, 0.5]), 3)
        assert not walk.relaxations
        made = walk.rescue(np.empty(0, dtype=np.int32), np.array([1.0, 0.9, 0.5]))
        assert made is not None
        return made.tolist()

    assert served(0.3) == [0, 1, 2]  # 0.9 - 0.3 is still more than 0.5
    assert served(0.5) == [0, 2, 1]


PAGED: list[tuple[str, dict[str, Any]]] = [
    ("gap", {"kind": "gap", "attribute": "author", "distance": 5}),
    ("cap in a window", {"kind": "cap", "attribute": "topic", "most": 2, "window": 7}),
    ("cap over the feed", {"kind": "cap", "attribute": "author", "most": 3}),
    ("maximum", {"kind": "maximum", "attribute": "topic", "values": [1], "count": 3}),
    ("pairs", {"kind": "pairs", "attribute": "author", "pairs": [[1, 2], [3, 4]]}),
    ("slot of the feed", {"kind": "slot", "attribute": "ad", "values": [1], "positions": [2], "every": 3,
                          "scope": "feed", "exclusive": True}),
    ("minimum of the feed", {"kind": "minimum", "attribute": "topic", "values": [2], "count": 3, "within": 8,
                             "scope": "feed"}),
]  # fmt: skip


@pytest.mark.parametrize("rule", [rule for _, rule in PAGED], ids=[name for name, _ in PAGED])
def test_rules_hold_across_the_page_border(rule: dict[str, Any]) -> None:
    """Three pages of four are right as one list of twelve; each page on its own would not always be."""
    alone_breaks = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        count = 60
        everything = pool(
            author=rng.integers(0, 9, count).tolist(),
            topic=rng.integers(0, 6, count).tolist(),
            ad=(rng.random(count) < 0.3).astype(int).tolist(),
        )
        ruleset = rules(rule)
        feed: list[int] = []
        alone: list[int] = []
        for _ in range(3):
            for listed, knows in ((feed, True), (alone, False)):
                past = np.array(listed, dtype=np.int64)
                rest = np.setdiff1d(np.arange(count), past)
                shown = Shown(
                    ids=everything.ids[past],
                    attributes={name: column[past] for name, column in everything.attributes.items()},
                )
                walk, picks = opened(ruleset, everything.select(rest), 4, shown=shown if knows else None)
                assert not (knows and walk.relaxations)
                listed.extend(rest[picks].tolist())
        assert len(set(feed)) == 12
        read = items(everything.ids, everything.attributes)
        assert not check(ruleset.document, [], [read[at] for at in feed]), seed
        alone_breaks += bool(check(ruleset.document, [], [read[at] for at in alone]))
    assert alone_breaks


def test_rules_of_a_list_begin_anew_on_each_page() -> None:
    slot = {"kind": "slot", "attribute": "ad", "values": [1], "positions": [1], "exclusive": True}
    here = pool(ad=[0, 1, 0, 1, 0, 0])
    shown = Shown(ids=np.array([7, 8]), attributes={"ad": np.array([0, 1])})
    _, picks = opened(rules(slot), here, 3, shown=shown)
    assert picks == [0, 1, 2]


def test_a_served_page_carries_the_rules_of_the_pages_before_it() -> None:
    ranked = random_pool(np.random.default_rng(0), 40)
    ruleset = rules(GAP | {"distance": 4}, {"kind": "cap", "attribute": "topic", "most": 2, "window": 6})
    slates = Slates(VALUE, list_model(), mode=Mode.ON)
    assert ranked.heads == HEADS
    shown, feed = None, []
    for page in range(3):
        ask = SlateAsk(request_id=f"p{page}", length=5, rules=ruleset, shown=shown)
        result = slates.serve(ask, ranked)
        assert result.fallback_reason is None, result.error
        assert result.relaxations == ()
        feed.extend(result.picks.tolist())
        shown = Shown(
            ids=ranked.ids[feed],
            attributes={name: column[feed] for name, column in ranked.attributes.items()},
            vectors=ranked.vectors[feed],  # type: ignore[index]
            watch=np.zeros(len(feed)),
            page=page + 1,
        )
    read = items(ranked.ids, ranked.attributes)
    assert len(set(feed)) == 15
    assert not check(ruleset.document, [], [read[at] for at in feed])


def test_a_narrowed_walk_holds_the_same_rules_and_the_demand() -> None:
    rng = np.random.default_rng(1)
    here = pool(author=rng.integers(0, 8, 40).tolist(), topic=rng.integers(0, 5, 40).tolist())
    ruleset = rules(GAP | {"distance": 3}, CAP)
    walk, picks = opened(ruleset, here, 8)
    columns = np.union1d(np.arange(12), picks)
    favoured = columns < 10
    narrow = walk.narrow(columns, favoured, 3)
    marks, made = narrow.start(), list[int]()
    for t in range(8):
        mask = narrow.feasible(marks, t)[0]
        made.append(int(np.flatnonzero(mask)[-1]))  # the worst that is allowed
        marks = narrow.step(marks, t, np.zeros(1, dtype=np.int64), np.array(made[-1:]))
    assert favoured[made].sum() >= 3
    assert not ruleset.violations(here, columns[made].astype(np.int32), 8, None, ())
    with pytest.raises(ValueError, match="one demand"):
        narrow.narrow(np.arange(len(columns)), favoured, 1)
