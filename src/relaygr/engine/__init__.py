"""Prefetch, append, rank and forget over one user state."""

from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import EngineStats, Path, PrefetchResult, RankRequest, RankResult

__all__ = [
    "Engine",
    "EngineStats",
    "Path",
    "PrefetchResult",
    "RankRequest",
    "RankResult",
    "UserHistory",
]
