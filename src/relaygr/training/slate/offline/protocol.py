"""The whole protocol on one set of requests: lists by each method, judged, estimated and described."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float64, Int32, Int64
from relaygr.listwise.folds import Lineage
from relaygr.listwise.lists import ListModel
from relaygr.listwise.masks import Rules
from relaygr.listwise.pool import Pool
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.slates import Slates
from relaygr.listwise.trust import Trust
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.offline.cascade import Estimate, estimate, replay
from relaygr.training.slate.offline.compare import compare
from relaygr.training.slate.offline.coverage import pool_variety, variety
from relaygr.training.slate.offline.drawn import drawable
from relaygr.training.slate.offline.explored import Explored, as_lists, usable
from relaygr.training.slate.offline.judge import ListJudge, check_independent
from relaygr.training.slate.offline.methods import BASELINE, DEFAULT, METHODS, Made, make_lists
from relaygr.training.slate.offline.policies import (
    STRENGTH,
    SlatePolicy,
    Softmax,
    Tilted,
    matching,
    steps_of,
)
from relaygr.training.slate.offline.quality import judge_quality
from relaygr.training.slate.offline.relevance import Relevance, check_head, relevance
from relaygr.training.slate.offline.report import Evidence, SlateReport, Source, means

ALL = "all"
SEED = Range(0, 2**32 - 1)
MAX_STRENGTHS = 16
Observe = Callable[[str], None]
# True utilities [N] of one list a request, in both forms: the second are columns of the pools.
Truth = Callable[[LoggedLists, Int32], Float64]


def ignore(what: str) -> None:
    """The `Observe` of those who do not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSlateOptions:
    """What to evaluate.

    Attributes:
        methods: the baseline `pointwise` is always among them.
        base: the policy that logged the explored lists, for tilted policies and as a check of propensities.
        rules: that explored lists were made under; None for none.
        trust: the region that they were drawn from; None for all candidates.
        strengths: of tilted policies.
        depths: of off-policy estimates; None for all positions.
        most_lists: explored lists that estimates use, the first ones.
        seed: of bootstraps.
        unrecorded: take models that do not say whose users they learned from.
    """

    methods: tuple[str, ...] = METHODS
    base: Softmax = field(default_factory=lambda: Softmax(temperature=0.1))
    rules: Rules | None = None
    trust: Trust | None = None
    strengths: tuple[float, ...] = (1.0, 4.0)
    depths: tuple[int, ...] | None = None
    most_lists: int = 5000
    seed: int = 0
    unrecorded: bool = False

    def __post_init__(self) -> None:
        SEED.check("seed", self.seed)
        if len(self.strengths) > MAX_STRENGTHS:
            raise ConfigError("strength", f"{len(self.strengths)} are given, limit {MAX_STRENGTHS}")
        for each in self.strengths:
            STRENGTH.check("strength", each)
        if self.most_lists < 1:
            raise ConfigError("most_lists", f"{self.most_lists} is below 1")
        if BASELINE not in self.methods:
            raise ConfigError("methods", f"{', '.join(self.methods)} lack the baseline {BASELINE!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requested:
    """N requests to make lists for; nothing of them was logged.

    Attributes:
        logs: users, surfaces and pages of the requests (one list each, of any items).
        pools: the candidates.
        length: L.
        activity: int64 [N], how active each user was before; None if that is not known.
    """

    logs: LoggedLists
    pools: Sequence[Pool]
    length: int
    activity: Int64 | None = None


def evaluate_slates(
    data: str,
    models: Sequence[ListModel],
    selectors: Sequence[Lineage],
    asked: Requested,
    *,
    judge: ListJudge | None = None,
    truth: Truth | None = None,
    truth_source: Source = Source.TRUTH,
    explored: Explored | None = None,
    held_out: LoggedLists | None = None,
    relevance_head: str | None = None,
    cannot: tuple[str, ...] = (),
    options: EvalSlateOptions | None = None,
    observe: Observe = ignore,
) -> SlateReport:
    """Fill every section of the report that the arguments allow.

    Args:
        models: the selector's step model, once for each seed of its training.
        selectors: where they come from.
        explored: lists with propensities and candidates, for estimates.
        held_out: logged lists that the judge did not learn from, for its quality and for relevance.
        relevance_head: whose labels are reordered under `relevance`; None for none.

    Raises:
        ConfigError: the judge is a selector, or not known to be independent; a head is unknown.
    """
    options = options or EvalSlateOptions()
    began = time.perf_counter()
    if explored is not None:
        options.base.check(models[0].value.heads)
    if relevance_head is not None:
        check_head(models[0].value.heads, relevance_head)
    independence = None
    if judge is not None:
        independence = check_independent(judge.lineage, selectors, options.unrecorded)
    value = models[0].value
    plain = Slates(value, mode=Mode.OFF)
    asks = [SlateAsk(request_id=f"{n}", length=asked.length) for n in range(len(asked.pools))]
    made = list[list[Made]]()
    for number, model in enumerate(models):
        observe(f"lists of model {number + 1} of {len(models)}")
        scenes = [plain.scene(ask, pool) for ask, pool in zip(asks, asked.pools, strict=True)]
        made.append(make_lists(model, asked.pools, scenes, options.methods))
    shown = [[as_lists(asked.logs, asked.pools, one.picks) for one in row] for row in made]
    evidence = list[Evidence]()
    disagreement = None
    if truth is not None:
        observe(truth_source.value)
        values = np.stack(
            [
                np.stack([truth(each, one.picks) for each, one in zip(lists, row, strict=True)], axis=1)
                for lists, row in zip(shown, made, strict=True)
            ]
        )
        evidence += _evidence(truth_source, made, values, asked, options.seed)
    if judge is not None:
        observe("the judge")
        values = np.stack([np.stack([judge.predict(each).utility for each in row], axis=1) for row in shown])
        evidence += _evidence(Source.JUDGE, made, values, asked, options.seed)
        disagreement = _disagreement(made[0], values[0])
    quality = None
    if judge is not None and held_out is not None:
        quality = judge_quality(judge.predict(held_out), held_out, value, options.seed)
    estimates, notes = tuple[Estimate, ...](), tuple[str, ...]()
    if explored is not None:
        observe("estimates from explored lists")
        estimates, notes = _estimates(models[0], explored, options)
    available = np.unique(np.concatenate([pool.ids for pool in asked.pools]))
    varieties = [variety(one.method, lists, available) for one, lists in zip(made[0], shown[0], strict=True)]
    served = [one for one in made[0] if one.method == DEFAULT]
    reordered = tuple[Relevance, ...]()
    if relevance_head is not None and held_out is not None:
        reordered = relevance(
            held_out, relevance_head, _orders(held_out, relevance_head, judge), options.seed
        )
    return SlateReport(
        data=data,
        selector=selectors[0].version,
        judge_version=None if judge is None else judge.lineage.version,
        independence=independence,
        evidence=tuple(evidence),
        judge=quality,
        disagreement=disagreement,
        estimates=estimates,
        varieties=tuple(varieties),
        pool=pool_variety(served[0].results) if served else None,
        cost=tuple(one.cost for one in made[0]),
        relevance=reordered,
        cannot=cannot,
        notes=notes,
        seconds=time.perf_counter() - began,
    )


def _evidence(
    source: Source, made: Sequence[Sequence[Made]], values: Float64, asked: Requested, seed: int
) -> list[Evidence]:
    """values [S, N, M]"""
    names = [one.method for one in made[0]]
    predicted = np.stack([np.stack([one.predicted for one in row], axis=1) for row in made])
    found = []
    for segment, inside in segments_of(asked).items():
        some = values[:, inside]
        total = some.mean(axis=(0, 1))
        ratio = predicted[:, inside].mean(axis=(0, 1)) / np.where(total > 0, total, np.nan)
        found.append(
            Evidence(
                source=source,
                metric="utility",
                segment=segment,
                requests=int(inside.sum()),
                means=means(names, total.tolist()),
                comparison=compare(names, some, asked.logs.users[inside], BASELINE, seed),
                inflation=means(names, ratio.tolist()),
            )
        )
    return found


def segments_of(asked: Requested) -> Mapping[str, Bool]:
    """All requests, and thirds by the users' activity and by the number of candidates where these differ."""
    found = {ALL: np.ones(len(asked.pools), dtype=bool)}
    sizes = np.array([len(pool) for pool in asked.pools])
    for name, values in (("user activity", asked.activity), ("candidates", sizes)):
        if values is None:
            continue
        edges = np.unique(np.quantile(values, [0, 1 / 3, 2 / 3, 1]).astype(np.int64))
        if len(edges) < 3:
            continue
        place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        for at in range(len(edges) - 1):
            if (place == at).any():
                found[f"{name} {edges[at]}..{edges[at + 1]}"] = place == at
    return found


def _disagreement(made: Sequence[Made], judged: Float64) -> float | None:
    """Where the judge ranks the selector's best method and the baseline otherwise than the selector."""
    names = [one.method for one in made]
    chosen = names.index(DEFAULT) if DEFAULT in names else len(names) - 1
    base = names.index(BASELINE)
    differs = (made[chosen].picks != made[base].picks).any(axis=1)
    if not differs.any():
        return None
    selector = made[chosen].predicted - made[base].predicted
    return float(((selector > 0) != (judged[:, chosen] - judged[:, base] > 0))[differs].mean())


def _estimates(
    model: ListModel, explored: Explored, options: EvalSlateOptions
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    rows = usable(model.value, explored.logs)
    if not len(rows):
        return (), ("no logged list has propensities and labels: nothing is estimable off policy",)
    some = explored.select(rows[: options.most_lists])
    scenes = some.scenes(model.value, options.rules, options.trust)
    inside, lost = drawable(some, scenes), tuple[str, ...]()
    if not inside.all():
        lost = (f"{int((~inside).sum()):,} lists hold what these rules and this trust region do not allow",)
        scenes = [scene for scene, kept in zip(scenes, inside, strict=True) if kept]
        some = some.select(inside) if scenes else some
    if not scenes or not some.logs.consumed.any():
        return (), (*lost, "nobody got to a position of such a list: nothing is estimable off policy")
    policies: list[SlatePolicy] = [options.base]
    policies += [Tilted(base=options.base, model=model, strength=each) for each in options.strengths]
    found = list[Estimate]()
    notes = [f"{len(some):,} of {len(explored):,} logged lists have propensities and labels and were used"]
    notes += lost
    for policy in policies:
        steps = steps_of(some, scenes, policy, model)
        if policy is options.base:
            seen = steps.seen
            gap = float(np.abs(steps.log_target - steps.log_logging)[seen].max())
            notes.append(f"logged propensities differ from {policy.name} by up to {gap:.2g} in log")
        found += estimate(policy.name, steps, options.depths, options.seed)
    whole = scenes if options.trust is None else some.scenes(model.value, options.rules)
    for one in make_lists(model, some.pools, whole, [BASELINE, DEFAULT]):
        found += replay(one.method, steps, matching(some, one.picks), options.depths, options.seed)
    return tuple(found), tuple(notes)


def _orders(logs: LoggedLists, head: str, judge: ListJudge | None) -> dict[str, Float64]:
    at = [each.name for each in logs.heads].index(head)
    orders = {"ranker": logs.outputs[..., at].astype(np.float64)}
    L = logs.items.shape[1]
    orders["as shown"] = np.broadcast_to(-np.arange(L, dtype=np.float64), logs.items.shape)
    if judge is not None:
        orders["judge, in the logged context"] = judge.predict(logs).heads[..., at]
    return orders
