"""All that generators and evaluators see of one request: candidates in pointwise order, values, rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int32, Int64
from relaygr.listwise.masks import Walk
from relaygr.listwise.pool import Pool
from relaygr.listwise.request import SlateAsk, seed_of

Made = TypeVar("Made")


@dataclass(frozen=True)
class Scene:
    """One request over candidates in the order of pointwise rank: column 0 has the highest value.

    Attributes:
        ask: the request.
        pool: the candidates, sorted by (value descending, caller's index ascending).
        value: float64 [C], pointwise values V; they never ascend.
        walk: the rules over exactly these columns.
        columns: int64 [C], the caller's index of each column.
        fallback: int32 [length], the rule-repaired pointwise list as columns; None while it is being made.
    """

    ask: SlateAsk
    pool: Pool
    value: Float64
    walk: Walk
    columns: Int64
    fallback: Int32 | None = None
    _cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        """C."""
        return len(self.pool)

    @property
    def length(self) -> int:
        """Positions to fill; less than asked for if the rules leave no more."""
        return self.walk.length

    @property
    def unit(self) -> Float64:
        """The candidates' vectors, of length 1 up to float64. [C, Dv]

        Raises:
            RequestError: the pool has no vectors.
        """
        return self.once("unit", self._unit)

    @property
    def cosine(self) -> Float64:
        """Cosines of all pairs of candidates, exactly symmetric, 1 on the diagonal. float64 [C, C]

        Raises:
            RequestError: the pool has no vectors.
        """
        return self.once("cosine", self._cosine)

    @property
    def similarity(self) -> Float64:
        """(1 + cosine) / 2: in [0, 1], unit diagonal, positive semi-definite. float64 [C, C]"""
        return self.once("similarity", lambda: 0.5 * (1.0 + self.cosine))

    def _unit(self) -> Float64:
        if self.pool.vectors is None:
            raise RequestError("vectors", "are needed for similarities, and the pool has none")
        return unit(self.pool.vectors)

    def _cosine(self) -> Float64:
        matrix = self.unit @ self.unit.T
        matrix = np.clip(0.5 * (matrix + matrix.T), -1.0, 1.0)
        np.fill_diagonal(matrix, 1.0)
        return matrix

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returned at the first call with this key; for tables that several parts read."""
        if key not in self._cache:
            self._cache[key] = make()
        made: Made = self._cache[key]
        return made

    def seed(self, generator: str) -> int:
        """Of the request's id and the generator; below 2**64."""
        return seed_of(self.ask.request_id, generator)

    def with_fallback(self, picks: Int32) -> Scene:
        return replace(self, fallback=picks)

    def narrow(self, columns: Int64, favoured: Bool | None = None, at_least: int = 0) -> Scene:
        """The same request over some columns, which ascend and hold the fallback if there is one."""
        fallback = None if self.fallback is None else np.searchsorted(columns, self.fallback).astype(np.int32)
        return Scene(
            self.ask,
            self.pool.select(columns),
            self.value[columns],
            self.walk.narrow(columns, favoured, at_least),
            self.columns[columns],
            fallback,
        )

    def top(self, m: int) -> Int64:
        """The first m columns and those of the fallback, ascending: a full list exists among them."""
        head = np.arange(min(m, len(self)), dtype=np.int64)
        return head if self.fallback is None else np.union1d(head, self.fallback.astype(np.int64))


def unit(vectors: Float32) -> Float64:
    """Vectors [n, Dv] of length 1 up to float64."""
    exact = vectors.astype(np.float64)
    exact /= np.sqrt(np.einsum("nd,nd->n", exact, exact))[:, None]
    return exact
