"""When a failed call may be tried again: by its kind, by its deadline and by a budget over all calls.

A budget keeps the clients of a struggling server from multiplying its load: retries are at most a fixed share
of the calls, beyond a small reserve.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

from relaygr.client.errors import RequestRejectedError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how patiently, idempotent calls are repeated.

    Attributes:
        attempts: of one call, the first included; 1 never repeats.
        base_ms, cap_ms: the pause before retry n is uniform between 0 and min(cap, base * 2^n), and at least
            what the server asks for.
        budget_ratio: retries earned by each call.
        budget_burst: retries that can be saved up; the budget starts full.

    Raises:
        RequestRejectedError: naming the field, the value and the limit.
    """

    attempts: int = 3
    base_ms: float = 25.0
    cap_ms: float = 1000.0
    budget_ratio: float = 0.1
    budget_burst: float = 10.0

    def __post_init__(self) -> None:
        for field, value, low, high in (
            ("attempts", self.attempts, 1, 100),
            ("base_ms", self.base_ms, 0, 60_000),
            ("cap_ms", self.cap_ms, 0, 600_000),
            ("budget_ratio", self.budget_ratio, 0, 1),
            ("budget_burst", self.budget_burst, 0, 1_000_000),
        ):
            if not low <= value <= high:
                raise RequestRejectedError(f"{field}: {value} is outside [{low}, {high}]", field=field)

    def pause_ms(self, retry: int, asked_ms: float, rng: random.Random) -> float:
        """Milliseconds to wait before retry number `retry`, counted from 0."""
        # The exponent is bounded for its own sake: 2.0**1024 does not exist.
        return max(asked_ms, rng.uniform(0.0, min(self.cap_ms, self.base_ms * 2.0 ** min(retry, 40))))


class RetryBudget:
    """A bucket of retries shared by all calls of a client; safe between threads."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._ratio, self._burst = policy.budget_ratio, policy.budget_burst
        self._saved = self._burst
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Count a call."""
        with self._lock:
            self._saved = min(self._saved + self._ratio, self._burst)

    def spend(self) -> bool:
        """Take one retry; False when none is left."""
        with self._lock:
            if self._saved < 1.0:
                return False
            self._saved -= 1.0
            return True
