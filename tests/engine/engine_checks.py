"""Requests for small engines of every family, and whether their answers are those of a dense pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from engine_models import dense_logits, events, profile

from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import Path, RankRequest, RankResult
from relaygr.models.presets import AnyConfig

CANDIDATES = np.arange(1, 12)


def user(config: AnyConfig, count: int, seed: int, name: str = "u") -> UserHistory:
    items, times, actions = events(count, seed)
    return UserHistory(name, items, times, actions, contextual=profile(config))


def asked(history: UserHistory, candidates: Any = CANDIDATES, later_s: int = 4_000) -> RankRequest:
    last = int(history.timestamps[-1]) if len(history) else 1_700_000_000
    return RankRequest(history, candidates, last + later_s)


def close(a: np.ndarray, b: np.ndarray, bound: float = 1e-5) -> bool:
    return a.shape == b.shape and bool(
        np.all(np.abs(a - b) <= bound * max(1.0, float(np.abs(b).max(initial=0))))
    )


def ranked_right(engine: Engine, request: RankRequest) -> RankResult:
    """The engine's answer, which must be that of a dense pass."""
    result = engine.rank(request)
    assert close(result.logits, dense_logits(engine, request))
    return result


def counts(result: RankResult) -> tuple[Path, int, int]:
    return result.served.path, result.served.tokens_cached, result.served.tokens_computed
