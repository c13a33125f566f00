"""What ranked users found in the tiers, and what other policies would have kept for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from relaygr.cache.policies import settings_of
from relaygr.cache.shadow import ShadowPolicies, ShadowReport
from relaygr.cache.tally import Counts, Found, Tally
from relaygr.config.host import HostConfig
from relaygr.core.errors import RelayError
from relaygr.engine import Engine
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.requests import RankResult
from relaygr.serving.series import MODELS_MAX

Owner = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Watched:
    """Of the model that is served now, since it was served first."""

    counts: Counts
    shadows: tuple[ShadowReport, ...]


class CacheWatch:
    """Counts rankings; may be told and asked from any thread."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._tallies: OrderedDict[bytes, Tally] = OrderedDict()  # of the models served last
        self._shadows: ShadowPolicies[Owner] | None = None

    def serve(self, engine: Engine) -> None:
        """Count for this model from now on; for another, everybody comes for the first time."""
        config = self._config
        with self._lock:
            self._engine = engine
            self._tallies.setdefault(engine.model_fp, Tally(self._cost_ms))
            self._tallies.move_to_end(engine.model_fp)
            if len(self._tallies) > MODELS_MAX:
                self._tallies.popitem(last=False)
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
            tally = self._tallies.get(result.served.model)
            if tally is None:
                return
            reused = result.served.tokens_cached
            tally.visit(job.owner, Found(job.tokens, found.device, found.host, found.disk, reused))
            if self._shadows is not None:
                self._shadows.visit(job.owner, job.owner[1], job.tokens)

    def stepped(self, flight: Flight, seconds: float) -> None:
        """A prefix that is prepared is counted when it is ranked."""

    def failed(self, kind: str, error: RelayError) -> None:
        """What found no answer found no history, either."""

    def forget(self, owner: Owner) -> None:
        """The user is deleted."""
        with self._lock:
            for tally in self._tallies.values():
                tally.forget(owner)
            if self._shadows is not None:
                self._shadows.forget(owner)

    def watched(self) -> Watched:
        with self._lock:
            shadows = self._shadows.reports() if self._shadows is not None else ()
            tally = next(reversed(self._tallies.values()), None)
            counts = Tally(self._cost_ms).counts() if tally is None else tally.counts()
            return Watched(counts, tuple(shadows))

    def _cost_ms(self, new_tokens: int, cached_tokens: int) -> float:
        assert self._engine is not None, "nothing is counted before a model is served"
        return self._engine.loader.pass_ms(new_tokens, cached_tokens)
