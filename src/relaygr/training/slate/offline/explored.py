"""Logged lists with the candidates that they were chosen from: what off-policy estimates need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32, Int64
from relaygr.listwise.masks import NoRules, Rules
from relaygr.listwise.pool import Pool
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.trust import Trust
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.sampling import Sampled
from relaygr.training.slate.world import Requests


@dataclass(frozen=True, slots=True, eq=False)
class Explored:
    """N logged lists, first pages all of them.

    Attributes:
        pools: the candidates of each request, in any order.
        picks: int32 [N, L], the shown items as columns of the pools; -1 behind `shown`.

    Raises:
        ConfigError: the three do not belong together.
    """

    logs: LoggedLists
    pools: Sequence[Pool]
    picks: Int32

    def __post_init__(self) -> None:
        if len(self.pools) != len(self.logs) or self.picks.shape != self.logs.items.shape:
            raise ConfigError("candidates", f"of {len(self.pools)} requests, for {len(self.logs)} lists")
        if self.logs.earlier is not None:
            raise ConfigError("earlier", "off-policy estimates take first pages only")
        for n, pool in enumerate(self.pools):
            shown = int(self.logs.shown[n])
            if not np.array_equal(pool.ids[self.picks[n, :shown]], self.logs.items[n, :shown]):
                raise ConfigError("candidates", f"request {n} shows items that are not its picks")

    def __len__(self) -> int:
        return len(self.logs)

    def select(self, rows: Any) -> Explored:
        """The lists `rows`, a mask or indices."""
        places = np.arange(len(self))[rows]
        return Explored(self.logs.select(rows), [self.pools[at] for at in places.tolist()], self.picks[rows])

    def scenes(
        self, value: ValueFunction, rules: Rules | None = None, trust: Trust | None = None
    ) -> list[Scene]:
        """Each request as generators see it; with `trust` its trust region for the length asked."""
        plain = Slates(value, mode=Mode.OFF)
        lengths = self.logs.shown if trust is None else self.logs.asked
        made = [
            plain.scene(
                SlateAsk(request_id=str(n), length=int(length), rules=rules or NoRules()), self.pools[n]
            )
            for n, length in enumerate(lengths)
        ]
        return made if trust is None else [trust.region(scene).scene for scene in made]


def of_world(requests: Requests, sampled: Sampled) -> Explored:
    """What a world's users left in the logs, with all candidates."""
    return Explored(sampled.logs, [requests.pool(n) for n in range(len(requests))], sampled.lists)


def rewards(value: ValueFunction, logs: LoggedLists) -> Float64:
    """Realised values of consumed positions; NaN where a label that the value needs is missing. [N, L]

    Positions behind the exit are 0, as nothing was realised there; their labels are not read.
    """
    labels = logs.labels.astype(np.float64).transpose(2, 0, 1)
    needed = np.array([head.name in value.reads for head in value.heads])
    missing = np.isnan(labels[needed]).any(axis=0)
    found = np.where(missing, np.nan, value(np.nan_to_num(labels)))
    return np.where(logs.observed, found, 0.0)


def usable(value: ValueFunction, logs: LoggedLists) -> Int64:
    """Lists with propensities for all that was consumed, and with the labels that the value needs."""
    seen = logs.observed
    known = (np.isfinite(logs.log_propensity) | ~seen).all(axis=1)
    labelled = np.isfinite(rewards(value, logs)).all(axis=1)
    return np.flatnonzero(known & labelled)


def as_lists(template: LoggedLists, pools: Sequence[Pool], picks: Int32) -> LoggedLists:
    """Lists that nobody was shown, in the form in which judges read lists; labels are missing.

    Args:
        template: users, pages, surfaces and slots of the requests.
        picks: int32 [N, L], columns of the pools; -1 behind the end of a list.
    """
    N, L = picks.shape
    shown = (picks >= 0).sum(axis=1).astype(np.int64)
    at = np.maximum(picks, 0)
    names = tuple(template.attributes)
    return LoggedLists(
        heads=template.heads,
        users=template.users,
        items=np.stack([pool.ids[row] for pool, row in zip(pools, at, strict=True)]),
        outputs=np.stack([pool.outputs[row] for pool, row in zip(pools, at, strict=True)]),
        labels=np.full((N, L, len(template.heads)), np.nan, dtype=np.float32),
        attributes={
            name: np.stack([pool.attributes[name][row] for pool, row in zip(pools, at, strict=True)])
            for name in names
        },
        vectors=_vectors(pools, at),
        shown=shown,
        consumed=shown,
        more=np.zeros(N, dtype=bool),
        asked=shown,
        surface=template.surface,
        page=template.page,
        session=template.session,
        log_propensity=np.full((N, L), np.nan),
    )


def _vectors(pools: Sequence[Pool], at: Int32) -> Any:
    rows = [None if pool.vectors is None else pool.vectors[row] for pool, row in zip(pools, at, strict=True)]
    found = [each for each in rows if each is not None]
    return np.stack(found) if len(found) == len(rows) else None
