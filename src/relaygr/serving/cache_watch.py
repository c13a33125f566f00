"""What ranked users found in the tiers, and what other policies would have kept for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from relaygr.cache.policies import settings_of
from relaygr.cache.shadow import ShadowPolicies, ShadowReport
from relaygr.cache.tally import Counts, Found, Tally
from relaygr.config.host import HostConfig
from relaygr.core.errors import RelayError
from relaygr.engine import Engine
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import RankResult

Owner = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Watched:
    """Since the start, of all models; what shadow policies say is of the model that is served now."""

    counts: Counts
    shadows: tuple[ShadowReport, ...]


class CacheWatch:
    """Counts rankings; may be told and asked from any thread."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._tally = Tally(self._cost_ms)
        self._shadows: ShadowPolicies[Owner] | None = None

    def serve(self, engine: Engine) -> None:
        """Costs are those of this engine from now on."""
        config = self._config
        with self._lock:
            self._engine = engine
            if config.shadow_policies and config.host_bytes:
                self._shadows = ShadowPolicies(
                    config.shadow_policies,
                    config.host_bytes,
                    engine.loader.weigh,
                    share=config.shadow_share,
                    settings=settings_of(config),
                )

    def ranked(self, job: RankJob, result: RankResult) -> None:
        """A user came back, or for the first time."""
        found = job.found
        with self._lock:
            if self._engine is None:
                return
            reused = result.served.tokens_cached
            self._tally.visit(job.owner, Found(job.tokens, found.device, found.host, found.disk, reused))
            if self._shadows is not None:
                self._shadows.visit(job.owner, job.owner[1], job.tokens)

    def stepped(self, flight: Flight, seconds: float) -> None:
        """A prefix that is prepared is counted when it is ranked."""

    def failed(self, kind: str, error: RelayError) -> None:
        """What found no answer found no history, either."""

    def forget(self, owner: Owner) -> None:
        """The user is deleted."""
        with self._lock:
            self._tally.forget(owner)
            if self._shadows is not None:
                self._shadows.forget(owner)

    def watched(self) -> Watched:
        with self._lock:
            shadows = self._shadows.reports() if self._shadows is not None else ()
            return Watched(self._tally.counts(), tuple(shadows))

    def _cost_ms(self, new_tokens: int, cached_tokens: int) -> float:
        assert self._engine is not None, "nothing is counted before a model is served"
        return self._engine.loader.pass_ms(new_tokens, cached_tokens)
