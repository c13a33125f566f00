"""What a scheduler of generations runs on, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from relaygr.core.errors import RelayError


class Need(NamedTuple):
    """What a request takes of the budgets of its wave.

    Attributes:
        tokens: prompt tokens to compute.
        rows: beams of its widest round.
    """

    tokens: int
    rows: int

    def __add__(self, other: tuple[Any, ...]) -> Need:  # of two needs, not of two tuples
        return Need(self.tokens + other[0], self.rows + other[1])


class StepKind(StrEnum):
    """What a step did."""

    PREFILL = "prefill"
    ROUND = "round"
    ENCODE = "encode"  # of a prompt that nobody generates from yet


@dataclass(frozen=True, slots=True)
class Step:
    """What one turn of the processor was used for.

    Attributes:
        requests: that took part; tokens: prompt tokens computed; rows: beams that were run.
        seconds: all of it; forward_s: in the model; select_s: choosing beams.
        prepare_s: of the next round's index work, beside the forward; wait_s: of that, what was waited for.
    """

    kind: StepKind
    requests: int
    tokens: int = 0
    rows: int = 0
    seconds: float = 0.0
    forward_s: float = 0.0
    select_s: float = 0.0
    prepare_s: float = 0.0
    wait_s: float = 0.0


class Ask(Protocol):
    """A request that was checked: it fits the model, its catalogue and the limits.

    Attributes:
        request_id: chosen by the caller, repeated in every answer and error.
        owner: tenant and user; the user is "" for prompts without one.
        deadline_ms: what the request asked for; None without.
        tokens, rows: its prompt, and beams of its widest round; 0 rows for a prompt that is only encoded.
    """

    @property
    def request_id(self) -> str: ...

    @property
    def owner(self) -> tuple[str, str]: ...

    @property
    def deadline_ms(self) -> float | None: ...

    @property
    def tokens(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def close(self) -> None:
        """Let go of what it has pinned; again a no-op."""
        ...


class Seat(Protocol):
    """An admitted request: everything it needs is reserved until `close`.

    Attributes:
        prefilled: whether its prompt is computed, so that rounds may begin.
        outcome: its answer or error, as soon as there is one.
    """

    @property
    def prefilled(self) -> bool: ...

    @property
    def outcome(self) -> object | None: ...

    def close(self) -> None:
        """Give everything back; again a no-op."""
        ...


class Backend(Protocol):
    """Computes. `check` and `need` may be called from any thread, everything else by one.

    What goes wrong for one request is its seat's outcome. What a step raises is everybody's who took part.
    """

    def check(self, request: Any) -> Ask:
        """The request, ready to wait.

        Raises:
            RelayError: it never fits, or there is no catalogue.
        """
        ...

    def need(self, ask: Any) -> Need:
        """By what is cached now."""
        ...

    def seat(self, ask: Any) -> Seat | None:
        """Reserve what the request needs; None if that is not to be had now.

        Raises:
            RelayError: it will never be.
        """
        ...

    def prefill(self, seats: Sequence[Any]) -> Step:
        """Compute some of the prompts that are not complete, in the order given."""
        ...

    def round(self, seats: Sequence[Any]) -> Step:
        """One round of each; all are prefilled, and may be at different rounds."""
        ...

    def encode(self, ask: Any) -> tuple[Step, object | None]:
        """A part of a prompt that is encoded ahead, and what it ended with if that was all."""
        ...

    def chore(self) -> bool:
        """Some of what is done when nothing waits; False if there is nothing to do."""
        ...

    def forget(self, tenant: str, user: str) -> int:
        """Drop what is kept of a user; returns the entries dropped."""
        ...


class GenerateObserver(Protocol):
    """Hears what a scheduler does, on whatever thread did it; must be quick. What it raises is logged."""

    def started(self, wave: int, joined: int, rows: int, tokens: int, formed_s: float) -> None:
        """Requests began: `joined` of the `wave` that run now; `formed_s` after the oldest of them came."""

    def stepped(self, step: Step) -> None:
        """A step is over."""

    def ended(self, job: Any, answer: object) -> None:
        """A job has its answer: called once, instead of `failed`."""

    def failed(self, kind: str, error: RelayError) -> None:
        """A "generate" or "encode" that had been queued ended in an error; expired and cancelled ones too."""
