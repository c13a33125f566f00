"""What the scheduler is told about speed: how long a step may be, and how much history a deadline leaves."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.config.relay import RelayConfig
from relaygr.core.errors import RelayError
from relaygr.engine import Engine
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import RankResult
from relaygr.engine.scheduler import DEFAULT_CHUNK_TOKENS
from relaygr.relay.budgets import Budgets
from relaygr.relay.fallback import choose
from relaygr.relay.latency import LatencyModel, Pass
from relaygr.relay.trigger import Build


@dataclass(frozen=True, slots=True)
class Known:
    """The speed of one model on this machine, and the shape of its prefixes."""

    latency: LatencyModel
    budgets: Budgets
    page_tokens: int
    slots: int
    per_event: int

    @classmethod
    def of(cls, engine: Engine, latency: LatencyModel, budgets: Budgets) -> Known:
        shape = engine.model_config
        return cls(
            latency,
            budgets,
            engine.config.page_tokens,
            len(shape.contextual),
            shape.tokens_per_event,
        )

    def chunk_tokens(self, cached: int, left: int) -> int:
        return self.latency.chunks(self.budgets.chunk_ms, self.page_tokens).step(cached, left)

    def events(self, job: RankJob, remaining_ms: float, bucket_tokens: int) -> int:
        """See `Pace.fit`."""
        choice = choose(
            self.latency,
            tokens=job.tokens,
            cached=job.cached,
            candidates=len(job.request.candidates),
            left_ms=remaining_ms,
            guard_ms=self.budgets.guard_ms,
            bucket_tokens=bucket_tokens,
        )
        if choice.tokens == job.tokens:
            return len(job.request.history)
        return max(choice.tokens - self.slots, 0) // self.per_event

    def build(self, name: str, enabled: bool, cacheable: str) -> Build:
        """As the trigger sees it."""
        return Build(
            name,
            enabled,
            cacheable,
            self.latency,
            self.latency.chunks(self.budgets.chunk_ms, self.page_tokens),
            self.budgets,
        )

    def cost_ms(self, job: RankJob) -> float:
        """See `Pace.cost_ms`."""
        # Of several jobs one after the other the scatter evens out.
        return self.latency.usual_ms(job.missing, job.cached, len(job.request.candidates))


class Pace:
    """Follows the speed of the model that is served; as an observer it keeps that up to date.

    `follow` may be called from any thread, everything else is called by the scheduler.
    """

    def __init__(self, chunk_tokens: int = 0, relay: RelayConfig | None = None) -> None:
        """`chunk_tokens` 0 follows the speed; while none is known, steps have one size and nothing is cut."""
        self._fixed, self._relay = chunk_tokens, relay or RelayConfig()
        self.known: Known | None = None
        self._batch: list[Pass] = []
        self._batch_s = (0.0, 0.0)

    def follow(self, known: Known | None) -> None:
        """Go by this from now on."""
        self.known = known

    def chunk_tokens(self, cached: int, left: int) -> int:
        """History tokens of the next step of a prefetch that has `left` of them to do behind `cached`."""
        if self._fixed or self.known is None:
            return self._fixed or DEFAULT_CHUNK_TOKENS
        return self.known.chunk_tokens(cached, left)

    def fit(self, job: RankJob, remaining_ms: float) -> int:
        """Newest events of the job's history that can be scored in time; all of them if that is not known."""
        if self.known is None or self._relay.fallback_mode == "full":
            return len(job.request.history)
        return self.known.events(job, remaining_ms, self._relay.len_bucket_tokens)

    def cost_ms(self, job: RankJob) -> float:
        """Milliseconds that scoring a job usually takes; 0 if that is not known."""
        return 0.0 if self.known is None else self.known.cost_ms(job)

    def ranked(self, job: RankJob, result: RankResult) -> None:
        """Jobs of one batch come one after another, with the times of the batch."""
        times = job.started_s, job.done_s
        if times != self._batch_s:
            self._observe()
            self._batch, self._batch_s = [], times
        served = result.served
        computed = served.tokens_computed + served.tokens_provisional
        self._batch.append(
            Pass(new_tokens=computed, cached_tokens=served.tokens_cached, candidates=len(result.logits))
        )

    def stepped(self, flight: Flight, seconds: float) -> None:
        """Steps are most of the long passes that a relay makes."""
        step = flight.last_step
        if self.known is not None and step is not None and step.tokens_computed:
            shape = Pass(new_tokens=step.tokens_computed, cached_tokens=step.tokens_cached, chunk=True)
            self.known.latency.observe([shape], max(seconds, 0.0) * 1000)

    def failed(self, kind: str, error: RelayError) -> None:
        """An answer that failed says nothing about speed."""

    def _observe(self) -> None:
        started_s, done_s = self._batch_s
        if self._batch and self.known is not None:
            self.known.latency.observe(self._batch, max(done_s - started_s, 0.0) * 1000)
