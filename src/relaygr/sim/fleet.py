"""The instances, and the gateway in front of them: trigger, router, and what happens to a request between."""

from __future__ import annotations

import msgspec

from relaygr.cache.tiered import TieredBooks
from relaygr.config.relay import Member
from relaygr.core.ids import DEFAULT_TENANT, Fingerprint
from relaygr.relay.latency import LatencyModel
from relaygr.relay.lead import Quantiles
from relaygr.relay.membership import Feedback
from relaygr.relay.rendezvous import session_key
from relaygr.relay.route import Refused
from relaygr.relay.router import Router
from relaygr.relay.trigger import Build, Meta, Owner, Reason, Trigger
from relaygr.sim.chunks import ChunkPlans
from relaygr.sim.costs import Noise
from relaygr.sim.instance import Instance
from relaygr.sim.shelf import Refs, Shelf
from relaygr.sim.tally import Tally
from relaygr.sim.timeline import Timeline
from relaygr.sim.visit import Visit
from relaygr.sim.workload import Request
from relaygr.sim.world import World

_BUILD = "build"
_LEADS = 1000


class Fleet:
    """Requests in at their times; every one of them is answered once, whatever happens to instances."""

    def __init__(self, world: World, timeline: Timeline, tally: Tally, max_tokens: int) -> None:
        self._world, self._timeline, self._tally = world, timeline, tally
        self._refs = Refs(max_tokens)
        coefficients = world.costs.coefficients
        self._latency = LatencyModel(coefficients, world.costs.ratios)
        chunks = self._latency.chunks(world.budgets.chunk_ms, world.page_tokens)
        self._plans = ChunkPlans(chunks)
        self._noise = Noise(world.costs, world.seed)
        self._overhead_s = world.costs.overhead_ms / 1000
        names = [f"i{number}" for number in range(world.instances)]
        self._names = {name: number for number, name in enumerate(names)}
        members = tuple(Member(id=name, url=f"http://{name}") for name in names)
        config = msgspec.structs.replace(
            world.router, members=members, random_owner=world.variant.random_owner
        )
        self._router_config = config
        self.router = Router(config, world.budgets.t_life_ms / 1000, 0.0, seed=world.seed)
        trigger = msgspec.structs.replace(world.trigger, admit_all=world.variant.admit_all)
        self._trigger = Trigger(trigger, world.variant.relay, world.relay.len_bucket_tokens)
        self._build = Build(_BUILD, latency=self._latency, chunks=chunks, budgets=world.budgets)
        self.instances = [self._start(number) for number in range(world.instances)]
        self._leads = Quantiles(_LEADS)
        self.fetches = 0
        self.open = 0
        if world.instances > 1:
            self._poll()
        else:
            self._hear()

    def arrive(self, request: Request) -> None:
        """A request's time has come."""
        budgets = self._world.budgets
        visit = Visit(
            request,
            self._world.prefix_tokens(request.tokens),
            budgets.b_rank_ms / 1000,
            budgets.b_pipe_ms / 1000,
        )
        self.open += 1
        self._timeline.at(visit.due_s + self._overhead_s, self._rank, visit, ())
        if self._world.variant.relay:
            self._timeline.after(self._overhead_s, self._signal, visit)

    def _start(self, number: int) -> Instance:
        world = self._world
        books = TieredBooks(
            world.device_bytes // world.page_bytes,
            world.page_tokens,
            world.page_bytes,
            world.budgets.b_pipe_ms / 1000,
            host_bytes=world.host.host_bytes if world.variant.host else 0,
            run_chunk_tokens=world.host.run_chunk_tokens,
        )
        shelf = Shelf(books, self._refs, world.budgets.b_pipe_ms / 1000, Fingerprint(b"0"))
        return Instance(world, self._timeline, shelf, self._latency, self._plans, self._noise, self._done)

    def _signal(self, visit: Visit) -> None:
        now, key = self._timeline.now_s, self._key(visit)
        if self._world.instances == 1:
            self._hear()
        route = self.router.route_prefix(key, now)
        if isinstance(route, Refused):
            visit.reason = route.reason.value
            return
        number = self._names[route.member]
        instance = self.instances[number]
        meta = Meta(key, _BUILD, visit.prefix, visit.tokens - visit.prefix, visit.request.candidates)
        load, slots = instance.load(), self._world.slots
        owner = Owner(
            active=True,
            pre_wait_ms=instance.pre_wait_ms(),
            rank_share=load.rank_rate_per_s * load.rank_ms / 1000 / slots,
            rank_rate_per_s=load.rank_rate_per_s / slots,
        )
        lead_ms = self._leads.at(self._world.trigger.lead_quantile) or self._world.budgets.lead_default_ms
        verdict = self._trigger.decide(
            meta, self._build, owner, lead_ms, self._world.router.feedback_max_age_s
        )
        visit.reason = verdict.reason.value
        if verdict.reason is Reason.ADMITTED:
            instance.signal(visit)
            if visit.claimed:
                visit.owner = number
        self.router.done(route.member)

    def _rank(self, visit: Visit, avoid: tuple[str, ...]) -> None:
        now, key = self._timeline.now_s, self._key(visit)
        if not avoid:
            self._leads.add(1000 * visit.request.lead_s)
        hint = f"i{visit.owner}" if visit.owner >= 0 else None
        route = self.router.route_rank(key, hint, now, avoid)
        if isinstance(route, Refused):
            visit.started_s = visit.done_s = now
            self._finish(visit)
            return
        visit.rank_owner = self._names[route.member]
        if not self.instances[visit.rank_owner].rank(visit):
            self.router.done(route.member)
            self._rank(visit, (*avoid, route.member))

    def _done(self, visit: Visit) -> None:
        self.router.done(f"i{visit.rank_owner}")
        self._finish(visit)

    def _finish(self, visit: Visit) -> None:
        visit.answered += 1
        self.open -= 1
        self._tally.add(visit)

    def _poll(self) -> None:
        self._hear()
        if self.open or self._timeline.now_s == 0.0:
            self._timeline.after(self._world.router.poll_s, self._poll)

    def _hear(self) -> None:
        said = Feedback(page_tokens=self._world.page_tokens)
        for name in self._names:
            self.router.members.hear(name, said, self._timeline.now_s)

    def _key(self, visit: Visit) -> str:
        return session_key(DEFAULT_TENANT, str(visit.user))
