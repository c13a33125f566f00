"""What the engine is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch

from relaygr.core.errors import RequestError
from relaygr.core.ids import Fingerprint
from relaygr.engine.columns import Int64, IntColumn, check_time, int64_column
from relaygr.engine.history import UserHistory


class Path(StrEnum):
    """How the history of a request was served."""

    FULL = "full"  # every token was computed
    RESUMED = "resumed"  # a cached prefix was extended
    HIT = "hit"  # every token came from the cache


class RankRequest:
    """Score candidates for one user at one time.

    Attributes:
        history: the user's profile and events.
        candidates: int64 [m]; duplicates are allowed and score alike.
        query_time: seconds; an int that every candidate shares, or, for models that allow it, int64 [m].
            Defaults to the last event's time.
        keep: whether the prefix may stay in the cache afterwards.
        load_by_s: on the engine's clock; a prefix that host memory could not give by then is not waited for.
        otherwise: what to score then, or if it cannot be had at all; None for the same, computed anew.
    """

    __slots__ = ("candidates", "history", "keep", "load_by_s", "otherwise", "query_time")

    def __init__(
        self,
        history: UserHistory,
        candidates: IntColumn,
        query_time: int | IntColumn | None = None,
        *,
        keep: bool = True,
    ) -> None:
        self.history, self.keep = history, keep
        self.load_by_s = float("inf")
        self.otherwise: Callable[[], RankRequest] | None = None
        self.candidates: Int64 = int64_column("candidates", candidates)
        last = int(history.timestamps[-1]) if len(history) else 0
        self.query_time: int | Int64
        if query_time is None:
            self.query_time = last
        elif isinstance(query_time, (Sequence, np.ndarray)) and np.ndim(query_time) == 1:
            times = _times_of(query_time, len(self.candidates))
            self.query_time = times if len(times) else last
        else:
            self.query_time = check_time("query_time", query_time)  # type: ignore[arg-type]
        earliest = int(np.min(self.query_time))
        if earliest < last:
            raise RequestError("query_time", f"{earliest} is before the last event, {last}")


def _times_of(values: IntColumn, candidates: int) -> Int64:
    column = int64_column("query_time", values)
    if len(column) != candidates:
        raise RequestError("query_time", f"has {len(column)} values for {candidates} candidates")
    for value in (column.min(), column.max()) if len(column) else ():
        check_time("query_time", int(value))
    return column


@dataclass(frozen=True, slots=True)
class PrefetchResult:
    """What a prefetch or append did.

    Attributes:
        path: see `Path`.
        tokens_cached, tokens_computed: history tokens taken from the cache and run through the model.
        tokens_provisional: tokens that depend on the query and are computed in every rank call.
        resident: whether the whole prefix is in the cache now.
        uncached_reason: why it is not; empty when it is.
        model: fingerprint of the weights.
        tokens_left: of a `prefetch_chunk`, what is still missing.
        unknown_ids: ids outside the model's tables, served as the tables say.
        tokens_loaded: of those cached, how many were brought from host memory for this request.
        tokens_quantized: of those cached, up to the last that came back rounded from host memory, now or
            before; 0 if all are as the model computed them.
    """

    path: Path
    tokens_cached: int
    tokens_computed: int
    resident: bool
    uncached_reason: str
    model: Fingerprint
    tokens_provisional: int = 0
    tokens_left: int = 0
    unknown_ids: int = 0
    tokens_loaded: int = 0
    tokens_quantized: int = 0


@dataclass(frozen=True, slots=True)
class RankResult:
    """Scores of one request, in the order of its candidates.

    Attributes:
        tasks: names of the columns.
        logits: float32 [m, tasks].
        served: how the history was served.
        regressions: tasks whose score is the value itself.
    """

    tasks: tuple[str, ...]
    logits: npt.NDArray[np.float32]
    served: PrefetchResult
    regressions: tuple[str, ...] = ()

    @property
    def probabilities(self) -> npt.NDArray[np.float32]:
        """float32 [m, tasks]; the sigmoid of the logits, regressions as they are."""
        scores: npt.NDArray[np.float32] = torch.from_numpy(self.logits).sigmoid().numpy()
        for column, task in enumerate(self.tasks):
            if task in self.regressions:
                scores[:, column] = self.logits[:, column]
        return scores

    def order(self, task: int = 0) -> npt.NDArray[np.int64]:
        """Candidate positions, best first; equal scores keep request order."""
        return np.argsort(-self.logits[:, task], kind="stable")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since start.

    Attributes:
        full, resumed, hit: rank requests and prefetches served, by path.
        tokens_computed, tokens_cached: history tokens run through the model, and taken from the cache; each
            counts once a request, however many passes a model needs that keeps nothing between passes.
        candidates: candidates scored.
        errors: requests refused or failed.
        decisions: rankings that found something of their history, by what was done about the host's part.
    """

    full: int
    resumed: int
    hit: int
    tokens_computed: int
    tokens_cached: int
    candidates: int
    errors: int
    decisions: tuple[tuple[str, int], ...] = ()
