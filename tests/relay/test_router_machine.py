"""The router under random members and requests, against a plain account of who was sent where."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from router_fleet import T_LIFE_S, Fleet

from relaygr.relay.membership import SERVING, TAKING, Feedback, State
from relaygr.relay.placement import stay_s
from relaygr.relay.pool import cap
from relaygr.relay.route import Refusal, Refused, Route, Spill

NAMES, KEYS = "abcde", [f"u{number}" for number in range(12)]
TTL_S = 5.0
# Who cannot be on the own member for one of these reasons will go back to it.
ELSEWHERE = (Spill.DOWN, Spill.REFUSED, Spill.DRAINING, Spill.MISMATCH)
names, keys = st.sampled_from(NAMES), st.sampled_from(KEYS)


class RouterMachine(RuleBasedStateMachine):
    """`placed` is what the router must still believe; `running` what has not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet("a", "b", "c", "d", placement_ttl_s=TTL_S, ramp_s=3.0, down_after=2)
        self.router = self.fleet.router
        self.placed: dict[str, tuple[str, float]] = {}
        self.stays: dict[str, float] = {}
        self.running: list[str] = []
        self.window: dict[str, tuple[str, float]] = {}
        self.epoch = 1
        self.spills = 0

    def live(self, key: str, lasting_s: float = 0.0) -> str | None:
        """Where the user is placed, and still will be after `lasting_s` if only for now."""
        name, until_s = self.placed.get(key, ("", 0.0))
        now_s = self.fleet.now_s
        return name if now_s < until_s and now_s + lasting_s < self.stays.get(key, inf) else None

    def healthy(self, name: str) -> bool:
        standing = self.router.members[name]
        return standing.state in SERVING and not standing.mismatched

    def remember(self, key: str, found: Route) -> None:
        self.running.append(found.member)
        if self.router.members[found.member].state not in TAKING:
            return
        if found.spill in ELSEWHERE:
            self.stays[key] = self.fleet.now_s + stay_s(key, TTL_S)
        elif self.live(key) != found.member:
            self.stays.pop(key, None)
        self.placed[key] = found.member, min(self.fleet.now_s + TTL_S, self.stays.get(key, inf))

    def count_spill(self, found: Route) -> None:
        self.spills += found.spill is not None
        assert self.router.counts.spills.total() == self.spills

    @rule(key=keys)
    def prefix(self, key: str) -> None:
        before, spills = self.live(key, T_LIFE_S), self.spills
        if before is None:
            self.placed.pop(key, None)
        inflight = {name: self.router.inflight(name) for name in NAMES}
        found = self.router.route_prefix(key, self.fleet.now_s)
        if isinstance(found, Refused):
            self.refused(found, prefix=True)
            return
        self.count_spill(found)
        standing = self.router.members[found.member]
        # Never to a member that drains, has left, is down, differs or has not been heard of.
        assert standing.takes
        assert self.fleet.now_s - standing.heard_s <= self.fleet.config.feedback_max_age_s
        if before is not None and self.router.members[before].takes:
            assert (found.member, found.moved) == (before, False)
            assert self.spills == spills
        elif before is None:
            self.below_cap(found.member, inflight)
        else:
            assert self.spills == spills + 1
        self.remember(key, found)
        self.window[key] = found.member, self.fleet.now_s + T_LIFE_S

    @rule(key=keys, hinted=st.booleans())
    def rank(self, key: str, hinted: bool) -> None:
        owner, until_s = self.window.get(key, (None, 0.0))
        hint = owner if hinted else None
        wanted, misses = hint or self.live(key), self.router.counts.misses
        found = self.router.route_rank(key, hint, self.fleet.now_s)
        if isinstance(found, Refused):
            self.refused(found, prefix=False)
            return
        self.count_spill(found)
        assert self.healthy(found.member)
        if wanted is not None and self.healthy(wanted):
            # Whatever its load, whatever the epoch.
            assert (found.member, found.spill) == (wanted, None)
        elif wanted is not None:
            assert found.spill is not None
            assert self.router.counts.misses == misses + 1
        if hinted and owner is not None and self.fleet.now_s < until_s and self.healthy(owner):
            assert found.member == owner
        self.remember(key, found)

    @rule(key=keys)
    def event(self, key: str) -> None:
        before = self.live(key)
        found = self.router.route_other(key, self.fleet.now_s)
        if isinstance(found, Refused):
            self.refused(found, prefix=False)
            return
        self.count_spill(found)
        if before is not None and self.router.members[before].takes:
            assert found.member == before
        assert self.router.members[found.member].takes
        self.remember(key, found)

    @rule(key=keys)
    def refuse(self, key: str) -> None:
        """A member refuses a ranking: the next one gets it, and it is a spill."""
        before = self.live(key)
        if before is None or not self.healthy(before):
            return
        found = self.router.route_rank(key, None, self.fleet.now_s, (before,))
        if isinstance(found, Refused):
            assert not any(one.takes for one in self.router.members if one.member.id != before)
            return
        self.count_spill(found)
        assert found.spill is not None
        assert found.member != before
        self.remember(key, found)

    def below_cap(self, name: str, inflight: dict[str, int]) -> None:
        now_s, members = self.fleet.now_s, self.router.members
        weights = {one.member.id: members.weight(one.member.id, now_s) for one in members if one.takes}
        total = sum(inflight[other] for other in weights)
        share = weights[name] / sum(weights.values())
        # Ramps move in steps, so that the router's weights may be a little older.
        assert inflight[name] < cap(1.25, min(share * 1.2 + 0.02, 1.0), total)

    def refused(self, found: Refused, *, prefix: bool) -> None:
        nobody = not any(one.takes for one in self.router.members)
        if prefix:
            stale = any(self.fleet.now_s - one.heard_s > 2.0 for one in self.router.members)
            assert nobody or stale or found.reason is Refusal.LOAD
        else:
            assert nobody

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.router.done(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    @rule(name=names)
    def go_down(self, name: str) -> None:
        if self.router.members.get(name) is not None:
            self.router.members.down(name, self.fleet.now_s)

    @rule(name=names)
    def drain(self, name: str) -> None:
        if self.router.members.get(name) is not None:
            self.router.members.drain(name, self.fleet.now_s)

    @rule(name=names)
    def activate(self, name: str) -> None:
        if self.router.members.get(name) is not None:
            self.router.members.activate(name, self.fleet.now_s)

    @rule()
    def join(self) -> None:
        if self.router.members.get("e") is None:
            self.fleet.join("e")

    @rule(name=names, build=st.sampled_from(["build", "build", "other"]), load=st.sampled_from([3, 500]))
    def say(self, name: str, build: str, load: int) -> None:
        if name in self.fleet.said:
            self.fleet.said[name] = Feedback(build, 32, load=load)

    @rule(seconds=st.sampled_from([0.05, 0.2, 1.0, 4.0]), polled=st.booleans())
    def wait(self, seconds: float, polled: bool) -> None:
        if polled:
            self.fleet.wait(seconds)
        else:
            self.fleet.now_s += seconds
        # What is due happens at the next decision; the account below needs it now.
        self.router.members.advance(self.fleet.now_s)

    @invariant()
    def epochs_only_grow(self) -> None:
        assert self.router.epoch >= self.epoch
        self.epoch = self.router.epoch

    @invariant()
    def counts_add_up(self) -> None:
        running = Counter(self.running)
        assert {name: self.router.inflight(name) for name in NAMES} == {name: running[name] for name in NAMES}
        assert self.router.placements <= len(KEYS)

    @invariant()
    def most_members_are_alike(self) -> None:
        serving = [one for one in self.router.members if one.state in SERVING]
        assert len({one.feedback.kind for one in serving if not one.mismatched and one.heard_s > 0}) <= 1
        assert not serving or any(not one.mismatched for one in serving)

    @invariant()
    def draining_ends(self) -> None:
        for one in self.router.members:
            if one.state is State.DRAINING:
                assert self.fleet.now_s < one.since_s + T_LIFE_S


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
