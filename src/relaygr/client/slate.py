"""Slates: what is asked, what is answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from relaygr.client.answers import Answer, Hint, Placed
from relaygr.client.calls import Call, History, Ints, Sent, column
from relaygr.client.errors import RequestRejectedError

Attributes = Mapping[str, Ints]
Vectors = Iterable[Iterable[float]]
Rule = Mapping[str, Any]
"""A rule in the form of the server's documents, as {"kind": "pin", "name": "p", "item": 7, "position": 0}."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Earlier pages of the feed, oldest first; made by `shown`."""

    ids: list[int]
    attributes: dict[str, list[int]] | None = None
    vectors: list[list[float]] | None = None
    watch: list[float] | None = None
    survival: float = 1.0
    page: int = 1


class SlateBody(Sent, kw_only=True, omit_defaults=True):
    """Fields that stand at their default are left to the server."""

    candidates: list[int] | None = None
    length: int | None = None
    attributes: dict[str, list[int]] | None = None
    vectors: list[list[float]] | None = None
    shown: Shown | None = None
    rules: list[Rule] | None = None
    slots: list[int] | None = None
    consumed: int = 0
    mode: str | None = None
    unrestricted: bool = False
    allow_short: bool = True
    seed: int | None = None
    explain: bool = True
    allow_explore: bool = True
    query_time: int | list[int] | None = None
    history: History | None = None


class SlateHead(Answer, frozen=True, kw_only=True):
    """One head of a pick: scale * base + bias + terms, or base * exp(bias + terms) for a regression."""

    base: float
    scale: float
    bias: float
    terms: dict[str, float]
    conditional: float


class SlateExit(Answer, frozen=True, kw_only=True):
    """Leaving after a pick; `logit` is None where users do not leave."""

    bias: float
    terms: dict[str, float]
    heads: float
    logit: float | None
    probability: float


class SlateTerms(Answer, frozen=True, kw_only=True):
    """Why a pick is worth `value`: value_terms + clipping - effects; contribution = survival * value."""

    heads: dict[str, SlateHead]
    value_terms: list[float]
    clipping: float
    effects: dict[str, float]
    value: float
    survival: float
    contribution: float
    exit: SlateExit


class SlatePick(Answer, frozen=True, kw_only=True):
    """One position: the item, its place among the candidates, its value without context, and its terms.

    `log_propensity` is that of the pick behind those before it, where the list was drawn at random.
    """

    item: int
    candidate: int
    pointwise: float
    terms: SlateTerms | None = None
    log_propensity: float | None = None


class SlateList(Answer, frozen=True, kw_only=True):
    """A list that competed, and what it is worth."""

    generator: str
    also: list[str]
    score: float | None
    lower_bound: float | None
    log_propensity: float | None = None


class Relaxed(Answer, frozen=True, kw_only=True):
    """A rule that no list satisfied; `position` is -1 if it concerns the whole list."""

    rule: str
    position: int
    reason: str


class ShadowList(Answer, frozen=True, kw_only=True):
    """What mode `on` would have returned."""

    items: list[int]
    generator: str
    utility: float | None
    lower_bound: float | None


class Slate(Placed, frozen=True, kw_only=True):
    """A list, first position first.

    Attributes:
        generator: whose list it is; `fallback_reason` says why it is the pointwise one, where it was not
            chosen by its `lower_bound`.
        utility: sum of the contributions of the picks; None where no step model was asked.
        lists: those that competed.
        relaxations: rules that were given up.
        versions: of value function, rules, step model, evaluator.
        stage_ms: of the list layer; queue_ms, compute_ms: of the ranking, with `path` and tokens as in
            `Ranking`.
        generated: the candidates, where the server made them.
        explored: the list was drawn at random and not chosen.
    """

    user: str
    items: list[int]
    picks: list[SlatePick]
    generator: str
    mode: str
    stage_reached: str
    fallback_reason: str | None
    utility: float | None
    unpriced: float | None
    score: float | None
    lower_bound: float | None
    lists: list[SlateList]
    relaxations: list[Relaxed]
    versions: dict[str, str]
    stage_ms: dict[str, float]
    path: str
    tokens_cached: int
    tokens_computed: int
    served_tokens: int
    unknown_ids: int
    model: str
    request_id: str
    queue_ms: float
    compute_ms: float
    priced_by: dict[str, float] = msgspec.field(default_factory=dict)
    log_propensity: float | None = None
    unrestricted: bool = False
    lookahead_budget: int = 0
    unknown_items: int = 0
    error: str = ""
    shadow: ShadowList | None = None
    generated: list[int] | None = None
    explored: bool = False


def shown(
    ids: Ints,
    *,
    attributes: Attributes | None = None,
    vectors: Vectors | None = None,
    watch: Iterable[float] | None = None,
    survival: float = 1.0,
    page: int = 1,
) -> Shown:
    """Items of earlier pages, for `slate`; RequestRejectedError for what are no numbers."""
    return Shown(
        ids=column("shown.ids", ids),
        attributes=_attributes("shown.attributes", attributes),
        vectors=_vectors("shown.vectors", vectors),
        watch=None if watch is None else _floats("shown.watch", watch),
        survival=survival,
        page=page,
    )


def slate(
    user: str,
    candidates: Ints | None,
    *,
    length: int | None,
    attributes: Attributes | None,
    vectors: Vectors | None,
    shown: Shown | None,
    rules: Sequence[Rule] | None,
    slots: Ints | None,
    consumed: int,
    mode: str | None,
    unrestricted: bool,
    allow_short: bool,
    seed: int | None,
    explain: bool,
    allow_explore: bool,
    query_time: int | Ints | None,
    history: History | None,
    deadline_ms: float | None,
    hint: Hint | None,
) -> Call[Slate]:
    if query_time is not None and not isinstance(query_time, int):
        query_time = column("query_time", query_time)
    body = SlateBody(
        user=user,
        candidates=None if candidates is None else column("candidates", candidates),
        length=length,
        attributes=_attributes("attributes", attributes),
        vectors=_vectors("vectors", vectors),
        shown=shown,
        rules=None if rules is None else list(rules),
        slots=None if slots is None else column("slots", slots),
        consumed=consumed,
        mode=mode,
        unrestricted=unrestricted,
        allow_short=allow_short,
        seed=seed,
        explain=explain,
        allow_explore=allow_explore,
        query_time=query_time,
        history=history,
        deadline_ms=deadline_ms,
    )
    return Call("POST", "/v1/slate", Slate, True, body, deadline_ms, hint)


def _attributes(field: str, attributes: Attributes | None) -> dict[str, list[int]] | None:
    if attributes is None:
        return None
    return {name: column(f"{field}.{name}", values) for name, values in attributes.items()}


def _vectors(field: str, vectors: Vectors | None) -> list[list[float]] | None:
    return None if vectors is None else [_floats(field, row) for row in vectors]


def _floats(field: str, values: Iterable[float]) -> list[float]:
    # Elements of arrays would not be numbers of Python.
    listed = values.tolist() if hasattr(values, "tolist") else values
    try:
        return msgspec.convert(list(listed), list[float])
    except (msgspec.ValidationError, TypeError) as error:
        raise RequestRejectedError(f"{field}: {error}", field=field) from error
