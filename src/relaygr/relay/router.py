"""Which member serves which lap: both laps of a request on one, and a user on the same one the next time."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection

from relaygr.config.relay import RouterConfig
from relaygr.relay.awaited import Awaited
from relaygr.relay.membership import Membership, Standing, State
from relaygr.relay.placement import Placements
from relaygr.relay.pool import Pool
from relaygr.relay.route import Counts, Lap, Refusal, Refused, Route, Spill
from relaygr.relay.traffic import Traffic

# Beyond its cap by so much, a member's hottest users are ranked without pre-inference.
_HOT_MARGIN = 0.1
# Of the requests of their member, at this part a user is a hot one.
_HOT_PART = 1 / 20


# The user's member will probably be back.
_FOR_NOW = (Spill.DOWN, Spill.REFUSED, Spill.DRAINING, Spill.MISMATCH)


class Router:
    """Routes by key; belongs to one thread. Times are monotonic seconds and never go back.

    Attributes:
        members: may be changed at any time; the next decision follows it.
    """

    def __init__(
        self,
        config: RouterConfig,
        t_life_s: float,
        now_s: float,
        *,
        drain_s: float | None = None,
        seed: int = 0,
    ) -> None:
        """
        Args:
            t_life_s: longest time between the two laps of a request.
            drain_s: how long a draining member serves; `t_life_s` if None.
            seed: of the random owners of `router.random_owner`.
        """
        self.members = Membership(config, t_life_s if drain_s is None else drain_s, now_s)
        self.counts = Counts()
        self._config, self._now_s, self._t_life_s = config, now_s, t_life_s
        self._placements = Placements(max(t_life_s, config.placement_ttl_s), config.placement_max)
        self._inflight: Counter[str] = Counter()
        self._awaited = Awaited(t_life_s)
        self._traffic = Traffic(len(self.members))
        self._random = random.Random(seed)
        self._version = self._moves = -1
        self._special = self._normal = self._before = Pool(config.hash, {}, 0)
        self._pools: tuple[Pool, ...] = (self._special,)  # each of them once
        self._follow(now_s)

    def route_prefix(self, key: str, now_s: float) -> Route | Refused:
        """Where a user's prefix is to be computed; refused rather than sent to a member that has no time."""
        self._follow(now_s)
        # Who is about to go back to the own member goes now, so that the ranking finds the prefix there.
        placed = self._placed(key, now_s, lasting_s=self._t_life_s)
        found, spill = self._home(key, placed, ())
        if found is None:
            return self._refuse(Refusal.NO_INSTANCE)
        refusal = self._no_time(key, found, found == placed, now_s)
        if refusal is not None:
            return self._refuse(refusal)
        self._placements.put(key, found, now_s, for_now=spill in _FOR_NOW)
        return self._take(Lap.PREFIX, key, found, spill, moved=found != placed)

    def route_rank(
        self, key: str, hint: str | None, now_s: float, avoid: Collection[str] = ()
    ) -> Route | Refused:
        """Where a user is ranked: where the prefix went, whatever the load there.

        Args:
            hint: the member that the answer to the prefix signal named.
            avoid: members that have refused this very request.
        """
        self._follow(now_s)
        self._end(self._awaited.take(key))
        placed = self._placed(key, now_s)
        wanted = hint if hint is not None and self.members.get(hint) is not None else placed
        if self._config.random_owner:
            found, spill = self._anyone(self._special, avoid), None
        elif wanted is None:
            found, spill = self._new(key, self._normal, avoid)
        else:
            spill = self._obstacle(self.members[wanted], avoid)
            found = wanted if spill is None else None
        found = found or self._second(key, avoid)
        if found is None:
            return self._refuse(Refusal.NO_INSTANCE)
        self.counts.misses += (hint or wanted) not in (None, found)
        self._place(key, found, spill, now_s)
        return self._take(Lap.RANK, key, found, spill, moved=found != placed)

    def route_other(self, key: str, now_s: float, avoid: Collection[str] = ()) -> Route | Refused:
        """Where everything else of a user goes: to the same member as the laps."""
        self._follow(now_s)
        placed = self._placed(key, now_s)
        found, spill = self._home(key, placed, avoid)
        found = found or self._second(key, avoid)
        if found is None:
            return self._refuse(Refusal.NO_INSTANCE)
        self._place(key, found, spill, now_s)
        return self._take(Lap.OTHER, key, found, spill, moved=found != placed)

    def route_any(self, now_s: float, avoid: Collection[str] = ()) -> Route | Refused:
        """A member for a request that is of no user: the one with the least in flight."""
        self._follow(now_s)
        free = [one.member.id for one in self.members if one.takes and one.member.id not in avoid]
        if not free:
            return self._refuse(Refusal.NO_INSTANCE)
        least = min(free, key=lambda name: (self._inflight[name], name))
        return self._take(Lap.OTHER, "", least, None, moved=False)

    def done(self, member: str) -> None:
        """A request that was routed to `member` has ended, however it did."""
        self._inflight[member] -= 1
        for pool in self._pools:
            pool.total -= member in pool.weights

    def admitted(self, key: str, member: str, now_s: float) -> None:
        """A prefix that was routed to `member` was admitted: until its ranking is routed it is load there.

        In place of `done`: the answer to a signal comes long before its work is done.
        """
        self._end(self._awaited.put(key, member, now_s))

    def _end(self, member: str | None) -> None:
        if member is not None:
            self.done(member)

    def release(self, key: str) -> None:
        """The user was not worth a prefix: where some members only rank, one of them may do it."""
        if self._normal is not self._special:
            self._placements.forget(key)

    def forget(self, member: str) -> bool:
        """Keep nothing of a member that has left for good; False while requests are in flight there."""
        if self._inflight[member] > 0:
            return False
        del self._inflight[member]
        for lap in Lap:
            self.counts.requests.pop((lap, member), None)
        self.members.forget(member)
        return True

    def owner(self, key: str, now_s: float) -> str | None:
        """Whose the user is by the members alone, placed or not; None if there is no member."""
        self._follow(now_s)
        return self._special.owner(key)

    @property
    def epoch(self) -> int:
        return self.members.epoch

    @property
    def placements(self) -> int:
        """Users whose member is remembered."""
        return len(self._placements)

    @property
    def keys_moved_ratio(self) -> float:
        """Share of the users that the last change of the members moves, once those that are placed expire."""
        return self._special.moved_from(self._before)

    @property
    def load_max_over_mean(self) -> float:
        """Of the last requests, the busiest member's share by its fair share; 0 before the first request."""
        return max((self._excess(name) for name in self._special.weights), default=0.0)

    def inflight(self, member: str) -> int:
        return self._inflight[member]

    def _placed(self, key: str, now_s: float, lasting_s: float = 0.0) -> str | None:
        """Where the user is; a member that is forgotten takes what was placed on it along."""
        placed = self._placements.get(key, now_s, lasting_s=lasting_s)
        if placed is None or self.members.get(placed) is not None:
            return placed
        self._placements.forget(key)
        return None

    def _home(self, key: str, placed: str | None, avoid: Collection[str]) -> tuple[str | None, Spill | None]:
        """The relaying member that keeps the user's state from now on, and why it is not the one before."""
        pool = self._special
        if self._config.random_owner:
            return self._anyone(pool, avoid), None
        if placed is None:
            return self._new(key, pool, avoid)
        spill = self._obstacle(self.members[placed], avoid)
        if spill is None and self.members[placed].state is State.DRAINING:
            spill = Spill.DRAINING
        if spill is None and placed in pool:
            return placed, None
        found, _ = self._new(key, pool, avoid)
        return found, spill

    def _new(self, key: str, pool: Pool, avoid: Collection[str]) -> tuple[str | None, Spill | None]:
        """A user who is on no member: to the preferred one that has not more than its share in flight."""
        found, first = pool.below_cap(key, self._config.load_factor, self._inflight, avoid)
        if found == first:
            return found, None
        return found, Spill.REFUSED if first in avoid else Spill.LOAD

    def _second(self, key: str, avoid: Collection[str]) -> str | None:
        """The next choice for a user whose member does not serve; of either pool, before nobody does."""
        return self._special.owner(key, avoid) or self._normal.owner(key, avoid)

    def _anyone(self, pool: Pool, avoid: Collection[str]) -> str | None:
        free = [name for name in pool.weights if name not in avoid]
        return self._random.choice(free) if free else None

    def _obstacle(self, standing: Standing, avoid: Collection[str]) -> Spill | None:
        """Why the member does not serve those who are placed on it; None if it does."""
        if standing.state is State.DOWN:
            return Spill.DOWN
        if standing.state is State.LEFT:
            return Spill.LEFT
        if standing.mismatched:
            return Spill.MISMATCH
        return Spill.REFUSED if standing.member.id in avoid else None

    def _no_time(self, key: str, name: str, placed: bool, now_s: float) -> Refusal | None:
        """Why the member gets no prefix signal of this user; ranking is never refused so."""
        standing, config = self.members[name], self._config
        if now_s - standing.heard_s > config.feedback_max_age_s:
            return Refusal.NO_INSTANCE
        if standing.feedback.load >= config.load_limit or self._inflight[name] >= config.connections:
            return Refusal.LOAD
        if placed and not config.random_owner and self._hot(key, name):
            return Refusal.HOT_KEY
        return None

    def _hot(self, key: str, name: str) -> bool:
        """Whether the user is one of the few that give a member more than its share and cannot be moved."""
        traffic = self._traffic
        if not traffic.full or traffic.of_key(key) < _HOT_PART * traffic.of_member(name):
            return False
        return self._excess(name) > self._config.load_factor + _HOT_MARGIN

    def _excess(self, name: str) -> float:
        return self._traffic.share(name) / self._special.share(name) if name in self._special else 0.0

    def _place(self, key: str, name: str, spill: Spill | None, now_s: float) -> None:
        """Remember where the user is; a member that leaves or only ranks gives the user back."""
        if self.members[name].takes and name in self._special:
            self._placements.put(key, name, now_s, for_now=spill in _FOR_NOW)

    def _take(self, lap: Lap, key: str, name: str, spill: Spill | None, *, moved: bool) -> Route:
        self.counts.requests[lap, name] += 1
        if spill is not None:
            self.counts.spills[spill] += 1
        self._inflight[name] += 1
        for pool in self._pools:
            pool.total += name in pool.weights
        self._traffic.add(key, name)
        return Route(name, self.members.epoch, spill, moved)

    def _refuse(self, reason: Refusal) -> Refused:
        self.counts.refusals[reason] += 1
        return Refused(reason, self.members.epoch)

    def _follow(self, now_s: float) -> None:
        """Let the pools be what the members are now."""
        members = self.members
        members.advance(now_s)
        for member in self._awaited.expire(now_s):
            self.done(member)
        if members.version == self._version:
            return
        if members.moves != self._moves:
            self._before, self._moves = self._special, members.moves
        self._version = members.version
        taking = [one.member.id for one in members if one.takes]
        # By the members that there are, so that one that is down for a while turns no other's role around.
        count = math.ceil(self._config.special_share * len(members))
        relaying = {one.member.id for one in list(members)[:count]}
        self._special = self._pool([name for name in taking if name in relaying], now_s)
        rest = [name for name in taking if name not in relaying]
        self._normal = self._pool(rest, now_s) if rest else self._special
        self._pools = (self._special, self._normal) if rest else (self._special,)
        self._traffic.size_for(len(taking))

    def _pool(self, names: list[str], now_s: float) -> Pool:
        weights = {name: self.members.weight(name, now_s) for name in names}
        return Pool(self._config.hash, weights, sum(self._inflight[name] for name in names))
