"""Batches: which requests run together, and their rows in micro-batches through the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest
from relaygr.engine.residency import Residency
from relaygr.kernels.interface import Kernel
from relaygr.models.config import Cacheable
from relaygr.models.ranker import Ranker, RowInput

# New rows of one pass: bounds activations to some hundred MiB, whatever the batch.
MAX_PASS_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Work:
    """One checked request.

    Attributes:
        place: its index in the caller's batch.
        candidates: int64 [m].
        query_time: of all candidates, or int64 [m].
        start: event index at which the window begins.
        stop: event index at which it ends.
        tokens: history tokens of the window whose K/V can be kept.
        unknown: ids that the model does not know.
        keep: whether the prefix may stay in the cache.
        request: what was checked.
    """

    place: int
    history: UserHistory
    candidates: Tensor
    query_time: int | Tensor
    start: int
    stop: int
    tokens: int
    unknown: int
    keep: bool = True
    request: RankRequest | None = None

    def passes(self, cacheable: Cacheable, step: int) -> list[Tensor]:
        """Which candidates run together, int64 [n] each; of one query time if K/V depend on it."""
        everything = torch.arange(len(self.candidates))
        if cacheable != "none" or isinstance(self.query_time, int):
            return list(torch.split(everything, step))
        times, order = torch.sort(self.query_time, stable=True)
        sizes = torch.unique_consecutive(times, return_counts=True)[1].tolist()
        return [part for group in torch.split(order, sizes) for part in torch.split(group, step)]

    def row(self, residency: Residency, chosen: Tensor, cached: int) -> RowInput:
        """The request's row with some of its candidates, int64 [n]."""
        history, query = self.history, self.query_time
        window = slice(self.start, self.stop)
        return RowInput(
            contextual=torch.tensor(history.contextual),
            items=torch.tensor(history.items[window]),
            timestamps=torch.tensor(history.timestamps[window]),
            actions=torch.tensor(history.actions[window]),
            candidates=self.candidates[chosen],
            query_time=query if isinstance(query, int) else query[chosen],
            cached=cached,
            store=residency.store,
            utc_offset_s=history.utc_offset_s,
        )


def next_wave(waiting: Sequence[Work]) -> tuple[list[Work], list[Work]]:
    """The requests of the next pass, and the others: one writer a user, a bounded number of rows.

    A second request of the same user waits for the next pass and finds the first one's K/V.
    """
    wave: list[Work] = []
    later: list[Work] = []
    users: set[tuple[str, str]] = set()
    rows = 0
    for work in waiting:
        owner = (work.history.tenant, work.history.user)
        if owner in users or (wave and rows + work.tokens > MAX_PASS_ROWS):
            later.append(work)
            continue
        users.add(owner)
        rows += work.tokens
        wave.append(work)
    return wave, later


def score(
    model: Ranker, kernel: Kernel, wave: Sequence[Work], held: Sequence[Residency], microbatch: int
) -> list[Tensor]:
    """Logits [m, tasks] of each request; passes after the first hold only those with candidates left."""
    cacheable = model.config.cacheable
    # A prefetch that nothing would be kept of, or that finds everything, computes nothing.
    plans = [
        work.passes(cacheable, microbatch)
        if len(work.candidates) or (not residency.reason and residency.cached < work.tokens)
        else []
        for work, residency in zip(wave, held, strict=True)
    ]
    parts: list[list[Tensor]] = [[] for _ in wave]
    for turn in range(max(map(len, plans), default=0)):
        running = [i for i, plan in enumerate(plans) if turn < len(plan)]
        rows = []
        for i in running:
            # The first pass computes what is missing; later ones find it, if it may be found at all.
            kept = wave[i].tokens if held[i].store is not None else 0
            rows.append(wave[i].row(held[i], plans[i][turn], kept if turn else held[i].cached))
        for i, logits in zip(running, model(rows, kernel), strict=True):
            parts[i].append(logits)
    nothing = torch.zeros(0, len(model.config.tasks))
    return [_in_order(part, plan) if plan else nothing for part, plan in zip(parts, plans, strict=True)]


def _in_order(parts: Sequence[Tensor], plan: Sequence[Tensor]) -> Tensor:
    logits, places = torch.cat(list(parts)), torch.cat(list(plan))
    ordered = torch.empty_like(logits)
    ordered[places] = logits
    return ordered
