"""Bodies and answers of slates as JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from relaygr.listwise.rules.document import AnyRule
from relaygr.serving.wire import Body, History, Int, Milliseconds, Name, RankPath, Time

ModeName = Literal["off", "shadow", "on"]
Length = Annotated[int, Meta(ge=1, le=500)]
Consumed = Annotated[int, Meta(ge=0, le=500)]
Attributes = dict[Annotated[str, Meta(min_length=1, max_length=64)], list[Int]]
Vectors = list[list[float]]
Small = Annotated[int, Meta(ge=0, le=1_048_576)]


class ShownBody(Body, frozen=True, kw_only=True):
    """What the user got on the earlier pages of this feed, oldest first; context and rules go on from there.

    Attributes:
        watch: what was observed of the head that the step model sums up, one number an item.
        survival: probability that the user gets to this page; 1 if the user has asked for it.
        page: index of the page that is wanted now, from 0.
    """

    ids: Annotated[list[Int], Meta(max_length=4096)]
    attributes: Attributes = field(default_factory=dict)
    vectors: Vectors | None = None
    watch: list[float] | None = None
    survival: Annotated[float, Meta(gt=0, le=1)] = 1.0
    page: Small = 1


class SlateBody(Body, frozen=True, kw_only=True):
    """A list to make for a user.

    Attributes:
        candidates: items to choose from, none twice; without them the server generates some, if it can.
        attributes, vectors: of the candidates, in front of what the server's item table says.
        rules: behind those of the server.
        slots: type of each position.
        consumed: items that the user consumed in this session before `shown`.
        seed: what stochastic generators draw by, in place of the id of the request.
        unrestricted: give up the trust region.
        allow_short: a shorter list if the rules leave no full one.
        explain: whether the answer has the terms of each pick.
        allow_explore: whether the list may be drawn at random, where the server explores.
    """

    user: Name
    candidates: list[Int] | None = None
    length: Length | None = None
    attributes: Attributes = field(default_factory=dict)
    vectors: Vectors | None = None
    shown: ShownBody | None = None
    rules: Annotated[list[AnyRule], Meta(max_length=64)] = field(default_factory=list)
    slots: Annotated[list[Small], Meta(max_length=500)] = field(default_factory=list)
    consumed: Small = 0
    mode: ModeName | None = None
    unrestricted: bool = False
    allow_short: bool = True
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    explain: bool = True
    allow_explore: bool = True
    query_time: Time | list[Time] | None = None
    deadline_ms: Milliseconds | None = None
    history: History | None = None


class SlateHead(Struct, frozen=True):
    """One head of a pick: scale * base + bias + terms, or base * exp(bias + terms) for a regression."""

    base: float
    scale: float
    bias: float
    terms: dict[str, float]
    conditional: float


class SlateExit(Struct, frozen=True):
    """Leaving after a pick: logit = bias + terms + heads; null where users do not leave."""

    bias: float
    terms: dict[str, float]
    heads: float
    logit: float | None
    probability: float


class SlateTerms(Struct, frozen=True):
    """Why a pick is worth what it is.

    Attributes:
        value_terms: of the value function; value = their sum + clipping - the prices of `effects`.
        survival: probability that the user gets here; contribution: survival * value.
        effects: prices of soft rules.
    """

    heads: dict[str, SlateHead]
    value_terms: tuple[float, ...]
    clipping: float
    effects: dict[str, float]
    value: float
    survival: float
    contribution: float
    exit: SlateExit


class SlatePick(Struct, frozen=True, omit_defaults=True):
    """One position.

    Attributes:
        candidate: the place among the candidates.
        pointwise: the value without context.
        log_propensity: of the pick behind those before it, where the list was drawn at random.
    """

    item: int
    candidate: int
    pointwise: float
    terms: SlateTerms | None = None
    log_propensity: float | None = None


class SlateList(Struct, frozen=True, omit_defaults=True):
    """One list that competed: the first generator that proposed it, others that did, and what it is worth.

    Lists are compared by `lower_bound`; one without had no time to be evaluated.
    """

    generator: str
    also: tuple[str, ...]
    score: float | None
    lower_bound: float | None
    log_propensity: float | None = None


class SlateRelaxation(Struct, frozen=True):
    """A rule that no list satisfied, the position (from 0) where that showed (-1 for none), and why."""

    rule: str
    position: int
    reason: str


class SlateVersions(Struct, frozen=True):
    """What made the list; step model and evaluator are empty where no list model was called."""

    value: str
    rules: str
    step: str
    evaluator: str


class SlateShadow(Struct, frozen=True):
    """What mode `on` would have returned."""

    items: list[int]
    generator: str
    utility: float | None
    lower_bound: float | None


class SlateAnswer(Struct, frozen=True, omit_defaults=True):
    """A list, first position first.

    Attributes:
        generator: whose list it is: of `lists` the one of the highest lower bound, unless `fallback_reason`
            says why it is the rule-repaired pointwise list.
        utility: sum of the contributions of the picks; null where no step model was asked.
        unpriced: the same without the prices of soft rules; priced_by: what each of them took.
        score, lower_bound: by the evaluator.
        stage_reached: the last stage that was finished.
        lookahead_budget: exact searches that ran out of nodes or time.
        unknown_items: candidates that the item table lacks.
        path and what follows: of the ranking, as `/v1/rank` says it.
        queue_ms, compute_ms: of the ranking; stage_ms: of the list layer, its wait for a thread included.
        generated: the candidates, where the server made them.
        explored: the list was drawn at random and not chosen; `log_propensity` is that of the draw.
    """

    user: str
    items: list[int]
    picks: list[SlatePick]
    generator: str
    mode: ModeName
    stage_reached: str
    fallback_reason: str | None
    utility: float | None
    unpriced: float | None
    score: float | None
    lower_bound: float | None
    lists: list[SlateList]
    relaxations: list[SlateRelaxation]
    versions: SlateVersions
    stage_ms: dict[str, float]
    path: RankPath
    tokens_cached: int
    tokens_computed: int
    served_tokens: int
    unknown_ids: int
    model: str
    request_id: str
    queue_ms: float
    compute_ms: float
    priced_by: dict[str, float] = {}
    log_propensity: float | None = None
    unrestricted: bool = False
    lookahead_budget: int = 0
    unknown_items: int = 0
    error: str = ""
    shadow: SlateShadow | None = None
    generated: list[int] | None = None
    explored: bool = False


class SlateModeBody(Body, frozen=True, kw_only=True):
    """The mode of all requests from the next one on."""

    mode: ModeName


class SlateCard(Struct, frozen=True):
    """The list layer of this server.

    Attributes:
        mode: of requests that name none; while it is `off`, of all.
        generators: beside the pointwise list.
        items: rows of the item table.
        explore_share: of the requests in mode `on`, whose lists are drawn at random.
        logged: whether served lists are written to a log.
    """

    mode: ModeName
    value: str
    rules: str
    step: str
    evaluator: str
    generators: tuple[str, ...]
    attributes: tuple[str, ...]
    items: int
    length: int
    max_length: int
    max_candidates: int
    budget_ms: float
    explore_share: float
    logged: bool


class OutcomeBody(Body, frozen=True, kw_only=True):
    """What came of a returned list: `utility`, `heads`, `labels` or `consumed`, or several of them.

    Attributes:
        utility: in the units of the list's `utility`; at most 1e12, so that no outcome drowns all others.
        heads: what was observed at each position that the user reached, first position first, by head.
        labels: the same for a log, in place of `heads`: heads may be missing, null where nothing is known.
        consumed: positions that the user reached; where heads or labels are given, as many as they have.
        more: whether the user asked for the next page.
    """

    request_id: Annotated[str, Meta(min_length=1, max_length=128)]
    utility: Annotated[float, Meta(ge=-1e12, le=1e12)] | None = None
    heads: (
        Annotated[
            dict[Annotated[str, Meta(max_length=256)], Annotated[list[float], Meta(max_length=500)]],
            Meta(max_length=256),
        ]
        | None
    ) = None
    labels: (
        Annotated[
            dict[Annotated[str, Meta(max_length=256)], Annotated[list[float | None], Meta(max_length=500)]],
            Meta(max_length=256),
        ]
        | None
    ) = None
    consumed: Consumed | None = None
    more: bool = False


class OutcomesBody(Body, frozen=True, kw_only=True):
    outcomes: Annotated[list[OutcomeBody], Meta(min_length=1, max_length=10_000)]


class OutcomesAnswer(Struct, frozen=True):
    """How many were of lists that this server remembers."""

    matched: int
    unknown: int
