"""What an independent judge says of lists for logged requests that nobody learned from."""

from __future__ import annotations

import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.generators.one_shot import OneShot
from relaygr.listwise.list_net import ListNet
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Pool
from relaygr.listwise.proposal import Budget
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.judge import JudgedReport, judged
from relaygr.training.slate.read_log import ReadLog

Requests = tuple[list[Scene], list[Pool], Int64]


def logged_requests(log: ReadLog, value: ValueFunction, most: int) -> Requests | None:
    """Requests without rules from first pages with candidates, and their places in the log; None for none."""
    plain = Slates(value, mode=Mode.OFF)
    kept = [n for n, each in enumerate(log.candidates) if each is not None and log.logs.page[n] == 0]
    if not kept:
        return None
    asked = int(np.bincount(log.logs.asked[kept]).argmax())  # the most frequent length
    scenes, pools, rows = [], [], []
    for n in kept:
        pool = log.pool(n) if log.logs.asked[n] == asked else None
        if pool is None or len(pool) < asked:
            continue
        pools.append(pool)
        scenes.append(plain.scene(SlateAsk(request_id=f"logged {n}", length=asked), pool))
        rows.append(n)
        if len(rows) == most:
            break
    if not scenes:
        return None
    return scenes, pools, np.array(rows, dtype=np.int64)


def verdict_of(
    held: ReadLog,
    requests: Requests,
    model: ListModel,
    nets: tuple[ListNet, ListNet],
    shot: OneShot | None,
) -> JudgedReport:
    """What the judge says of lists by the step model, by the trained evaluator, and of the pointwise ones."""
    value, (net, judge), (scenes, pools, rows) = model.value, nets, requests
    chosen = TrainedEvaluator(net, value)
    ranked = [np.argsort(scene.columns) for scene in scenes]

    def lists(slates: Slates) -> list[Int32]:
        made = [slates.serve(scene.ask, pool).picks for scene, pool in zip(scenes, pools, strict=True)]
        return [back[picks].astype(np.int32) for back, picks in zip(ranked, made, strict=True)]

    policies = {
        "rescore": lists(Slates(value, model)),
        "evaluator": lists(Slates(value, model, evaluator=chosen)),
        "pointwise": lists(Slates(value, mode=Mode.OFF)),
    }
    selectors = [model.step.lineage, net.lineage]
    if shot is not None:
        free = Budget(ManualClock())
        policies["one_shot"] = [shot.propose(scene, free)[0].picks for scene in scenes]
        selectors.append(shot.lineage)
    return judged(
        TrainedEvaluator(judge, value),
        selectors,
        scenes,
        held.logs.users[rows].tolist(),
        policies,
        {"rescore": Rescore([model]), "evaluator": chosen},
    )
