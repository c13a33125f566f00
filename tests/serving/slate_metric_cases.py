"""Slates of every kind, told to whoever counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from relaygr.core.errors import OverloadError, RequestError
from relaygr.engine.slate.maker import Made
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.explain import Explanation
from relaygr.listwise.masks import Relaxation
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.request import Mode
from relaygr.listwise.result import Candidate, Dropped, Exploration, Reason, SlateResult, Stage, Versions
from relaygr.serving.slate.inflation import ListName
from relaygr.serving.slate.log_metrics import Fate
from relaygr.serving.slate.metrics import SlateMetrics
from relaygr.serving.snapshot import Latency, Slates, Tally

POOL = Pool(
    ids=np.arange(4),
    heads=(Head("like"),),
    outputs=np.zeros((4, 1), np.float32),
    attributes={"author": np.array([1, 1, -1, 2])},
    vectors=np.eye(4, dtype=np.float32),
)


def lists() -> tuple[Candidate, ...]:
    first, second = np.array([0, 1, 2], np.int32), np.array([0, 1, 3], np.int32)
    return Candidate("pointwise", (), first, 1.0, 1.0), Candidate("greedy", (), second, 2.0, 2.0)


def result(**changes: object) -> SlateResult:
    """A list by greedy search."""
    one = SlateResult(
        request_id="r",
        items=np.array([0, 1, 3]),
        picks=np.array([0, 1, 3], np.int32),
        generator="greedy",
        mode=Mode.ON,
        versions=Versions("v", "r"),
        stage_reached=Stage.EVALUATION,
        utility=1.5,
        lower_bound=2.0,
        stage_ms=dict.fromkeys((*Stage, "explanation"), 1.0),
        context={"similarity:max": 0.5},
        pool=lists(),
        explanation=Explanation((), utility=1.5, unpriced=2.0, priced_by={"authors": 0.5}),
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def made(one: SlateResult) -> Made:
    return Made(one, POOL, np.zeros(4), unknown=1)


def tell_slates(metrics: SlateMetrics) -> None:
    """One of everything."""
    relaxed = tuple(Relaxation(rule, 0, "why") for rule in ("authors", "length", "of a request"))
    shadow = result(fallback_reason=Reason.SHADOW, mode=Mode.SHADOW, shadow=result(), generator="pointwise")
    broken = Dropped("dpp(1)", ("safe: position 0: item 3 has flagged 1",))
    late = result(
        stage_reached=Stage.GREEDY,
        fallback_reason=Reason.DEADLINE,
        generator="pointwise",
        exploration=Exploration.DEADLINE,
    )
    for at, one in enumerate(
        (
            result(relaxations=relaxed, unrestricted=True, lookahead_budget=2, dropped=(broken,)),
            shadow,
            late,
            result(mode=Mode.OFF, fallback_reason=Reason.OFF, stage_reached=Stage.FALLBACK, pool=()),
        )
    ):
        metrics.made(made(one), ListName("shop", f"r{at}"), 0.001, 0.01, ["authors"])
    for error in (RequestError("length", "0"), InfeasibleError("ads", "none"), OverloadError("full", 50.0)):
        metrics.rejected(error)
    metrics.outcome(ListName("shop", "r0"), 1.8)
    for fate in Fate:
        metrics.log.tell(fate)


def slates() -> Slates:
    """A list layer at work, as the status page shows it."""
    latency = Latency(count=40, p50_ms=3.0, p95_ms=4.0, p99_ms=5.0)
    return Slates(
        mode="on",
        value="reels-v7@01234567",
        rules="feed@89abcdef",
        step="step@01234567",
        waiting=2,
        minute=latency,
        five_minutes=Latency(count=80, p50_ms=3.5, p95_ms=4.5, p99_ms=6.0),
        chosen=[
            Tally(name=name, minute=amount, five_minutes=2 * amount)
            for name, amount in (
                ("beam4", 20),
                ("greedy", 10),
                ("pointwise", 5),
                ("mmr(0.7)", 3),
                ("one_shot", 1),
                ("dpp(1)", 1),
            )
        ],
        fallbacks=[
            Tally(name="deadline", minute=3, five_minutes=4),
            Tally(name="nan", minute=1, five_minutes=1),
        ],
        relaxed=[Tally(name="authors", minute=2, five_minutes=3)],
        refused=[Tally(name="overload", minute=0, five_minutes=1)],
        timeouts=4,
        timeouts_five_minutes=6,
        outcomes=500,
        inflation=1.08,
        inflation_alarm=True,
        drift_feature="similarity:max",
        drift=-0.75,
    )
