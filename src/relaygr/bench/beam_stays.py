"""How long requests waited while the budgets had room for them, from when each came, started and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from relaygr.engine.generation.jobs import AnyJob


@dataclass(frozen=True, slots=True)
class Stay:
    """One request's times, and what it takes: tokens until its prompt is computed, rows until it ends."""

    queued_s: float
    started_s: float
    prefilled_s: float
    done_s: float
    rows: int
    tokens: int

    @classmethod
    def of(cls, job: AnyJob) -> Stay:
        prefilled_s = job.prefilled_s or job.done_s
        return cls(job.queued_s, job.started_s, prefilled_s, job.done_s, job.ask.rows, job.ask.tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of what runs together; `alone`: nobody joins a group that runs."""

    rows: int
    tokens: int
    alone: bool


def longest_free_s(stays: Sequence[Stay], limits: Limits) -> float:
    """The longest stretch in which a request waited and might have started; 0 without requests."""
    return max((_free_s(one, stays, limits) for one in stays), default=0.0)


def _free_s(one: Stay, stays: Sequence[Stay], limits: Limits) -> float:
    beside = [
        stay
        for stay in stays
        if stay is not one and stay.started_s < one.started_s and stay.done_s > one.queued_s
    ]
    cuts = {one.queued_s, one.started_s}
    for stay in beside:
        cuts.update(
            at for at in (stay.started_s, stay.prefilled_s, stay.done_s) if one.queued_s < at < one.started_s
        )
    longest = since = 0.0
    edges = sorted(cuts)
    for begin, end in pairwise(edges):
        running = [stay for stay in beside if stay.started_s <= begin < stay.done_s]
        rows = one.rows + sum(stay.rows for stay in running)
        tokens = one.tokens + sum(stay.tokens for stay in running if begin < stay.prefilled_s)
        fits = rows <= limits.rows and tokens <= limits.tokens
        if not running or (fits and not limits.alone):
            since += end - begin
            longest = max(longest, since)
        else:
            since = 0.0
    return longest
