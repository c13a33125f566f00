"""The service: what routes, protocols and the page talk to; knows users and models, not HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import numpy as np

from relaygr.config.settings import Config
from relaygr.core.clock import MonotonicClock
from relaygr.core.errors import NotReadyError, RequestError
from relaygr.core.ids import check_name
from relaygr.data.stores import HistoryStore, Profile, open_store
from relaygr.engine import Engine, RankRequest, RankResult
from relaygr.engine.chores import Chores
from relaygr.engine.deadlines import deadline_ms
from relaygr.engine.jobs import RankJob
from relaygr.engine.relay import Relay
from relaygr.engine.scheduler import Scheduler
from relaygr.engine.shadow import Shadows
from relaygr.engine.slate.opening import heads_of
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.serving import answers, wire
from relaygr.serving.admit import Admissions
from relaygr.serving.bodies import event_batch, owner_of, source_of
from relaygr.serving.cache_watch import CacheWatch
from relaygr.serving.errors import HttpError
from relaygr.serving.feedback import feedback
from relaygr.serving.gauges import Readings
from relaygr.serving.generation.desk import GenerateDesk, no_generator, shared_turns
from relaygr.serving.generation.metrics import GenerateMetrics
from relaygr.serving.histories import Histories
from relaygr.serving.metrics import Metrics
from relaygr.serving.observers import Observers
from relaygr.serving.pace import Pace
from relaygr.serving.readings import readings
from relaygr.serving.reload import Served, check_path, load, relayed
from relaygr.serving.slate.desk import SlateDesk
from relaygr.serving.snapshot import Status
from relaygr.serving.stream.counts import StreamStatus
from relaygr.serving.tracing import follow
from relaygr.serving.users import Reading, Users, reading_of
from relaygr.serving.waiting import ClientGoneError, Gone, answered

log = logging.getLogger("relaygr.serving")

_STORE_THREADS = 4
_LOOK_S = 0.02  # how often a stopping service looks whether prefixes are still held


class Service:
    """One model slot over one history store; belongs to one event loop.

    Until `start` is done and from `drain` on, everything that needs the model raises NotReadyError.
    Everything that takes a tenant or a user raises RequestError for one that is no name.
    """

    def __init__(self, config: Config, metrics: Metrics | None = None) -> None:
        self.config, self.metrics = config, metrics or Metrics()
        self.metrics.read_from(self._readings)
        self.admissions = Admissions(config.serving.requests_max, config.serving.tenant_requests_max)
        self.pace = Pace(config.scheduler.chunk_tokens, config.relay)
        self.relay = Relay(
            config.relay,
            config.trigger,
            config.host,
            config.engine.device_bytes,
            MonotonicClock(),
            self.metrics,
        )
        self._shadows = Shadows(config.relay, self.relay.disable, self.metrics)
        self._watch = CacheWatch(config.host)
        self._epoch = 0
        self.health = wire.Health("starting")
        self._threads = ThreadPoolExecutor(_STORE_THREADS, "relaygr-store")
        self._ranking: set[asyncio.Future[RankResult]] = set()
        self._reloading = False
        self._scheduler: Scheduler | None = None
        self._served: Served | None = None
        self._store: HistoryStore | None = None
        self._users: Users | None = None
        self.generation: GenerateDesk | None = None  # where `generator.model` is set, once it is loaded
        self.stream: Callable[[], StreamStatus] | None = None  # where an event stream is read
        self.slates: SlateDesk | None = None  # where `slate.value` is set, once it is read

    @property
    def served(self) -> Served:
        """The model of the next batch."""
        if self._served is None:
            raise self._not_ready()
        return self._served

    @property
    def engine(self) -> Engine:
        return self.served.engine

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            raise self._not_ready()
        return self._scheduler

    @property
    def users(self) -> Users:
        if self._users is None:
            raise self._not_ready()
        return self._users

    @property
    def histories(self) -> Histories:
        slots = len(self.engine.model_config.contextual)
        return Histories(self.users, slots, self.config.serving.max_history, self.metrics)

    async def start(self) -> None:
        """Open the store and load the model; after this the service is ready.

        Raises:
            ConfigError: a setting, the store's place or the model is wrong.
            BackendError: the store is damaged, or the model gives scores that are not finite.
        """
        settings = self.config.store
        self._store = await asyncio.to_thread(open_store, settings.url, settings)
        log.info("history store: %s", self._store.describe())
        served = await asyncio.to_thread(load, self.config.serving.model, self.config)
        turns = None
        if self.config.generator.model:
            turns = shared_turns(self.config.generator)
            counts = GenerateMetrics(self.metrics.registry)
            self.generation = await asyncio.to_thread(GenerateDesk.open, self.config, counts, turns)
        if self.config.slate.value:
            self.slates = await asyncio.to_thread(SlateDesk.open, self, served.engine.model_config)
        reading = self._reading(served)
        self._users = Users(self._store, self._threads, self.config.serving.users_bytes, reading)
        self._show(served)
        await asyncio.to_thread(served.engine.below.attach)
        self._scheduler = Scheduler(
            served.engine,
            self.config.scheduler,
            observer=Observers((self.metrics, self.pace, self._watch)),
            chunk_tokens=self.pace.chunk_tokens,
            fit=self.pace.fit,
            cost=self.pace.cost_ms,
            relay=self.relay,
            chores=Chores(self.config.host, self._shadows, self.relay.worth_spilling, self.pace.chunk_tokens),
            turns=turns,
        )
        self.health = wire.Health("ready")

    async def append(self, tenant: str, body: wire.EventsBody) -> wire.EventsAnswer:
        """Store events; durable, and part of the user's next prefix and ranking, when this returns.

        Raises:
            HttpError: 409, the key was used for other events.
        """
        owner = owner_of(tenant, body.user)
        if body.key is not None:
            check_name("key", body.key)
        events, source = event_batch(body), source_of(body)
        # Stored events cannot be refused later: ranking would fail for this user from then on.
        self.engine.check_events(events.items, events.actions)
        try:
            done = await self.users.append(owner, events, body.key, source)
        except RequestError as error:
            if error.field != "key":
                raise
            raise HttpError(HTTPStatus.CONFLICT, "key_conflict", str(error), field="key") from error
        if not done.replayed:
            self.metrics.appended(done.accepted, done.late)
        counts = (done.sequence, done.accepted, done.duplicates, done.late, done.replayed)
        return wire.EventsAnswer(body.user, *counts)

    async def prefix(self, tenant: str, body: wire.PrefixBody, request_id: str) -> wire.PrefixReply:
        """Have a user's history encoded ahead of ranking; answers at once."""
        limits = self.config.scheduler
        budget_ms = deadline_ms(body.deadline_ms, limits.prefix_deadline_ms, limits.deadline_max_ms)
        owner = owner_of(tenant, body.user)
        desk = self.desk() if body.generate else None
        history, left_ms = await self.histories.in_time("prefix", owner, body.history, budget_ms)
        answer = self.scheduler.prefix(history, left_ms, body.candidates)
        self.metrics.signalled(answer)
        if answer.flight is not None:
            follow(answer.flight)
        if desk is not None:
            await desk.encode(tenant, history, left_ms)
        return answers.prefix_answer(body.user, answer, self.served.model, request_id)

    async def rank(
        self, tenant: str, body: wire.RankBody, request_id: str, gone: Gone | None = None
    ) -> wire.RankAnswer:
        """Score candidates; when `gone` returns first, the work is given up.

        Raises:
            DeadlineError: there was no answer in time.
            CancelledError: the client went away, or the user was deleted.
            OverloadError: too much waits.
        """
        job, result = await self.score(tenant, body, gone)
        return answers.rank_answer(body, job, result, request_id)

    async def score(
        self, tenant: str, body: wire.RankBody, gone: Gone | None = None
    ) -> tuple[RankJob, RankResult]:
        """`rank` with the scores as an array."""
        limit = self.config.serving.max_candidates
        if len(body.candidates) > limit:
            raise RequestError("candidates", f"{len(body.candidates)} candidates, limit {limit}")
        limits = self.config.scheduler
        whole_ms = deadline_ms(body.deadline_ms, limits.rank_deadline_ms, limits.deadline_max_ms)
        if body.budget_ms is not None and body.budget_ms > whole_ms:
            raise RequestError("budget_ms", f"{body.budget_ms:g} is more than the deadline, {whole_ms:g}")
        owner = owner_of(tenant, body.user)
        history, left_ms = await self.histories.in_time("rank", owner, body.history, whole_ms)
        request = RankRequest(history, body.candidates, body.query_time, keep=self.config.relay.reuse)
        budget_ms = None if body.budget_ms is None else max(body.budget_ms - (whole_ms - left_ms), 0.0)
        job = self.scheduler.rank(request, left_ms, budget_ms)
        follow(job)
        return job, await self._answer(job, gone)

    def desk(self) -> GenerateDesk:
        """What generates; HttpError 404 where the server has no generator."""
        if not self.config.generator.model:
            raise no_generator()
        if self.generation is None:
            raise self._not_ready()
        return self.generation

    async def set_profile(self, tenant: str, user: str, body: wire.ProfileBody) -> wire.ProfileAnswer:
        """Set a user's profile slots and clock offset; cached prefixes with others are not used again."""
        owner, slots = owner_of(tenant, user), self.engine.model_config.contextual
        if len(body.contextual) != len(slots):
            names = ", ".join(slots) or "none"
            raise RequestError(
                "contextual", f"has {len(body.contextual)} values, the model has slots: {names}"
            )
        profile = Profile(np.asarray(body.contextual, np.int64), body.utc_offset_s)
        await self.users.set_profile(owner, profile)
        return wire.ProfileAnswer(user, body.contextual, body.utc_offset_s)

    async def delete(self, tenant: str, user: str) -> wire.DeleteAnswer:
        """Remove a user: stored events, cached prefixes, queued and running work."""
        owner, scheduler, generation = owner_of(tenant, user), self.scheduler, self.generation

        def purge() -> int:
            prompts = generation.forget(*owner) if generation is not None else 0
            return scheduler.forget(*owner) + prompts

        events, entries = await self.users.delete(owner, purge)
        self._watch.forget(owner)
        return wire.DeleteAnswer(user, events, entries)

    async def state(self, tenant: str, user: str) -> wire.StateAnswer:
        """What is stored of a user, and how much of it is in the cache."""
        history = await self.users.get(owner_of(tenant, user))
        tokens, cached = self.engine.peek(RankRequest(history, ()))
        return answers.state_answer(history, tokens, cached, self.served.model)

    def models(self) -> wire.ModelsAnswer:
        generator = self.generation.card() if self.generation is not None else None
        return wire.ModelsAnswer([answers.model_card(self.served, self.config)], generator)

    async def reload(self, path: str | None) -> wire.ReloadAnswer:
        """Serve another model from the next batch on; whatever goes wrong, the one before serves on.

        No batch mixes models, and every answer names the model it was scored with.

        Raises:
            ConfigError: the folder or the file in it is wrong.
            HttpError: 409, another reload runs or the model has other profile slots.
        """
        if self._reloading:
            raise HttpError(HTTPStatus.CONFLICT, "reload_running", "another reload is running")
        before, started = self.served, time.perf_counter()
        where = before.path if path is None else path
        check_path(where)
        self._reloading = True
        try:
            after = await asyncio.to_thread(load, where, self.config, before)
            if self.slates is not None:
                self.slates.maker.fits(heads_of(after.engine.model_config))
            await self._read_enough(before, after)
            await asyncio.to_thread(
                before.engine.below.detach, keep=False
            )  # it hears of no deletion any more
            self.scheduler.swap(after.engine)
            self._show(after)
            await asyncio.to_thread(after.engine.below.attach, fresh=True)
        finally:
            self._reloading = False
        seconds = time.perf_counter() - started
        log.info("model %s replaces %s after %.1f s", after.model, before.model, seconds)
        return wire.ReloadAnswer(after.model, before.model, seconds)

    async def status(self) -> Status:
        """What the status page shows."""
        generation = self.generation.status if self.generation is not None else None
        slates = self.slates.status if self.slates is not None else None
        return await asyncio.to_thread(
            self.metrics.snapshot, self.health.status, generation, slates, self.stream
        )

    async def drain(self, timeout_s: float) -> bool:
        """Say that the service is not ready, refuse new work, finish what there is, close the store.

        Returns False if something was not finished in time.
        """
        self.health = wire.Health("draining")
        await asyncio.sleep(self.config.serving.drain_delay_s)
        await self._serve_holds()
        end = time.monotonic() + timeout_s
        done = True
        if self._scheduler is not None:
            done = await asyncio.to_thread(self._scheduler.drain, timeout_s)
        if self.generation is not None:
            left_s = max(end - time.monotonic(), 0.0)
            done = await asyncio.to_thread(self.generation.drain, left_s) and done
        self._users = None
        done = await self.admissions.idle(max(end - time.monotonic(), 0.0)) and done
        if self.slates is not None:
            await asyncio.to_thread(self.slates.close)
        if self._served is not None and done:  # else somebody may still be deleting a user
            await asyncio.to_thread(self._served.engine.below.detach, keep=True)
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        self._threads.shutdown(wait=False)
        return done

    async def _serve_holds(self) -> None:
        """Routers send no more prefixes; rankings of those that are held may still come, for a while."""
        known = self._served.known if self._served is not None else None
        drain_ms = known.budgets.drain_ms if known is not None else FIXED_BUDGETS.drain_ms
        end = time.monotonic() + drain_ms / 1000
        while self.relay.state().entries and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)

    def _show(self, served: Served) -> None:
        """`served` is the model from now on."""
        self._served = served
        self.pace.follow(served.known)
        self.relay.serve(relayed(served, self.config.relay))
        self._shadows.limit(served.epsilon)
        self._watch.serve(served.engine)
        budget_ms = served.known.budgets.b_rank_ms if served.known is not None else None
        self.metrics.serve(answers.model_facts(served, self.config), budget_ms)

    def feedback(self) -> wire.Feedback:
        """What a router wants to know."""
        return feedback(
            self.health.status,
            self._served.model if self._served is not None else "",
            self.config.engine.page_tokens,
            self._epoch,
            self._scheduler,
            self.relay.state(),
        )

    def note_epoch(self, epoch: int) -> None:
        """A router names the epoch of its members: after a change, others may have written to the store."""
        if epoch > self._epoch:
            self._epoch = epoch
            if self._users is not None:
                self._users.distrust()

    def note_moved(self, tenant: str, user: str) -> None:
        """A router does not know that this instance served the user last: another may have written."""
        if self._users is not None:
            self._users.distrust((tenant, user))

    def _readings(self) -> Readings:
        if self._scheduler is None or self._users is None or self._served is None:
            return Readings(in_progress=self.admissions.in_progress)
        return readings(self._scheduler, self._users, self._served, self.relay, self.admissions, self._watch)

    def _reading(self, served: Served) -> Reading:
        """ConfigError if the store keeps fewer events than are read."""
        items = None if self.generation is None else self.generation.history_items
        return reading_of(self.config, served.engine.model_config, items)

    async def _read_enough(self, before: Served, after: Served) -> None:
        """Before a model with a longer window is used, nobody may wait with a history cut for the shorter."""
        reading = self._reading(after)
        if reading.events > self._reading(before).events:
            self.users.read(reading)
            if self._ranking:
                await asyncio.wait(set(self._ranking))

    def _not_ready(self) -> NotReadyError:
        doing = "stopping" if self.health.status == "draining" else "starting"
        return NotReadyError(f"the service is {doing}")

    async def _answer(self, job: RankJob, gone: Gone | None) -> RankResult:
        future = asyncio.wrap_future(job.future)
        self._ranking.add(future)
        future.add_done_callback(self._ranking.discard)
        try:
            return await answered(job, future, gone)
        except ClientGoneError:
            self.metrics.disconnected("rank")
            raise
