"""The list layer of a service: one ranking as every other, and the list from its scores on a thread apart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

from relaygr.core.errors import DeadlineError, NotReadyError, OverloadError, RelayError, RequestError
from relaygr.engine.deadlines import deadline_ms
from relaygr.engine.requests import RankResult
from relaygr.engine.slate.maker import Made, Order, SlateMaker
from relaygr.engine.slate.opening import heads_of
from relaygr.listwise.request import Mode
from relaygr.listwise.result import Reason
from relaygr.listwise.slate_log import Drawn
from relaygr.models.presets import AnyConfig
from relaygr.serving.bodies import owner_of
from relaygr.serving.errors import HttpError
from relaygr.serving.generation.wire import GenerateBody
from relaygr.serving.slate import wire
from relaygr.serving.slate.answers import slate_answer
from relaygr.serving.slate.asked import slate_request
from relaygr.serving.slate.inflation import ListName
from relaygr.serving.slate.log_writer import SlateLogWriter
from relaygr.serving.slate.metrics import SlateMetrics
from relaygr.serving.slate.observed import observed
from relaygr.serving.slate.waiting_lists import ServedList
from relaygr.serving.snapshot import Slates
from relaygr.serving.waiting import Gone, answered
from relaygr.serving.wire import RankBody

if TYPE_CHECKING:
    from relaygr.serving.service import Service

log = logging.getLogger("relaygr.serving")

_RETRY_MS = 50.0
_LIST_SHARE = 0.9  # of the time that is left until the deadline; the rest is for the answer
_FLUSH_S = 5.0  # that a stopping service waits for the disk of its log


class SlateDesk:
    """One list layer and its threads; belongs to the service's event loop.

    Rankings go the way of `/v1/rank`: same admission, prefix and queue. What follows needs the processor, but
    neither the model nor its turn.
    """

    def __init__(self, maker: SlateMaker, service: Service) -> None:
        self.maker = maker
        self._service, self._config = service, service.config
        self._waiting = 0
        self._threads = ThreadPoolExecutor(maker.config.workers, "relaygr-slate")
        self.metrics = SlateMetrics(
            service.metrics.registry,
            service.metrics.recent,
            lambda: service.served.model,
            lambda: self._waiting,
            lambda: maker.mode,
            maker.config.top,
        )
        self._log: SlateLogWriter | None = None
        if maker.config.log:
            self._log = SlateLogWriter(maker.config, maker.slates.value.heads, self.metrics.log)
        config = maker.config
        self._drawn = Drawn(
            temperature=config.explore_temperature, top=config.trust_top, seed=config.explore_seed
        )

    @classmethod
    def open(cls, service: Service, shape: AnyConfig) -> SlateDesk:
        """Read what the settings name, for a ranker of this shape; ConfigError naming the setting."""
        return cls(SlateMaker.open(service.config.slate, heads_of(shape)), service)

    async def slate(
        self, tenant: str, body: wire.SlateBody, request_id: str, gone: Gone | None
    ) -> wire.SlateAnswer:
        """Rank and make a list; when `gone` returns first, the work is given up.

        Raises:
            RelayError: as ranking does, its deadline included; RequestError as `SlateMaker`.
        """
        limits = self._config.scheduler
        whole_ms = deadline_ms(body.deadline_ms, limits.rank_deadline_ms, limits.deadline_max_ms)
        begun_s = time.monotonic()
        try:
            candidates, generated = body.candidates, None
            if candidates is None:
                candidates = generated = await self._generate(tenant, body, whole_ms, request_id, gone)
            order = self.maker.order(
                slate_request(tenant, body, candidates, self.maker.config.length, request_id)
            )
            self._check_room()
            left_ms = max(whole_ms - (time.monotonic() - begun_s) * 1e3, 1.0)
            ranking = RankBody(
                user=body.user,
                candidates=candidates,
                query_time=body.query_time,
                deadline_ms=left_ms if generated is not None else body.deadline_ms,
                history=body.history,
            )
            job, ranked = await self._service.score(tenant, ranking, gone)
            left_ms = whole_ms - (time.monotonic() - begun_s) * 1e3
            made, waited_s, seconds = await self._make(order, ranked, left_ms, gone)
        except RelayError as error:
            self.metrics.rejected(error)
            raise
        rules = self.maker.rules
        names = [rule.name for rule in rules.document.rules] if rules is not None else []
        name = ListName(tenant, request_id)
        self.metrics.made(made, name, waited_s, seconds, names)
        if self._log is not None:
            seed = "" if body.seed is None else str(body.seed)
            self._log.served(ServedList.of(name, body.user, order.ask, made, seed, self._drawn))
        _tell(made)
        return slate_answer(body, job, ranked, made, waited_s, request_id, generated)

    def settle(self, tenant: str, outcomes: Sequence[wire.OutcomeBody]) -> list[bool]:
        """What came of lists of a tenant; whether each was remembered, which is once.

        Raises:
            RequestError: one of them is wrong; then nothing of them counts.
        """
        value, names = self.maker.slates.value, [ListName(tenant, one.request_id) for one in outcomes]
        told = [
            observed(one, value, at, self.metrics.positions(name))
            for at, (one, name) in enumerate(zip(outcomes, names, strict=True))
        ]
        if self._log is not None:
            for at, (name, one) in enumerate(zip(names, told, strict=True)):
                self._log.check(name, one.seen, f"outcomes[{at}]", one.said_by)
        found = []
        for name, one in zip(names, told, strict=True):
            counted = self.metrics.outcome(name, one.worth)
            logged = self._log is not None and self._log.settle(name, one.seen)
            found.append(counted or logged)
        return found

    def switch(self, mode: Mode) -> Mode:
        """The mode from the next request on; returns the one before."""
        before = self.maker.switch(mode)
        log.warning("slates: mode %s, before %s", mode, before)
        return before

    def card(self) -> wire.SlateCard:
        """What makes lists, and its limits."""
        maker, slates, config = self.maker, self.maker.slates, self.maker.config
        table = maker.table
        return wire.SlateCard(
            mode=maker.mode.value,
            value=slates.value.version,
            rules="none" if maker.rules is None else maker.rules.version,
            step="" if slates.step is None else slates.step.step.version,
            evaluator="" if slates.evaluator is None else slates.evaluator.version,
            generators=slates.generators,
            attributes=() if table is None else tuple(table.attributes),
            items=0 if table is None else len(table),
            length=config.length,
            max_length=config.max_length,
            max_candidates=config.max_candidates,
            budget_ms=config.budget_ms,
            explore_share=config.explore_share,
            logged=self._log is not None,
        )

    def status(self) -> Slates:
        """As the status page shows it."""
        slates, rules = self.maker.slates, self.maker.rules
        return self.metrics.status(
            slates.value.version,
            "" if rules is None else rules.version,
            "" if slates.step is None else slates.step.step.version,
        )

    def close(self) -> None:
        """Nothing is made any more, and the log is written, unless its disk takes more than a few seconds."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._log is not None and not self._log.close(_FLUSH_S):
            log.error(
                "slates: the disk of the log did not answer in %g s; what was not written is lost", _FLUSH_S
            )

    async def _generate(
        self, tenant: str, body: wire.SlateBody, left_ms: float, request_id: str, gone: Gone | None
    ) -> list[int]:
        """Items of the server's generator as candidates."""
        service, count = self._service, self.maker.config.generate_items
        if not self._config.generator.model:
            raise RequestError("candidates", "are missing, and this server has no generator to make some")
        if body.history is not None:
            raise RequestError("candidates", "are missing; they are generated from stored histories only")
        if body.attributes or body.vectors is not None:
            raise RequestError("candidates", "are missing, and attributes or vectors of candidates are given")
        owner, generator = owner_of(tenant, body.user), service.desk()
        history, left_ms = await service.histories.in_time("generate", owner, None, left_ms)
        asked = GenerateBody(user=body.user, max_items=count, seed=body.seed)
        made = await generator.generate(tenant, asked, history, None, left_ms, request_id, gone)
        found = (item for row in made.results for item in row.items if isinstance(item, int))
        items = list(dict.fromkeys(found))[:count]
        if not items:
            raise RequestError("candidates", "are missing, and the generator found none that are integers")
        return items

    def _check_room(self) -> None:
        limit = self.maker.config.queue_max
        if self._waiting >= limit:
            raise OverloadError(f"{self._waiting} slates wait, limit {limit}", _RETRY_MS)

    async def _make(
        self, order: Order, ranked: RankResult, left_ms: float, gone: Gone | None
    ) -> tuple[Made, float, float]:
        """The list, the seconds it waited for a thread, and those until it was made.

        Raises:
            DeadlineError: there is no list by the deadline. A thread that is at it ends it, for nobody; one
                that has not begun it never does.
        """
        self._check_room()
        queued_s, limit_ms, left_s = time.monotonic(), self.maker.config.budget_ms, left_ms / 1e3
        budget_ms = left_ms * _LIST_SHARE
        if limit_ms:
            budget_ms = min(limit_ms, budget_ms)

        def work() -> tuple[Made, float, float]:
            waited_s = time.monotonic() - queued_s
            if waited_s >= left_s:  # the event loop was too busy to cancel it
                raise DeadlineError("the deadline passed before a thread was free")
            made = self.maker.make(order, ranked, budget_ms - waited_s * 1e3)
            return made, waited_s, time.monotonic() - queued_s

        self._waiting += 1
        try:
            job = self._threads.submit(work)
        except RuntimeError as error:  # closed meanwhile
            self._waiting -= 1
            raise NotReadyError("the service is stopping") from error
        try:
            return await answered(job, asyncio.wrap_future(job), gone, max(left_s, 0.0))
        finally:
            self._waiting -= 1


def desk_of(service: Service) -> SlateDesk:
    """What makes slates.

    Raises:
        HttpError: 404, the server makes none.
        NotReadyError: it is starting or stopping.
    """
    if not service.config.slate.value:
        text = "this server makes no slates: slate.value is not set"
        raise HttpError(HTTPStatus.NOT_FOUND, "no_slates", text)
    if service.slates is None or service.health.status == "starting":
        raise NotReadyError("the service is starting")
    return service.slates


def _tell(made: Made) -> None:
    """Failures and lists without the trust region are in the log; so is what a shadow would have done."""
    result = made.result
    inner = result.shadow or result
    if inner.fallback_reason in (Reason.NAN, Reason.RULES, Reason.ERROR):
        log.warning("slates: the pointwise list is returned (%s): %s", inner.fallback_reason, inner.error)
    for dropped in result.dropped[:1]:
        log.warning("slates: a list of %s breaks a rule: %s", dropped.generator, "; ".join(dropped.broken))
    if result.unrestricted:
        log.info("slates: a list without the trust region, by %s", inner.generator)
    if result.shadow is not None:
        log.info("slates: in the shadow %s, lower bound %s", inner.generator, inner.lower_bound)
