"""What a scheduler of generations would tell, made up for the tests of whoever counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from relaygr.core.errors import NotReadyError
from relaygr.engine.generation.asks import KvUse
from relaygr.engine.generation.interface import Step, StepKind
from relaygr.engine.generation.jobs import AnyJob
from relaygr.engine.generation.recurrent import Restart, StateStats
from relaygr.engine.generation.scheduler import GenerateLoad
from relaygr.engine.generation.seats import Generated
from relaygr.generation.catalogue.settings import CatalogueStatus
from relaygr.generation.errors import (
    FilterFailedError,
    GenerateCancelledError,
    GenerateDeadlineError,
    TooWideError,
)
from relaygr.generation.normalise import Normalization
from relaygr.generation.requests import GenerateResult
from relaygr.generation.results import Found, ResultRow, Underflow
from relaygr.serving.generation.metrics import GenerateMetrics, GenerateReadings
from relaygr.serving.snapshot import Generation, Pool, Recurrent

STATUS = CatalogueStatus(
    serving="abc",
    number=2,
    as_of_s=1_000.0,
    since_s=2_000.0,
    kept=("xyz", "abc"),
    retired=(),
    pins=1,
    withdrawn=3,
    loads=2,
    failures=1,
    error="damaged",
)


def generated(underflow: Underflow | None = Underflow.BEAM_EXHAUSTED) -> Generated:
    """An answer of one row where two were asked for."""
    rows = (ResultRow((1, 2, 3), -1.5, (7,)),)
    found = Found(rows, 2, underflow, Normalization.LEVEL, candidates=(3, 9, 12))
    result = GenerateResult("r", found, "abc", "f" * 32, prompt_tokens=10, cached_tokens=4, unknown_items=1)
    kv = KvUse(shared=4096, unshared=1024, index=8, scratch=16, state=2048, records=512)
    return Generated(result, kv)


def job(queued_s: float = 10.0, started_s: float = 10.1, done_s: float = 10.4) -> AnyJob:
    """One that is over."""
    times = SimpleNamespace(
        queued_s=queued_s, started_s=started_s, prefilled_s=started_s + 0.1, done_s=done_s
    )
    return cast(Any, times)


def readings() -> GenerateReadings:
    pages = {"free": 100, "pinned": 20, "evictable": 30}
    restarts: tuple[tuple[Restart, int], ...] = (("end", 3), ("snapshot", 2), ("start", 1))
    states = StateStats(1, 2, 3, 4, 5, 6, restarts, saved_tokens=70, repeated_tokens=8, left=9)
    return GenerateReadings(GenerateLoad(2, 1, 64, 3, 300), pages, (1024, 4096), states, STATUS)


def generation() -> Generation:
    """A busy generator, as the status page shows it."""
    states = {"total_bytes": 400 * 1024, "free_bytes": 200 * 1024, "pinned_bytes": 80 * 1024}
    counts = {"evictable_bytes": 120 * 1024, "entries": 7, "leases": 2, "evictions": 5}
    return Generation(
        model="0123456789abcdef" * 2,
        catalogue="abc",
        catalogue_age_s=7200.0,
        waiting=2,
        running=1,
        prompts=3,
        rows=64,
        rows_limit=1024,
        tokens=300,
        tokens_limit=10_240,
        states=Pool(**states, **counts),
        beam_bytes=1024,
        beam_limit_bytes=4096,
        recurrent=Recurrent.of(
            StateStats(1024, 2048, 3072, 4096, 1024, 6, (), saved_tokens=0, repeated_tokens=0, left=9)
        ),
    )


def tell_generation(metrics: GenerateMetrics) -> None:
    """One of everything."""
    metrics.serve("0123456789abcdef", readings)
    metrics.started(2, 1, 128, 300, 0.003)
    metrics.stepped(Step(StepKind.ROUND, 2, rows=128, seconds=0.02, forward_s=0.01, select_s=0.005))
    metrics.stepped(Step(StepKind.PREFILL, 1, tokens=10, seconds=0.02))
    metrics.ended(job(), generated())
    metrics.ended(job(), object())
    for error in (
        GenerateDeadlineError("r", "late"),
        GenerateCancelledError("r", "gone"),
        FilterFailedError("r", "broken"),
        NotReadyError("stopping"),
    ):
        metrics.failed("generate", error)
    metrics.rejected(TooWideError("r", "5000", field="beam_width", limit=1024))
