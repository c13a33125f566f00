"""What a caller asks of the list layer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from relaygr.core.errors import RequestError
from relaygr.listwise.masks import NoRules, Rules
from relaygr.listwise.pool import Shown

MAX_LENGTH = 500


class Mode(StrEnum):
    OFF = "off"  # no list model: the rule-repaired pointwise list
    SHADOW = "shadow"  # compute and log, return the rule-repaired pointwise list
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateAsk:
    """One list.

    Attributes:
        request_id: echoed; seeds derive from it.
        length: positions to fill, L.
        rules: what must hold.
        shown: what earlier pages held; context and rules go on from there.
        slots: type of each position, L small integers; empty if all are alike.
        consumed: items that the user consumed in this session before `shown`.
        budget_ms: time that the list layer may take; None for no limit.
        mode: overrides the server's mode; None keeps it.
        unrestricted: give up the trust region; logged.
        allow_short: return a shorter list if the rules leave no full one.
        explore: what decides whether this request explores, and what it draws by; empty for never.

    Raises:
        RequestError: naming the field, the value and the limit.
    """

    request_id: str
    length: int
    rules: Rules = field(default_factory=NoRules)
    shown: Shown | None = None
    slots: Sequence[int] = ()
    consumed: int = 0
    budget_ms: float | None = None
    mode: Mode | None = None
    unrestricted: bool = False
    allow_short: bool = True
    explore: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or not 1 <= self.length <= MAX_LENGTH:
            raise RequestError("length", f"{self.length!r} is not an integer from 1 to {MAX_LENGTH}")
        if self.slots and len(self.slots) != self.length:
            raise RequestError("slots", f"{len(self.slots)} types for {self.length} positions")
        if self.slots and min(self.slots) < 0:
            raise RequestError("slots", f"{min(self.slots)} is below 0")
        if self.consumed < 0:
            raise RequestError("consumed", f"{self.consumed} is below 0")
        if self.budget_ms is not None and not 0 < self.budget_ms < float("inf"):
            raise RequestError("budget_ms", f"{self.budget_ms!r} is not a positive number")
        if self.mode is not None:
            try:
                object.__setattr__(self, "mode", Mode(self.mode))
            except ValueError:
                raise RequestError("mode", f"{self.mode!r} is none of {', '.join(Mode)}") from None


def seed_of(request_id: str, generator: str) -> int:
    """The seed of one generator for one request, below 2**64; the same in every process."""
    text = f"{len(request_id)}:{request_id}{generator}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
