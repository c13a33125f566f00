"""The report: evidence about lists on one side, relevance of items on the other, and nothing in between."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.training.slate.offline.cascade import Estimate
from relaygr.training.slate.offline.compare import Comparison
from relaygr.training.slate.offline.coverage import PoolVariety, Variety
from relaygr.training.slate.offline.quality import JudgeQuality
from relaygr.training.slate.offline.relevance import RELABELLING, Relevance

OUTCOMES = ("utility", "consumed")  # of a list: what it was worth; positions that users got to


class Source(StrEnum):
    """What may be evidence for effects of lists."""

    TRUTH = "known truth"
    USER_MODEL = "user model"  # of a simulation on real data
    JUDGE = "independent judge"
    LOGS = "logged lists"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What lists of methods are worth by one source.

    Attributes:
        metric: what was measured, one of `OUTCOMES`.
        means: of each method, in the comparison's order, the baseline first.
        inflation: what the selector said of its chosen lists over what the source says.

    Raises:
        ConfigError: the metric is another, as one that reorders logged labels and says nothing about lists.
    """

    source: Source
    metric: str
    segment: str
    requests: int
    means: dict[str, float]
    comparison: Comparison
    inflation: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_evidence(self.metric)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one method: processor time and work per request, at its width, candidates and lists."""

    method: str
    ms: float
    model_calls: float
    lists: float


class SlateReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known offline; sections that data cannot fill are empty, and `cannot` says why.

    Attributes:
        evidence: (a) known truth, or the user model that was simulated, and (b) an independent judge.
        judge: (b) how good the judge is on logged lists; None without one.
        estimates: (c) doubly robust and cascade, (d) replay.
        varieties, pool: (e); cost: (g). Comparisons within `evidence` are (f).
        relevance: metrics of reordered labels; no evidence for effects of lists.
        independence: what is known of the judge's independence of the selector.
        disagreement: share of requests where judge and selector rank the chosen and the baseline's list
            differently.
        cannot: what these data cannot show.
    """

    data: str
    selector: str
    judge_version: str | None
    independence: str | None
    evidence: tuple[Evidence, ...] = ()
    judge: JudgeQuality | None = None
    disagreement: float | None = None
    estimates: tuple[Estimate, ...] = ()
    varieties: tuple[Variety, ...] = ()
    pool: PoolVariety | None = None
    cost: tuple[Cost, ...] = ()
    relevance: tuple[Relevance, ...] = ()
    cannot: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for one in self.relevance:
            if one.metric not in RELABELLING:
                raise ConfigError("relevance", f"{one.metric!r} is none of {', '.join(RELABELLING)}")
        judged = any(one.source is Source.JUDGE for one in self.evidence)
        if judged and (self.judge_version is None or self.independence is None):
            raise ConfigError("judge", "lists were judged, but by whom is not said")
        if judged and self.judge_version == self.selector:
            raise ConfigError("judge", f"{self.selector} chose the lists that it judges")


def check_evidence(metric: str) -> None:
    """Refuse all but what an outcome of a list gives.

    NDCG, MAP, CTR after re-ranking and their kind have too many names to list.

    Raises:
        ConfigError: naming the metric.
    """
    if metric not in OUTCOMES:
        raise ConfigError(
            "metric",
            f"{metric!r} is none of {', '.join(OUTCOMES)}, which outcomes of lists give; what moves logged "
            "labels to other positions belongs under relevance and is no evidence for effects of lists",
        )


def means(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """By method, in order."""
    return {name: float(value) for name, value in zip(names, values, strict=True)}
