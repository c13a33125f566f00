"""Batches: which requests run together, and their rows in micro-batches through the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.engine.history import UserHistory
from relaygr.engine.residency import Residency
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import HstuRanker, RowInput

# New rows of one pass: bounds activations to some hundred MiB, whatever the batch.
MAX_PASS_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Work:
    """One checked request.

    Attributes:
        place: its index in the caller's batch.
        candidates: int64 [m].
        start: event index at which the window begins.
    """

    place: int
    history: UserHistory
    candidates: Tensor
    query_time: int
    start: int

    @property
    def tokens(self) -> int:
        return len(self.history.contextual) + len(self.history) - self.start

    def row(self, residency: Residency, first: int, step: int) -> RowInput:
        """The request's row with candidates [first, first + step); its history rides on the first."""
        history, start = self.history, self.start
        return RowInput(
            contextual=torch.tensor(history.contextual),
            items=torch.tensor(history.items[start:]),
            timestamps=torch.tensor(history.timestamps[start:]),
            actions=torch.tensor(history.actions[start:]),
            candidates=self.candidates[first : first + step],
            query_time=self.query_time,
            cached=residency.cached if first == 0 else self.tokens,
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
    model: HstuRanker, kernel: Kernel, wave: Sequence[Work], held: Sequence[Residency], microbatch: int
) -> list[Tensor]:
    """Logits [m, tasks] of each request; passes after the first hold only those with candidates left."""
    parts: list[list[Tensor]] = [[] for _ in wave]
    first = 0
    turn = list(range(len(wave)))
    while turn:
        rows = [wave[i].row(held[i], first, microbatch) for i in turn]
        for i, logits in zip(turn, model(rows, kernel), strict=True):
            parts[i].append(logits)
        first += microbatch
        turn = [i for i in turn if first < len(wave[i].candidates)]
    return [torch.cat(part) for part in parts]
