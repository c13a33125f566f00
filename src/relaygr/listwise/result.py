"""What the list layer answers, and what it says about how it came to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.explain import Explanation
from relaygr.listwise.masks import Relaxation
from relaygr.listwise.request import Mode


class Stage(StrEnum):
    """The stages in their order; a response names the last one that was finished."""

    FALLBACK = "fallback"
    GREEDY = "greedy"
    BEAM = "beam"
    GENERATORS = "generators"
    EVALUATION = "evaluation"


class Reason(StrEnum):
    """Why the fallback was returned although no evaluator had chosen it."""

    OFF = "off"
    SHADOW = "shadow"
    DEADLINE = "deadline"
    NAN = "nan"
    RULES = "rules"  # the chosen list failed the final check
    ERROR = "error"


class Exploration(StrEnum):
    """What became of a request that was to explore."""

    DRAWN = "drawn"  # the list was drawn at random
    RESCUED = "rescued"  # the draw met a dead end, so that it has no propensity; the list was chosen
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Versions:
    """What made a list; `step` and `evaluator` are empty where no list model was called."""

    value: str
    rules: str
    step: str = ""
    evaluator: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One list of the pool, after duplicates were removed.

    Attributes:
        generator: the first that proposed it.
        also: others that proposed the same list.
        picks: int32 [length], indices into the request's pool.
        score: mean value over the evaluator's members; None if there was no time.
        lower_bound: what choices are made by.
    """

    generator: str
    also: tuple[str, ...]
    picks: Int32
    score: float | None = None
    lower_bound: float | None = None
    log_propensity: float | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A proposal that broke a rule, and so did not compete.

    Attributes:
        generator: who proposed it.
        broken: what is wrong with it.
    """

    generator: str
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateResult:
    """One list.

    Attributes:
        items: int64 [length], ids.
        picks: int32 [length], indices into the request's pool.
        utility: U by the step model; None where it was not asked.
        score, lower_bound: by the evaluator.
        fallback_reason: None if the list was chosen (the fallback may be chosen too).
        error: what was wrong, for reasons `nan`, `rules` and `error`.
        relaxations: rules that were given up.
        lookahead_budget: exact searches that ran out of nodes or time.
        stage_ms: time of each stage that began, and of `explanation`.
        explanation: of each pick; None where no step model was asked or no time was left.
        context: mean of each feature of the step model over the picks, for watching its drift.
        pool: the lists that competed.
        shadow: what mode `on` would have returned; in mode `shadow` only.
        exploration: what became of it where the request was to explore; None for all others.
        log_propensities: of each pick behind those before it, of a list that was drawn to explore.
        dropped: proposals that broke a rule: defects of generators.
    """

    request_id: str
    items: Int64
    picks: Int32
    generator: str
    mode: Mode
    versions: Versions
    stage_reached: Stage
    fallback_reason: Reason | None = None
    error: str = ""
    utility: float | None = None
    score: float | None = None
    lower_bound: float | None = None
    log_propensity: float | None = None
    unrestricted: bool = False
    relaxations: tuple[Relaxation, ...] = ()
    lookahead_budget: int = 0
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    explanation: Explanation | None = None
    context: Mapping[str, float] = field(default_factory=dict)
    pool: tuple[Candidate, ...] = ()
    shadow: SlateResult | None = None
    exploration: Exploration | None = None
    log_propensities: tuple[float, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    @property
    def explored(self) -> bool:
        """Whether the list was drawn at random and not chosen."""
        return self.exploration is Exploration.DRAWN

    @property
    def unpriced(self) -> float | None:
        """U without the prices of soft rules: what the list's outcome is compared with."""
        return None if self.explanation is None else self.explanation.unpriced
