"""The candidates of one request, scored once by the heavy ranker, and what was shown before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.listwise.arrays import Float32, Float64, Int64

MISSING = -1  # an attribute without a value; equal to nothing, itself included
_UNIT_TOLERANCE = 1e-3


class HeadKind(StrEnum):
    BINARY = "binary"  # the output is a logit
    REGRESSION = "regression"  # the output is a positive quantity


@dataclass(frozen=True, slots=True)
class Head:
    """One output of the pointwise ranker."""

    name: str
    kind: HeadKind = HeadKind.BINARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The candidates, in the caller's order.

    Attributes:
        ids: int64 [C], no two equal.
        heads: names and kinds of the K outputs.
        outputs: float32 [C, K]; logits of binary heads, non-negative values of regression heads.
        attributes: name -> int64 [C]; author, topic, format, audio, class and whatever rules name. `MISSING`
            where there is no value.
        vectors: float32 [C, Dv] of unit length; None if there are none.

    Raises:
        RequestError: naming the field, the value and the limit.
    """

    ids: Int64
    heads: tuple[Head, ...]
    outputs: Float32
    attributes: Mapping[str, Int64] = field(default_factory=lambda: MappingProxyType({}))
    vectors: Float32 | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or not len(self.ids):
            raise RequestError("ids", f"shape {list(self.ids.shape)}, wanted [C] with C >= 1")
        if len(np.unique(self.ids)) != len(self.ids):
            raise RequestError("ids", "hold an item twice")
        names = [head.name for head in self.heads]
        if not names or len(set(names)) != len(names):
            raise RequestError("heads", f"{names} must be distinct names, at least one")
        wanted = (len(self.ids), len(names))
        if self.outputs.shape != wanted:
            raise RequestError("outputs", f"shape {list(self.outputs.shape)}, wanted {list(wanted)}")
        if not np.isfinite(self.outputs).all():
            raise RequestError("outputs", "hold a number that is not finite")
        for at, head in enumerate(self.heads):
            if head.kind is HeadKind.REGRESSION and self.outputs[:, at].min() < 0:
                raise RequestError(f"outputs.{head.name}", f"{self.outputs[:, at].min()} is below 0")
        _check_side("", len(self.ids), self.attributes, self.vectors)

    def __len__(self) -> int:
        """C."""
        return len(self.ids)

    def select(self, columns: Any) -> Pool:
        """The candidates `columns` (integers [m]) in that order, as candidates 0..m-1 of a new pool."""
        return Pool(
            ids=self.ids[columns],
            heads=self.heads,
            outputs=self.outputs[columns],
            attributes={name: values[columns] for name, values in self.attributes.items()},
            vectors=None if self.vectors is None else self.vectors[columns],
        )

    def natural(self) -> Float64:
        """Probabilities of binary heads and values of regression heads. [K, C]"""
        return natural(self.heads, np.ascontiguousarray(self.outputs.T, dtype=np.float64))


def natural(heads: tuple[Head, ...], outputs: Float64) -> Float64:
    """Outputs [K, ...] as probabilities and values; a new array."""
    values = outputs.copy()
    for at, head in enumerate(heads):
        if head.kind is HeadKind.BINARY:
            values[at] = sigmoid(values[at])
    return values


def sigmoid(logits: Float64) -> Float64:
    """1 / (1 + exp(-x)) without overflow, as exact near 0 as near 1: a root of it may be part of a value."""
    small = np.exp(-np.abs(logits))
    values: Float64 = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the user got on the earlier pages of this feed, oldest first.

    Attributes:
        ids: int64 [n]; they are never picked again.
        attributes: name -> int64 [n].
        vectors: float32 [n, Dv] of unit length; None if there are none.
        watch: float64 [n], what was observed of the head that the step model sums up (seconds, for example).
        survival: probability of reaching the next page, 1 if the user has asked for it.
        page: index of the page that is wanted now, from 0.

    Raises:
        RequestError: naming the field, the value and the limit.
    """

    ids: Int64
    attributes: Mapping[str, Int64] = field(default_factory=lambda: MappingProxyType({}))
    vectors: Float32 | None = None
    watch: Float64 | None = None
    survival: float = 1.0
    page: int = 1

    def __post_init__(self) -> None:
        if self.ids.ndim != 1:
            raise RequestError("shown.ids", f"shape {list(self.ids.shape)}, wanted [n]")
        if not 0 < self.survival <= 1:
            raise RequestError("shown.survival", f"{self.survival} is not in (0, 1]")
        if self.page < 0:
            raise RequestError("shown.page", f"{self.page} is below 0")
        if self.watch is not None and self.watch.shape != self.ids.shape:
            raise RequestError("shown.watch", f"shape {list(self.watch.shape)}, wanted [{len(self.ids)}]")
        _check_side("shown.", len(self.ids), self.attributes, self.vectors)

    def __len__(self) -> int:
        """n."""
        return len(self.ids)


def _check_side(prefix: str, rows: int, attributes: Mapping[str, Int64], vectors: Float32 | None) -> None:
    for name, values in attributes.items():
        if values.shape != (rows,):
            raise RequestError(f"{prefix}attributes.{name}", f"shape {list(values.shape)}, wanted [{rows}]")
    if vectors is None:
        return
    if vectors.ndim != 2 or len(vectors) != rows:
        raise RequestError(f"{prefix}vectors", f"shape {list(vectors.shape)}, wanted [{rows}, Dv]")
    squares = np.einsum("nd,nd->n", vectors, vectors)
    if not (np.abs(squares - 1.0) <= 2 * _UNIT_TOLERANCE).all():  # NaN is not within either
        raise RequestError(f"{prefix}vectors", f"are not of length 1 within {_UNIT_TOLERANCE}")
