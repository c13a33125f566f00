"""What the relay of an instance is told, hands out, and says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from relaygr.core.state import Prefix, Ref
from relaygr.relay.holds import Cause, HoldBook
from relaygr.relay.trigger import Build, Verdict

Owner = tuple[str, str]


class RelayObserver(Protocol):
    """Hears what the relay does, on whatever thread did it; must be quick."""

    def decided(self, verdict: Verdict, seconds: float) -> None:
        """A signal was decided on, in so long."""

    def lead(self, seconds: float, ready: bool) -> None:
        """A ranking came so long after its signal, and found its prefix complete or not."""

    def left(self, cause: Cause) -> None:
        """A prefix is live no longer."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model as the relay sees it; a new one starts with nothing held.

    Attributes:
        build: its name, whether it relays, its speed.
        token_bytes: of one token on the device, all layers.
        page_tokens: prefixes take whole pages.
        host_token_bytes: of one token in host memory; 0 is as many as on the device.
    """

    build: Build
    token_bytes: int
    page_tokens: int
    host_token_bytes: int = 0

    def prefix_bytes(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens) * self.page_tokens * self.token_bytes

    def stored(self, tokens: int) -> Prefix | None:
        """What a tier has of a prefix, already compared with it; None for nothing."""
        return Stored(tokens, self.prefix_bytes(tokens)) if tokens else None

    def in_host(self, tokens: int, there: int = 0) -> Prefix | None:
        """`stored` in host memory; its bytes are those of a copy to where the first `there` tokens are."""
        nbytes = self.prefix_bytes(max(tokens - there, 0))
        nbytes = nbytes * (self.host_token_bytes or self.token_bytes) // self.token_bytes
        return Stored(tokens, nbytes) if tokens else None

    def recompute_s(self, tokens: int, cached: int) -> float:
        """What computing a prefix takes without a reload; for ever where no speed is known."""
        latency = self.build.latency
        if latency is None:
            return float("inf")
        return max(latency.pre_ms(tokens) - latency.pre_ms(cached), 0.0) / 1000


@dataclass(slots=True)
class Lap:
    """A ranking in progress: its hold on the prefix, if there is one."""

    owner: Owner
    book: HoldBook[Owner]
    generation: int | None
    pinned: bool
    started_s: float


@dataclass(frozen=True, slots=True)
class Stored:
    """What a tier has of a prefix, already compared with it."""

    tokens: int
    nbytes: int

    def valid_for(self, ref: Ref) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class RelayState:
    """For metrics and feedback.

    Attributes:
        live_bytes: by state; bound_bytes: what they may not exceed together.
        rank_share: of the model slots, what ranking takes.
        ready_ratio: share of rankings with a signal that found the prefix complete; None before any.
        return_ratio: share of visits that were followed by another of the same user.
        steps: admitted signals, by how their prefix gets ready; reloads_skipped: by why.
        precision, recall: of the trigger's prediction of risk; None before any.
        enabled: for the build that is served.
    """

    live_bytes: tuple[tuple[str, int], ...]
    bound_bytes: int
    entries: int
    q_rate_per_s: float
    q_load_per_s: float
    lead_ms: float
    t_life_ms: float
    rank_share: float
    ready_ratio: float | None
    return_ratio: float
    steps: tuple[tuple[str, int], ...]
    reloads_skipped: tuple[tuple[str, int], ...]
    precision: float | None
    recall: float | None
    enabled: bool
