"""The one interface to pointwise rankers: each candidate of a request is scored once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from relaygr.core.errors import BackendError
from relaygr.listwise.arrays import Float32, Int64
from relaygr.listwise.pool import Head, Pool

_NONE: Mapping[str, Int64] = MappingProxyType({})


class Scorer(Protocol):
    """A pointwise ranker bound to one user.

    `score` returns logits of binary heads and positive values of regression heads for items int64 [C], as
    float32 [C, K] in the order of `heads`.
    """

    @property
    def heads(self) -> tuple[Head, ...]: ...

    def score(self, ids: Int64) -> Float32: ...


class CountedScorer:
    """Counts what a ranker is asked for."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.calls = 0
        self.items = 0

    @property
    def heads(self) -> tuple[Head, ...]:
        return self._scorer.heads

    def score(self, ids: Int64) -> Float32:
        self.calls += 1
        self.items += len(ids)
        return self._scorer.score(ids)


def scored_pool(
    scorer: Scorer,
    ids: Int64,
    attributes: Mapping[str, Int64] = _NONE,
    vectors: Float32 | None = None,
) -> Pool:
    """A pool of candidates, by one call of the ranker. All that happens to lists afterwards reads the pool.

    Raises:
        BackendError: the ranker's answer is of another shape, or not finite.
        RequestError: as `Pool`.
    """
    outputs = np.asarray(scorer.score(ids), dtype=np.float32)
    wanted = (len(ids), len(scorer.heads))
    if outputs.shape != wanted:
        raise BackendError(f"ranker: outputs of shape {list(outputs.shape)}, wanted {list(wanted)}")
    if not np.isfinite(outputs).all():
        raise BackendError("ranker: outputs are not finite")
    return Pool(ids=ids, heads=scorer.heads, outputs=outputs, attributes=attributes, vectors=vectors)
