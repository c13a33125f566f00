"""The members of a fleet: who takes new users, who only finishes, who is gone; every change is an epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from relaygr.config.relay import Member, RouterConfig

_RAMP_START = 0.1
_RAMP_STEPS = 32


class State(StrEnum):
    """Where a member stands: JOINING -> ACTIVE -> DRAINING -> LEFT, and DOWN at any time."""

    JOINING = "joining"
    ACTIVE = "active"
    DRAINING = "draining"
    LEFT = "left"
    DOWN = "down"


TAKING = frozenset((State.JOINING, State.ACTIVE))
SERVING = frozenset((*TAKING, State.DRAINING))


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a member says of itself.

    Attributes:
        build: fingerprint of the model that it serves; empty if it does not say.
        page_tokens: of its cache; 0 if it does not say.
        epoch: the newest one that it has seen.
        load: rankings and prefixes that wait or run.
    """

    build: str = ""
    page_tokens: int = 0
    epoch: int = 0
    load: int = 0
    draining: bool = False
    ready: bool = True

    @property
    def kind(self) -> tuple[str, int]:
        """What must be the same on all members for their prefixes to be worth the same."""
        return self.build, self.page_tokens


@dataclass(slots=True)
class Standing:
    """One member as it stands.

    Attributes:
        since_s: when it took this state.
        heard_s: when it last said something; minus infinity for never.
        answered_s: when it last answered a request that is no poll.
        missed: polls in a row without an answer that it is ready.
        held: drained by hand, so only by hand does it return.
        mismatched: serves another model or page size than most members do.
    """

    member: Member
    state: State
    since_s: float
    feedback: Feedback = Feedback()
    heard_s: float = -math.inf
    missed: int = 0
    held: bool = False
    mismatched: bool = False
    was_up: bool = False
    answered_s: float = -math.inf

    @property
    def takes(self) -> bool:
        """Whether users who are new or move may be sent to it."""
        return self.state in TAKING and not self.mismatched

    @property
    def serves(self) -> bool:
        """Whether those who are placed on it may be."""
        return self.state in SERVING and not self.mismatched


class Membership:
    """The members by id. Methods that take an unknown id raise KeyError.

    Attributes:
        epoch: one more at every change of a member's state.
        version: one more at every change that users could move by, steps of a ramp included.
        moves: one more at every change but those of a ramp.
        mismatches: how often a member began to differ from the others.
    """

    def __init__(self, config: RouterConfig, drain_s: float, now_s: float) -> None:
        """The configured members are active at once: a router that starts anew moves nobody.

        Args:
            drain_s: how long a draining member serves the users who are placed on it.
        """
        self.epoch, self.version, self.moves, self.mismatches = 1, 0, 0, 0
        self._config, self._drain_s, self._start_s = config, drain_s, now_s
        self._next_s, self._usual = math.inf, ("", 0)
        self._all = {one.id: Standing(one, State.ACTIVE, now_s) for one in config.members}

    def __iter__(self) -> Iterator[Standing]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, name: str) -> Standing:
        return self._all[name]

    def get(self, name: str) -> Standing | None:
        return self._all.get(name)

    def weight(self, name: str, now_s: float) -> float:
        """The member's weight; of a joining one, a part that grows from a tenth to all of it."""
        standing = self._all[name]
        if standing.state is not State.JOINING:
            return standing.member.weight
        step = math.floor(_RAMP_STEPS * (now_s - standing.since_s) / self._config.ramp_s)
        part = min(max(step / _RAMP_STEPS, 0.0), 1.0)
        return standing.member.weight * (_RAMP_START + (1 - _RAMP_START) * part)

    def add(self, member: Member, now_s: float) -> None:
        """A member that was not there, or has left; it joins with its first word that it is ready."""
        known = self._all.get(member.id)
        if known is not None and known.state is not State.LEFT:
            raise ValueError(f"{member.id!r} is a member already")
        self._all[member.id] = Standing(member, State.DOWN, now_s)

    def found(self, member: Member, now_s: float) -> None:
        """A member that was there before this router: like a configured one, it is active at once."""
        self.add(member, now_s)
        self._set(self._all[member.id], State.ACTIVE, now_s)

    def forget(self, name: str) -> None:
        """Nothing is kept of a member that has left for good."""
        del self._all[name]
        self.version += 1

    def remove(self, name: str, now_s: float) -> None:
        """The member leaves at once; the users on it move."""
        standing = self._all[name]
        standing.held = True
        self._set(standing, State.LEFT, now_s)

    def drain(self, name: str, now_s: float) -> None:
        """The member takes nobody any more, and leaves when those on it had time to finish."""
        standing = self._all[name]
        standing.held = True
        self._drain(standing, now_s)

    def activate(self, name: str, now_s: float) -> None:
        """The member returns; one that left or is down, with its first word that it is ready."""
        standing = self._all[name]
        standing.held = False
        if standing.state is State.DRAINING:
            self._set(standing, State.ACTIVE, now_s)

    def hear(self, name: str, said: Feedback, now_s: float) -> None:
        """A member answered."""
        standing = self._all[name]
        changed = said.kind != standing.feedback.kind
        standing.feedback, standing.heard_s = said, now_s
        if said.ready:
            standing.missed = 0
            self._up(standing, now_s)
            standing.was_up = True
        elif said.draining and standing.state in SERVING:
            self._drain(standing, now_s)
        elif not said.draining:
            self.miss(name, now_s)
        if changed:
            self._compare()

    def miss(self, name: str, now_s: float) -> None:
        """A member did not answer, or not that it is ready; too often in a row, and it is down."""
        standing = self._all[name]
        standing.missed += 1
        if standing.missed >= self._config.down_after:
            self.down(name, now_s)

    def down(self, name: str, now_s: float) -> None:
        """A member cannot be reached. One that has left stays as it is."""
        standing = self._all[name]
        if standing.state in SERVING:
            self._set(standing, State.DOWN, now_s)

    def advance(self, now_s: float) -> None:
        """Let time pass: ramps grow, drains end. Cheap when nothing is due."""
        if now_s < self._next_s:
            return
        for standing in self._all.values():
            if standing.state is State.JOINING:
                self.version += 1
                if now_s >= standing.since_s + self._config.ramp_s:
                    # Its weight has grown all the way: this moves nobody.
                    standing.state, standing.since_s = State.ACTIVE, now_s
                    self.epoch += 1
            elif standing.state is State.DRAINING and now_s >= standing.since_s + self._drain_s:
                self._set(standing, State.LEFT, now_s)
        self._schedule(now_s)

    def _up(self, standing: Standing, now_s: float) -> None:
        """The member is ready; one that is new or was away begins with little, if others can spare it."""
        if standing.state in TAKING or standing.held:
            return
        if standing.state is State.DRAINING:
            self._set(standing, State.ACTIVE, now_s)
            return
        ramp_s = self._config.ramp_s
        first = not standing.was_up and standing.member in self._config.members
        together = first and now_s < self._start_s + ramp_s
        alone = not any(other.takes for other in self._all.values())
        at_once = not ramp_s or alone or together
        self._set(standing, State.ACTIVE if at_once else State.JOINING, now_s)

    def _drain(self, standing: Standing, now_s: float) -> None:
        if standing.state in TAKING:
            self._set(standing, State.DRAINING, now_s)
        elif standing.state is State.DOWN:
            self._set(standing, State.LEFT, now_s)

    def _set(self, standing: Standing, state: State, now_s: float) -> None:
        if standing.state is state:
            return
        standing.state, standing.since_s = state, now_s
        self._changed()
        self._compare()
        self._schedule(now_s)

    def _changed(self) -> None:
        self.epoch += 1
        self.version += 1
        self.moves += 1

    def _schedule(self, now_s: float) -> None:
        due = [math.inf]
        for standing in self._all.values():
            if standing.state is State.JOINING:
                due.append(now_s + self._config.ramp_s / _RAMP_STEPS)
            elif standing.state is State.DRAINING:
                due.append(standing.since_s + self._drain_s)
        self._next_s = min(due)

    def _compare(self) -> None:
        """Members that differ from most in model or page size serve nobody until most are like them."""
        known = [one for one in self._all.values() if one.state in SERVING and any(one.feedback.kind)]
        counts = Counter(one.feedback.kind for one in known)
        if not counts:
            return
        # Between halves, what was usual before goes on.
        self._usual = usual = max(counts, key=lambda kind: (counts[kind], kind == self._usual, kind))
        changed = False
        for standing in self._all.values():
            differs = standing in known and standing.feedback.kind != usual
            if differs != standing.mismatched:
                standing.mismatched, changed = differs, True
                self.mismatches += differs
        if changed:
            self._changed()
