"""Scoring some of the rankings that used the cache again without it, in steps, and comparing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from relaygr.config.relay import RelayConfig
from relaygr.engine.aside import Aside
from relaygr.engine.engine import Engine
from relaygr.engine.jobs import ChunkTokens
from relaygr.engine.requests import RankRequest, RankResult
from relaygr.relay.shadow import ShadowBook

log = logging.getLogger("relaygr.engine")

FP32_EPSILON = 1e-5
_MARGIN, _CHUNK = 8.0, 256
_MANY = 1 << 30  # tokens that are left, as far as the size of a step goes


class Shadow:
    """One ranking that is scored again, by the engine that scored it."""

    def __init__(self, request: RankRequest, result: RankResult, engine: Engine) -> None:
        self.engine, self._result = engine, result
        self.owner = request.history.tenant, request.history.user
        self._aside = Aside(request)

    @property
    def build(self) -> str:
        return self.engine.model_fp.hex()

    def step(self, chunk: ChunkTokens) -> bool:
        """Compute some more; True when `difference` is known."""
        return self.engine.score_aside(self._aside, max(chunk(self._aside.filled, _MANY), 1))

    def difference(self) -> float:
        """Largest difference of a score, as a share of the largest score if that is above 1."""
        fresh = self._aside.logits
        assert fresh is not None, "all steps are done"
        return score_difference(self._result.logits, fresh)


def score_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Of two arrays of logits; see `Shadow.difference`."""
    if not one.size:
        return 0.0
    scale = max(1.0, float(np.abs(other).max()))
    return float(np.abs(one.astype(np.float64) - other).max()) / scale


class ShadowObserver(Protocol):
    """Hears what shadow scoring finds."""

    def shadowed(self, difference: float, breach: bool) -> None: ...


class Shadows:
    """Picks a share of the hits; a build whose scores differ too much is served without relay and cache."""

    def __init__(
        self, config: RelayConfig, disable: Callable[[str], None], observer: ShadowObserver | None = None
    ) -> None:
        self._config, self._disable, self._observer = config, disable, observer
        self._book = ShadowBook(config.shadow_rate, FP32_EPSILON)

    def limit(self, measured: float) -> None:
        """Allow what the settings say; `measured` of the model that is served now, if they say nothing."""
        allowed = measured if self._config.epsilon_limit == "auto" else self._config.epsilon_limit
        self._book = ShadowBook(self._config.shadow_rate, allowed)

    def pick(self, request: RankRequest, result: RankResult, engine: Engine) -> Shadow | None:
        """The ranking, to be scored again, if it is one of those."""
        return Shadow(request, result, engine) if self._book.sampled() else None

    def compare(self, shadow: Shadow) -> None:
        """All of its steps are done."""
        difference = shadow.difference()
        breach = self._book.observe(shadow.build, difference)
        if breach:
            log.error(
                "cached and uncached scores differ by %.3g: model %s is served without relay and cache",
                difference,
                shadow.build,
            )
            self._disable(shadow.build)
            shadow.engine.stop_reuse()
        if self._observer is not None:
            self._observer.shadowed(difference, breach)


def measured_epsilon(engine: Engine, requests: Sequence[RankRequest]) -> float:
    """What cached and uncached scores of this build may differ by: never less than fp32 is allowed.

    The requests of a user build on one another. Whatever is found on them, a multiple of it is allowed,
    since a few requests do not hold the largest difference.
    """
    worst = 0.0
    for request in requests:
        fresh = Aside(request)
        while not engine.score_aside(fresh, _CHUNK):
            pass
        assert fresh.logits is not None
        worst = max(worst, score_difference(engine.rank(request).logits, fresh.logits))
    return max(FP32_EPSILON, _MARGIN * worst) if engine.choice.dtype != torch.float32 else FP32_EPSILON
