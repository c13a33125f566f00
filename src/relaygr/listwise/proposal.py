"""Lists that compete for one request, and the interface of what proposes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from relaygr.core.clock import Clock
from relaygr.listwise.arrays import Int32
from relaygr.listwise.errors import SlateDeadlineError

if TYPE_CHECKING:
    from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True)
class Proposal:
    """One list.

    Attributes:
        picks: int32 [length], columns of the scene's pool, first position first.
        generator: who proposed it.
        log_propensity: log-probability that a stochastic generator draws this list; None for the others.
        exact: False if the list is from a rescue search and not from the generator's own rule.
    """

    picks: Int32
    generator: str
    log_propensity: float | None = None
    exact: bool = True


class Budget:
    """The time a request has left; `clock` is read at each check.

    Args:
        clock: of the deadline.
        deadline_s: on that clock; None for no limit.
    """

    def __init__(self, clock: Clock, deadline_s: float | None = None) -> None:
        self._clock, self._deadline_s = clock, deadline_s
        self.stage = "start"  # what the work is at, for the message

    @property
    def limited(self) -> bool:
        return self._deadline_s is not None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; infinite without one."""
        return math.inf if self._deadline_s is None else self._deadline_s - self._clock.now_s()

    def check(self) -> None:
        """Call between stages and between positions.

        Raises:
            SlateDeadlineError: the time is over.
        """
        if self._deadline_s is not None and self._clock.now_s() >= self._deadline_s:
            raise SlateDeadlineError(self.stage)


class Generator(Protocol):
    """Proposes lists.

    `propose` may return none. It depends on the scene and on `scene.seed(self.name)` alone, calls
    `budget.check` before every position, and picks only what `scene.walk` allows. A dead end goes to
    `scene.walk.rescue`. What it raises ends the list layer's part in the request (the fallback is returned).
    """

    @property
    def name(self) -> str: ...

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]: ...
