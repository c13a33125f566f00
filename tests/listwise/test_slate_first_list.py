"""The pointwise list that rules made when they were opened is the one that decoding makes."""

from __future__ import annotations

import numpy as np
from rule_cases import case
from slate_cases import random_scene

from relaygr.core.clock import ManualClock
from relaygr.listwise.decode import best, decode
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.proposal import Budget
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.scene import Scene

BUDGET = Budget(ManualClock())


def decoded(scene: Scene) -> list[int]:
    made = decode(scene, "decoded", lambda t, picks, mask, value: best(mask, value), BUDGET)
    picks: list[int] = made[0].picks.tolist()
    return picks


def test_under_random_rules() -> None:
    known = 0
    for seed in range(400):
        one = case(seed, candidates=24, length=6, rules=3, shown=6, authors=8)
        try:
            walk = one.rules.open(one.pool, one.value, one.length, one.shown)
        except InfeasibleError:
            continue
        ask = SlateAsk(request_id=str(seed), length=one.length, rules=one.rules, shown=one.shown)
        scene = Scene(ask, one.pool, one.value, walk, np.arange(len(one.pool)))
        known += walk.first is not None and not walk.priced
        assert Pointwise().propose(scene, BUDGET)[0].picks.tolist() == decoded(scene), seed
    assert known >= 50


def test_without_rules() -> None:
    for seed in range(30):
        scene = random_scene(seed, 30, 8, shown=seed % 3, ties=True)
        assert scene.walk.first is not None
        assert Pointwise().propose(scene, BUDGET)[0].picks.tolist() == decoded(scene)
