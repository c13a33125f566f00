"""The serving loop under rules: none is broken, priced ones are explained, pages go on, day 0 is kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from slate_cases import VALUE, list_model, random_pool, random_shown, zero_model

from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.pool import Pool, Shown
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.result import Stage
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import Slates, default_generators

GAP = {"kind": "gap", "name": "gap", "attribute": "author", "distance": 3}
CAP = {"kind": "cap", "name": "cap", "attribute": "topic", "most": 2, "window": 5}
FORMATS = {"kind": "minimum", "name": "formats", "attribute": "format", "values": [1, 2], "count": 3}
ADS = {
    "kind": "slot",
    "name": "ads",
    "attribute": "audio",
    "values": [3],
    "positions": [1, 4],
    "exclusive": True,
}


def rules(*entries: dict[str, object]) -> RuleSet:
    return RuleSet(parse_rules(json.dumps({"id": "r1", "rules": entries}).encode()))


HARD = rules(GAP, CAP, FORMATS, ADS)
MODEL = list_model(1, size=1.5)


def ask(seed: int, ruleset: RuleSet, shown: Shown | None = None, length: int = 6) -> SlateAsk:
    return SlateAsk(request_id=f"r{seed}", length=length, rules=ruleset, shown=shown)


def keeps(pool: Pool, picks: np.ndarray, before: dict[str, list[int]] | None = None) -> bool:
    """Gap, cap, minimum and slots, read off the finished list."""
    line = {name: list((before or {}).get(name, [])) for name in ("author", "topic")}
    for pick in picks:
        for name, past in line.items():
            past.append(int(pool.attributes[name][pick]))
    gap = all(
        author == -1 or author not in line["author"][max(at - 2, 0) : at]
        for at, author in enumerate(line["author"])
    )
    cap = all(
        topic == -1 or line["topic"][max(at - 4, 0) : at + 1].count(topic) <= 2
        for at, topic in enumerate(line["topic"])
    )
    formats = int(np.isin(pool.attributes["format"][picks], (1, 2)).sum()) >= 3
    ads = all((pool.attributes["audio"][pick] == 3) == (t in (1, 4)) for t, pick in enumerate(picks))
    return gap and cap and formats and ads


def test_no_list_of_the_pool_breaks_a_rule() -> None:
    generators = default_generators(MODEL)
    more = (*generators[Stage.GENERATORS], PlackettLuce(), Beam(MODEL, 8, top=None, keep=4, name="wide"))
    slates = Slates(VALUE, MODEL, generators={**generators, Stage.GENERATORS: more})
    chosen = set()
    for seed in range(25):
        pool = random_pool(np.random.default_rng(seed), 60)
        result = slates.serve(ask(seed, HARD), pool)
        assert result.error == ""
        assert result.relaxations == ()
        for each in result.pool:
            assert keeps(pool, each.picks), each.generator
        chosen.add(result.generator)
    assert len(chosen) > 1


def test_untrained_greedy_is_the_repaired_order() -> None:
    """A beam may find a better repair than the one that is made position by position."""
    model = zero_model()
    slates, repaired = Slates(VALUE, model, generators={Stage.GREEDY: (Beam(model, 1),)}), 0
    for seed in range(15):
        pool = random_pool(np.random.default_rng(seed), 60)
        result = slates.serve(ask(seed, HARD), pool)
        assert result.generator == "pointwise"
        assert result.pool[0].also == ("greedy",)
        value = VALUE(pool.natural())
        repaired += result.picks.tolist() != np.argsort(-value, kind="stable")[:6].tolist()
    assert repaired == 15


def test_prices_are_explained_and_sum() -> None:
    soft = rules({**GAP, "price": 0.5}, {**CAP, "price": 0.25, "most": 1})
    slates, paid = Slates(VALUE, MODEL), 0
    for seed in range(10):
        pool = random_pool(np.random.default_rng(seed), 25)
        explanation = slates.serve(ask(seed, soft), pool).explanation
        assert explanation is not None
        for part in explanation.picks:
            prices = sum(effect.price for effect in part.effects)
            assert part.value == pytest.approx(sum(part.value_terms) + part.clipping - prices, abs=1e-12)
        assert set(explanation.priced_by) <= {"gap", "cap"}
        taken = sum(explanation.priced_by.values())
        assert explanation.unpriced == pytest.approx(explanation.utility + taken, abs=1e-12)
        assert sum(part.contribution for part in explanation.picks) == explanation.utility
        paid += taken > 0
    assert paid


def test_rules_go_on_across_the_page() -> None:
    slates = Slates(VALUE, MODEL)
    for seed in range(10):
        random = np.random.default_rng(seed)
        pool, shown = random_pool(random, 60), random_shown(random, 5)
        result = slates.serve(ask(seed, HARD, shown), pool)
        if result.relaxations:
            continue
        # What was shown may itself break the rules, so that only pairs with a new item count.
        before = {name: shown.attributes[name].tolist() for name in ("author", "topic")}
        first = pool.attributes["author"][result.picks[0]]
        assert first == -1 or first not in before["author"][-2:]
        second = pool.attributes["author"][result.picks[1]]
        assert second == -1 or second != before["author"][-1]


def test_relaxed_rules_are_in_the_result() -> None:
    pool = random_pool(np.random.default_rng(0), 12)
    pool = Pool(
        ids=pool.ids,
        heads=pool.heads,
        outputs=pool.outputs,
        attributes={**pool.attributes, "author": np.zeros(12, dtype=np.int64)},
        vectors=pool.vectors,
    )
    slates = Slates(VALUE, MODEL)
    result = slates.serve(ask(0, rules(GAP)), pool)
    assert len(result.items) == 6
    assert [each.rule for each in result.relaxations] == ["gap"]
    assert slates.counts.snapshot()["relaxed", "gap"] == 1
