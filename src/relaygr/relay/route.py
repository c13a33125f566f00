"""What a router answers, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class Lap(StrEnum):
    """What a request is for; OTHER is everything that is neither of the two laps."""

    PREFIX = "prefix"
    RANK = "rank"
    OTHER = "other"


class Spill(StrEnum):
    """Why a request does not go to the member that would be its own."""

    LOAD = "load"
    DOWN = "down"
    REFUSED = "refused"
    DRAINING = "draining"
    LEFT = "left"
    MISMATCH = "mismatch"


class Refusal(StrEnum):
    """Why a lap goes nowhere; ranking only where there is no member at all."""

    NO_INSTANCE = "no_instance"
    LOAD = "load"
    HOT_KEY = "hot_key"


class Route(msgspec.Struct, frozen=True):
    """Where a request goes. `Router.done` must be told when it has ended.

    Attributes:
        epoch: of the members, when this was decided.
        spill: why not to the user's own member; None for that one.
        moved: the member may know less of the user than others do: nothing says that it served the user last.
    """

    member: str
    epoch: int
    spill: Spill | None = None
    moved: bool = False


class Refused(msgspec.Struct, frozen=True):
    """The request goes nowhere."""

    reason: Refusal
    epoch: int


@dataclass(slots=True)
class Counts:
    """What happened since the start.

    Attributes:
        requests: by lap and member.
        spills: by reason.
        misses: rankings that were sent elsewhere than their prefix.
        refusals: prefix signals and requests that went nowhere.
    """

    requests: Counter[tuple[Lap, str]] = field(default_factory=Counter)
    spills: Counter[Spill] = field(default_factory=Counter)
    misses: int = 0
    refusals: Counter[Refusal] = field(default_factory=Counter)
