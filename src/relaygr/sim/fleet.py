"""The instances, and the gateway in front of them: trigger, router, and what happens to a request between."""

from __future__ import annotations

import msgspec

from relaygr.cache.policies import configured
from relaygr.cache.tiered import TieredBooks
from relaygr.config.relay import Member
from relaygr.core.ids import DEFAULT_TENANT, Fingerprint, session_key
from relaygr.relay.holds import HoldBook
from relaygr.relay.latency import LatencyModel
from relaygr.relay.lead import LeadTimes
from relaygr.relay.membership import Feedback
from relaygr.relay.route import Refused
from relaygr.relay.router import Router
from relaygr.relay.trigger import Build, Meta, Reason, Trigger, Verdict
from relaygr.sim.chunks import ChunkPlans
from relaygr.sim.costs import Noise
from relaygr.sim.instance import Instance
from relaygr.sim.keeper import Keeper
from relaygr.sim.shelf import Refs, Shelf
from relaygr.sim.site import Site
from relaygr.sim.tally import Tally
from relaygr.sim.timeline import Timeline
from relaygr.sim.visit import Visit
from relaygr.sim.workload import Request
from relaygr.sim.world import World

# Of a hash of the user's number, to choose those who are in host memory from the start.
_SPREAD, _TOP = 0x9E3779B97F4A7C15, 1 << 64


class Fleet:
    """Requests in at their times; every one of them is answered once, whatever happens to instances.

    Attributes:
        fetches: prefixes that ranking brought over the network.
        expected, answered: requests that will come, and those that are over.
    """

    def __init__(self, world: World, timeline: Timeline, tally: Tally) -> None:
        self._world, self._timeline, self._tally = world, timeline, tally
        self._refs = Refs()
        self._latency = LatencyModel(world.costs.coefficients, timed=world.costs.timed)
        chunks = self._latency.chunks(world.budgets.chunk_ms, world.page_tokens)
        self._plans, self._noise = ChunkPlans(chunks), Noise(world.costs, world.seed)
        self._overhead_s = world.costs.overhead_ms / 1000
        self.instances = [self.start(number) for number in range(world.instances)]
        self.builds = [0] * world.instances
        members = tuple(member(number) for number in range(world.instances))
        config = msgspec.structs.replace(
            world.router, members=members, random_owner=world.variant.random_owner
        )
        self.router = Router(config, world.budgets.t_life_ms / 1000, 0.0, seed=world.seed)
        trigger = msgspec.structs.replace(world.trigger, admit_all=world.variant.admit_all)
        self._trigger = Trigger(trigger, world.variant.relay, world.relay.len_bucket_tokens)
        self._build = Build("", latency=self._latency, chunks=chunks, budgets=world.budgets)
        self._leads = LeadTimes(world.trigger.lead_quantile, world.budgets.lead_default_ms)
        self._holders: dict[int, int] = {}  # of variants that fetch: where a user's prefix was computed last
        self.fetches = self.answered = 0
        self.expected = 0
        # Alone and undisturbed, an instance need not be asked how it is.
        self._asked = world.instances > 1 or bool(world.changes)
        self._mixed = any(change.kind == "rollout" for change in world.changes)
        self.hear()
        if self._asked:
            timeline.after(world.router.poll_s, self._poll)

    @property
    def now_s(self) -> float:
        return self._timeline.now_s

    def arrive(self, request: Request) -> None:
        """A request's time has come."""
        world = self._world
        visit = Visit(
            request,
            request.tokens,
            world.budgets.b_rank_ms / 1000,
            world.budgets.b_pipe_ms / 1000,
        )
        visit.key = session_key(DEFAULT_TENANT, str(visit.user))
        self._timeline.at(visit.due_s + self._overhead_s, self._rank, visit, ())
        if world.variant.relay:
            self._timeline.after(self._overhead_s, self._signal, visit)

    def start(self, number: int, build: int = 0) -> Instance:
        """A process with nothing in its memory."""
        world = self._world
        books = TieredBooks(
            world.device_bytes // world.page_bytes,
            world.page_tokens,
            world.page_bytes,
            world.budgets.b_pipe_ms / 1000,
            host_bytes=world.host.host_bytes if world.variant.host else 0,
            run_chunk_tokens=max(world.host.run_chunk_tokens, world.page_tokens),
            policy=configured(world.host),
        )
        shelf = Shelf(books, self._refs, world.budgets.b_pipe_ms / 1000, fingerprint(build))
        holds: HoldBook[int] = HoldBook(world.h_relay_bytes, world.budgets.t_life_ms / 1000)
        keeper = Keeper(shelf, holds)
        site = Site.of(world, self._timeline, keeper, self._latency, self._plans, self._noise)
        return Instance(site, self._done)

    def hear(self) -> None:
        """Every process that is alive says how it is."""
        now, members = self._timeline.now_s, self.router.members
        for number, instance in enumerate(self.instances):
            if members.get(name(number)) is None:
                continue
            if instance.alive:
                # Builds are compared one with another: not where all are the same.
                build = fingerprint(self.builds[number]).hex() if self._mixed else ""
                said = Feedback(build, draining=not instance.accepts, ready=instance.accepts)
                members.hear(name(number), said, now)
            else:
                members.miss(name(number), now)

    def again(self, visits: list[Visit], lost: int) -> None:
        """Rankings that a process took with it go to another, when their senders have noticed."""
        for visit in visits:
            self.router.done(name(lost))
            visit.claimed = visit.pinned = False
            self._timeline.after(self._overhead_s, self._rank, visit, (name(lost),))

    def _signal(self, visit: Visit) -> None:
        now, key = self._timeline.now_s, visit.key
        if not self._asked:
            self.router.members.hear(name(0), Feedback(), now)
        route = self.router.route_prefix(key, now)
        if isinstance(route, Refused):
            visit.reason = route.reason
            return
        number = int(route.member)
        instance = self.instances[number]
        if instance.alive:
            self._seed_host(visit, instance)
            verdict = self._decide(visit, key, instance)
            visit.reason = verdict.reason
            if verdict.admitted:
                instance.signal(visit, verdict.pre_ms)
        else:
            visit.reason = Reason.NO_INSTANCE
            self.router.members.miss(route.member, now)
        if not visit.claimed:
            self.router.done(route.member)
            return
        self.router.admitted(key, route.member, now)
        visit.owner = number
        if self._world.variant.remote:
            self._holders[visit.user] = number

    def _decide(self, visit: Visit, key: str, instance: Instance) -> Verdict:
        suffix, cached = visit.tokens - visit.prefix, instance.cached(visit)
        meta = Meta(key, "", visit.prefix, suffix, visit.request.candidates, cached_tokens=cached)
        return self._trigger.decide(
            meta,
            self._build,
            instance.owner(visit.user),
            self._leads.low_ms,
            self._world.router.feedback_max_age_s,
        )

    def _rank(self, visit: Visit, avoid: tuple[str, ...]) -> None:
        now, key = self._timeline.now_s, visit.key
        if not avoid and visit.reason:
            self._leads.observe(1000 * visit.request.lead_s)
        hint = name(visit.owner) if visit.owner >= 0 else None
        route = self.router.route_rank(key, hint, now, avoid)
        if isinstance(route, Refused):
            visit.started_s = visit.done_s = now
            self._finish(visit)
            return
        visit.rank_owner = int(route.member)
        if self._world.variant.remote and (fetch_s := self._fetch_s(visit)):
            self._timeline.after(fetch_s, self._fetched, visit, avoid)
        else:
            self._hand(visit, avoid)

    def _hand(self, visit: Visit, avoid: tuple[str, ...]) -> None:
        """To the instance that it was routed to, or on to the next if that does not take it."""
        number = visit.rank_owner
        instance = self.instances[number]
        if visit.owner < 0 and instance.alive:
            self._seed_host(visit, instance)
        if instance.rank(visit):
            return
        self.router.done(name(number))
        if not instance.alive:
            self.router.members.miss(name(number), self._timeline.now_s)
        self._rank(visit, (*avoid, name(number)))

    def _fetch_s(self, visit: Visit) -> float:
        """How long it takes to bring the prefix from the instance that has more of it; 0 if none has."""
        holder = self._holders.get(visit.user)
        if holder is None or holder == visit.rank_owner or not self.instances[holder].alive:
            return 0.0
        there, here = (
            self.instances[number].site.shelf.find(visit.user, visit.tokens).device
            for number in (holder, visit.rank_owner)
        )
        missing = there - here
        return self._world.costs.network_s(missing * self._world.costs.token_bytes) if missing > 0 else 0.0

    def _fetched(self, visit: Visit, avoid: tuple[str, ...]) -> None:
        there = self.instances[self._holders[visit.user]].site.shelf.find(visit.user, visit.tokens)
        here = self.instances[visit.rank_owner]
        if here.alive and there.device:
            here.site.shelf.put(visit.user, there.device, self._timeline.now_s)
            self.fetches += 1
        self._hand(visit, avoid)

    def _seed_host(self, visit: Visit, instance: Instance) -> None:
        """Whoever is to be in host memory from the start is, when the instance first sees the user."""
        share = self._world.host_share
        chosen = share and visit.request.first and (visit.user * _SPREAD) % _TOP < share * _TOP
        if chosen and self._world.variant.host:
            instance.site.shelf.put_in_host(visit.user, visit.tokens, self._timeline.now_s)

    def _done(self, visit: Visit) -> None:
        self.router.done(name(visit.rank_owner))
        self._finish(visit)

    def _finish(self, visit: Visit) -> None:
        visit.answered += 1
        self.answered += 1
        self._tally.add(visit)

    def _poll(self) -> None:
        self.hear()
        for instance in self.instances:
            instance.expire()
        if self.answered < self.expected:
            self._timeline.after(self._world.router.poll_s, self._poll)


def name(number: int) -> str:
    """Of a member."""
    return str(number)


def member(number: int) -> Member:
    return Member(id=name(number), url=f"http://{number}")


def fingerprint(build: int) -> Fingerprint:
    return Fingerprint(build.to_bytes(4, "big"))
