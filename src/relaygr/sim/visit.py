"""One request on its way through the fleet, and what became of it."""

from __future__ import annotations

import math
from typing import Literal

from relaygr.sim.found import Found
from relaygr.sim.workload import Request

Path = Literal["hit", "reloaded", "resumed", "full", "truncated", "degraded", "lost"]
"""What served a ranking; `lost` answers nobody."""

PATHS: tuple[Path, ...] = ("hit", "reloaded", "resumed", "full", "truncated", "degraded", "lost")


class Visit:
    """A request and the notes that everybody who handles it makes.

    Attributes:
        due_s: when ranking is due; latency counts from here.
        rank_by_s, answer_by_s: the ends of the rank budget and of the request's.
        key: that routers know the user by.
        prefix: history tokens that pre-inference may compute; the rest is left to ranking.
        risky: whether the trigger saw a reason to pre-infer; None if it was not asked.
        found: what there was of the prefix when the signal came; None before.
        reason: of the trigger or gate; empty without a signal.
        outcome: of the signal: how its prefix was to get ready; empty without an admitted one.
        owner, rank_owner: members that the two laps went to; -1 for none.
        queued_s, started_s, done_s: of the ranking, on the instance; 0 before. `ready_s`: when its prefix was
            complete on the instance; infinity if it never was.
        cached, missing: tokens found and tokens computed by ranking.
        served: history tokens that the scores rest on.
        answered: how many answers it got; one at the end of every simulation.
    """

    __slots__ = (
        "answer_by_s",
        "answered",
        "cached",
        "claimed",
        "done_s",
        "due_s",
        "found",
        "key",
        "missing",
        "outcome",
        "owner",
        "path",
        "pinned",
        "prefix",
        "queued_s",
        "rank_by_s",
        "rank_owner",
        "ready_s",
        "reason",
        "reloaded",
        "request",
        "retries",
        "served",
        "started_s",
        "tokens",
        "user",
    )

    def __init__(self, request: Request, prefix: int, b_rank_s: float, b_pipe_s: float) -> None:
        self.request = request
        self.user, self.tokens, self.prefix = request.user, request.before + request.new, prefix
        self.due_s = request.time_s + request.lead_s
        self.rank_by_s = self.due_s + b_rank_s
        self.answer_by_s = request.time_s + b_pipe_s
        self.key = self.reason = self.outcome = ""
        self.owner = self.rank_owner = -1
        self.queued_s = self.started_s = self.done_s = 0.0
        self.ready_s = math.inf
        self.claimed = self.pinned = False
        self.cached = self.missing = self.served = 0
        self.path: Path = "lost"
        self.reloaded = False
        self.found: Found | None = None
        self.answered = self.retries = 0

    @property
    def good(self) -> bool:
        """All of the history, within the rank budget."""
        return self.served == self.tokens and self.in_time

    @property
    def in_time(self) -> bool:
        """Of any history, within the rank budget."""
        return self.valid and self.done_s <= self.rank_by_s

    @property
    def valid(self) -> bool:
        """Scores of a model, within the request's budget."""
        return self.path not in ("lost", "degraded") and self.done_s <= self.answer_by_s
