"""Logged lists: what was shown, how far the user got, and what is known of how it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int64
from relaygr.listwise.pool import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What the earlier pages of the same feed held, oldest first and aligned at the right.

    Attributes:
        there: bool [N, P], whether the place holds an item.
        attributes: name -> int64 [N, P].
        vectors: float32 [N, P, Dv] of unit length; None if there are none.
        watch: float64 [N], observed sum of the watch head.
    """

    there: Bool
    attributes: Mapping[str, Int64]
    vectors: Float32 | None
    watch: Float64

    def select(self, rows: Any) -> Earlier:
        return Earlier(
            there=self.there[rows],
            attributes={name: values[rows] for name, values in self.attributes.items()},
            vectors=None if self.vectors is None else self.vectors[rows],
            watch=self.watch[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLists:
    """N lists of up to L positions; what stands behind the last shown position of a list is not read.

    Attributes:
        heads: of the ranker.
        users: int64 [N].
        items: int64 [N, L], ids.
        outputs: float32 [N, L, K], what the ranker said.
        labels: float32 [N, L, K]; 0 or 1 for binary heads, quantities for others, NaN where there is none.
            Behind `consumed` they were never observed and are not read.
        attributes: name -> int64 [N, L].
        vectors: float32 [N, L, Dv] of unit length; None if there are none.
        shown: int64 [N], positions that were filled.
        consumed: int64 [N], positions that the user got to, at most `shown`.
        more: bool [N], whether the user asked for the next page. Without, the user's leaving after the last
            position is unknown (censored); one who stopped before the last position has left.
        asked: int64 [N], positions that had been asked for; the scale of the feature `position`.
        surface: int64 [N], where the list was shown.
        page: int64 [N]; session: int64 [N], items consumed in the session before this feed.
        slots: int64 [N, L], types of positions; None if all are alike.
        earlier: what earlier pages held; None if all lists are first pages.
        log_propensity: float64 [N, L], log-probability of each pick behind those before it; NaN where the
            choice was not random.
        generator: str [N], what made each list; None if nobody wrote it down.
    """

    heads: tuple[Head, ...]
    users: Int64
    items: Int64
    outputs: Float32
    labels: Float32
    attributes: Mapping[str, Int64] = field(default_factory=lambda: MappingProxyType({}))
    vectors: Float32 | None
    shown: Int64
    consumed: Int64
    more: Bool
    asked: Int64
    surface: Int64
    page: Int64
    session: Int64
    slots: Int64 | None = None
    earlier: Earlier | None = None
    log_propensity: Float64
    generator: npt.NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        N, L = self.items.shape
        if not N:
            raise ConfigError("lists", "0 are logged, at least one is needed")
        if self.outputs.shape != (N, L, len(self.heads)) or self.labels.shape != self.outputs.shape:
            raise ConfigError("outputs", f"{self.outputs.shape} is not [{N}, {L}, {len(self.heads)}]")
        if self.shown.min() < 1 or self.shown.max() > L:
            raise ConfigError("shown", f"{self.shown.min()}..{self.shown.max()} is not within 1..{L}")
        if self.consumed.min() < 0 or (self.consumed > self.shown).any():
            raise ConfigError("consumed", "is below 0 or above what was shown")
        if (self.more & (self.consumed < self.shown)).any():
            raise ConfigError("more", "a next page follows a list that was left before its end")

    def __len__(self) -> int:
        """N."""
        return len(self.users)

    @property
    def generators(self) -> list[str]:
        """What made each list; `logged` where nobody wrote it down. [N]"""
        return ["logged"] * len(self) if self.generator is None else [str(one) for one in self.generator]

    @property
    def explored(self) -> Bool:
        """Lists that have a propensity at every shown position. [N]"""
        behind: Bool = np.arange(self.items.shape[1]) >= self.shown[:, None]
        known: Bool = np.isfinite(self.log_propensity) | behind
        found: Bool = np.logical_and.reduce(known, axis=1)
        return found

    @property
    def observed(self) -> Bool:
        """Positions that the user got to. [N, L]"""
        seen: Bool = np.arange(self.items.shape[1]) < self.consumed[:, None]
        return seen

    def leaves(self) -> Float64:
        """Exit labels [N, L]: 1 where the user left after the position, 0 where not, NaN where unknown."""
        positions = np.arange(self.items.shape[1])
        last = positions == self.consumed[:, None] - 1
        left = last & (self.consumed < self.shown)[:, None]
        unknown = last & ((self.consumed == self.shown) & ~self.more)[:, None]
        labels = np.where(left, 1.0, 0.0)
        return np.where(unknown | ~self.observed, np.nan, labels)

    def select(self, rows: Any) -> LoggedLists:
        """The lists `rows`, a mask or indices."""
        changes: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                changes[one.name] = value[rows]
        changes["attributes"] = {name: values[rows] for name, values in self.attributes.items()}
        changes["earlier"] = None if self.earlier is None else self.earlier.select(rows)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Exposures:
    """Single items that were shown at random, by themselves: they say what an item is worth, not a list.

    Attributes:
        outputs: float32 [R, K], what the ranker said.
        labels: float32 [R, K].
        users: int64 [R].
    """

    outputs: Float32
    labels: Float32
    users: Int64
