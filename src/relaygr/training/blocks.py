"""The requests of an evaluation in runs that fit into memory, with the candidates that each of them ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import EvalRequest
from relaygr.training.candidates import CandidateSet, CandidateSource
from relaygr.training.scoring import UserEvents

BLOCK_CANDIDATES = 1 << 22  # of one block: 32 MiB of scores


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive requests of one user.

    Attributes:
        history, items, times: everything of the user, also what comes after the requests.
        requests, sets: those with both a positive and a negative among their candidates.
        taken: requests looked at.
        left_out: positives of these that are not among the candidates.
    """

    user: int
    history: UserEvents
    items: Int64s
    times: Int64s
    requests: tuple[EvalRequest, ...]
    sets: tuple[CandidateSet, ...]
    taken: int
    left_out: int


def blocks(events: Events, requests: Sequence[EvalRequest], source: CandidateSource) -> Iterator[Block]:
    """Blocks in the order of `requests`, which are ordered by (user, second)."""
    width = len(source.catalogue) if source.mode == "full" else source.negatives
    most = max(BLOCK_CANDIDATES // width, 1)
    for user, group in groupby(requests, key=lambda request: request.user):
        columns = events.history(user)
        history, mine = UserEvents.of(columns), list(group)
        for first in range(0, len(mine), most):
            taken = mine[first : first + most]
            sets = [source.candidates(request, columns[0]) for request in taken]
            pairs = [pair for pair in zip(taken, sets, strict=True) if pair[1].rankable]
            yield Block(
                user,
                history,
                columns[0],
                columns[1],
                tuple(request for request, _ in pairs),
                tuple(each for _, each in pairs),
                len(taken),
                sum(each.left_out for each in sets),
            )
