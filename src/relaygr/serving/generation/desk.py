"""The generator of a service: opened with it, asked by its routes, drained with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import torch
from msgspec.structs import replace

from relaygr.config.generator import GeneratorConfig
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError, RelayError
from relaygr.engine import UserHistory
from relaygr.engine.columns import Int64
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.jobs import GenerateJob
from relaygr.engine.generation.opening import open_generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.recurrent import NO_STATES
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.engine.generation.seats import Generated
from relaygr.engine.turns import Turnstile, turns_for
from relaygr.generation.catalogue.errors import CatalogueError, UnavailableError
from relaygr.generation.catalogue.index import ItemId
from relaygr.generation.errors import KvBudgetError
from relaygr.generation.requests import GenerateRequest, GenerateResult
from relaygr.kernels.threads import usable_cores
from relaygr.serving.errors import HttpError
from relaygr.serving.generation import wire
from relaygr.serving.generation.bodies import generate_request
from relaygr.serving.generation.metrics import GenerateMetrics, GenerateReadings
from relaygr.serving.snapshot import Generation, Pool, Recurrent
from relaygr.serving.waiting import Gone, answered
from relaygr.serving.wire import GeneratorCard

log = logging.getLogger("relaygr.serving")

_WARM_UP = "relaygr-warm-up"
_WARM_UP_TOKENS = (1, 64, 1024)
_WARM_UP_MS = 3_600_000.0


class GenerateDesk:
    """One generator and its scheduler; belongs to the service's event loop."""

    def __init__(
        self, generator: Generator, config: Config, metrics: GenerateMetrics, turns: Turnstile | None
    ) -> None:
        self.generator, self.metrics = generator, metrics
        self._config, self._max_history = config.generator, config.serving.max_history
        self.scheduler = GenerateScheduler(generator, config.generator, observer=metrics, turns=turns)
        metrics.serve(generator.model_fp.hex(), self._readings)

    @classmethod
    def open(cls, config: Config, metrics: GenerateMetrics, turns: Turnstile | None) -> GenerateDesk:
        """Load the decoder and its catalogue, and warm them.

        Raises:
            RelayError: a folder, a file in it or a setting is wrong, or the two do not fit.
        """
        generator = open_generator(config.generator, config.host, kernel=config.engine.kernel)
        try:
            _warm(generator, config)
        except BaseException:
            generator.close()
            raise
        return cls(generator, config, metrics, turns)

    @property
    def history_items(self) -> int:
        """Items of a history that a prompt may hold."""
        return self.generator.window_items()

    async def generate(
        self,
        tenant: str,
        body: wire.GenerateBody,
        history: UserHistory | None,
        seen: Int64 | None,
        left_ms: float,
        request_id: str,
        gone: Gone | None,
    ) -> wire.GenerateAnswer:
        """Generate; when `gone` returns first, the work is given up.

        Args:
            history: of `body.user`.
            seen: items of all events of the user, for a request that excludes them.
            left_ms: until the deadline.

        Raises:
            RelayError: of generation; CancelledError if the client went away.
        """
        unknown = body.unknown_items or self._config.unknown_items
        try:
            request = generate_request(body, self._config, self._max_history, request_id)
            asked = Asked(request=request, history=history, seen=seen, tenant=tenant, unknown=unknown)
            claim = None if history is None else self.scheduler.claim(tenant, history.user)
            # Off the event loop: this makes tokens, filters and digests.
            job = await asyncio.to_thread(self.scheduler.generate, asked, left_ms, claim)
        except RelayError as error:
            self.metrics.rejected(error)
            raise
        answer = await answered(job, asyncio.wrap_future(job.future), gone)
        assert isinstance(answer, Generated)
        return _wire(job, answer.result)

    async def encode(self, tenant: str, history: UserHistory, deadline_ms: float) -> None:
        """Bring a user's prompt into the cache ahead of a generation; whatever becomes of it."""
        asked, claim = Asked(history=history, tenant=tenant), self.scheduler.claim(tenant, history.user)
        try:
            await asyncio.to_thread(self.scheduler.encode, asked, deadline_ms, claim)
        except RelayError as error:
            self.metrics.rejected(error)

    def forget(self, tenant: str, user: str) -> int:
        """Drop everything of a user; waits for a step that runs."""
        return self.scheduler.forget(tenant, user)

    def card(self) -> GeneratorCard:
        """What generates, and its limits."""
        generator, settings = self.generator, self._config
        decoder = generator.decoder
        return GeneratorCard(
            model=generator.model_fp.hex(),
            path=settings.model,
            family=decoder.config.family,
            dtype=str(decoder.dtype).removeprefix("torch."),
            attention=decoder.mode,
            normalization=settings.normalization,
            prompt_tokens=min(settings.max_prompt_tokens, decoder.config.max_positions),
            prompt_items=self.history_items,
            beam_width=settings.max_beam_width,
            results=settings.max_results,
            texts=generator.reads_texts,
            catalogue=generator.catalogues.status().serving or "",
        )

    def status(self) -> Generation:
        """As the status page shows it. May wait for a prompt that is computed: call it off the event loop."""
        stats, load, settings = self.generator.stats(), self.scheduler.load(), self._config
        catalogue = self.generator.catalogues.status()
        return Generation(
            model=self.generator.model_fp.hex(),
            catalogue=catalogue.serving or "",
            catalogue_age_s=catalogue.age_s(time.time()),
            waiting=load.waiting,
            running=load.running,
            prompts=load.prompts,
            rows=load.rows,
            rows_limit=settings.max_beam_rows,
            tokens=load.tokens,
            tokens_limit=settings.max_batch_tokens,
            states=Pool.of(stats.pages),
            beam_bytes=stats.beam_bytes,
            beam_limit_bytes=settings.beam_bytes,
            recurrent=None if stats.states is None else Recurrent.of(stats.states),
        )

    def catalogues(self) -> wire.CataloguesAnswer:
        status = self.generator.catalogues.status()
        try:
            with self.generator.catalogues.pin() as pinned:
                levels, sids, items = pinned.index.sizes, pinned.index.n_sids, pinned.index.n_items
        except UnavailableError:
            levels, sids, items = (), 0, 0
        return wire.CataloguesAnswer(
            serving=status.serving or "",
            kept=status.kept,
            retired=status.retired,
            levels=levels,
            sids=sids,
            items=items,
            as_of_s=status.as_of_s,
            since_s=status.since_s,
            withdrawn=status.withdrawn,
            loads=status.loads,
            failures=status.failures,
            error=status.error or "",
        )

    async def load_catalogue(self, path: str, allow_shrink: bool) -> wire.CataloguesAnswer:
        """Serve another catalogue; a request keeps the one it began with.

        Raises:
            HttpError: 422 for a folder that is no catalogue or does not fit; the one before serves on.
        """
        try:
            version = await asyncio.to_thread(self.generator.catalogues.load, path, allow_shrink=allow_shrink)
        except (CatalogueError, ConfigError) as error:
            raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, "catalogue", str(error), field="path") from error
        log.info("catalogue %s of %s serves", version.label, path)
        return self.catalogues()

    async def rollback_catalogue(self) -> wire.CataloguesAnswer:
        """Serve the version before; 409 without one."""
        try:
            version = await asyncio.to_thread(self.generator.catalogues.rollback)
        except UnavailableError as error:
            raise HttpError(HTTPStatus.CONFLICT, "no_version", str(error)) from error
        log.info("catalogue %s serves again", version.label)
        return self.catalogues()

    async def withdraw(self, items: Sequence[ItemId]) -> wire.CataloguesAnswer:
        await asyncio.to_thread(self.generator.catalogues.withdraw, items)
        return self.catalogues()

    async def restore(self, items: Sequence[ItemId]) -> wire.CataloguesAnswer:
        await asyncio.to_thread(self.generator.catalogues.restore, items)
        return self.catalogues()

    def drain(self, timeout_s: float) -> bool:
        """Finish what waits; False if that was not all in time."""
        done = self.scheduler.drain(timeout_s)
        self.generator.close()
        return done

    def _readings(self) -> GenerateReadings:
        stats = self.generator.stats()
        pool = stats.pages
        pages = {"free": pool.free_bytes, "pinned": pool.pinned_bytes, "evictable": pool.evictable_bytes}
        beams = stats.beam_bytes, self._config.beam_bytes
        states = stats.states or NO_STATES
        return GenerateReadings(
            self.scheduler.load(), pages, beams, states, self.generator.catalogues.status()
        )


def shared_turns(config: GeneratorConfig) -> Turnstile | None:
    """What ranking and generation share of the processor; None if there are cores for both.

    The threads of the process are to be set before.
    """
    return turns_for(torch.get_num_threads(), usable_cores(), config.yield_ms / 1000)


def _warm(generator: Generator, config: Config) -> None:
    """Generate for made-up prompts, so that no request pays for first times; nothing counts them.

    Raises:
        RelayError: the model gives scores that are not finite, or there is another error.
    """
    # First times may take longer than any request may.
    settings = replace(config.generator, deadline_max_ms=_WARM_UP_MS)
    room = generator.stats().pages.total_pages * settings.page_tokens
    longest = min(settings.max_prompt_tokens, generator.decoder.config.max_positions // 2, room)
    scheduler = GenerateScheduler(generator, settings)
    try:
        for tokens in sorted({min(tokens, longest) for tokens in _WARM_UP_TOKENS}):
            request = GenerateRequest(
                request_id=_WARM_UP, token_ids=[0] * max(tokens, 1), beam_width=settings.beam_width
            )
            scheduler.generate(Asked(request=request, tenant=_WARM_UP), _WARM_UP_MS).result()
    except KvBudgetError as error:
        # What every request that names no width would be told.
        names = " and ".join(settings.key(name) for name in ("beam_bytes", "scratch_bytes"))
        raise ConfigError(
            settings.key("beam_width"), f"{settings.beam_width}: {error.reason}; see {names}"
        ) from error
    finally:
        scheduler.close()


def no_generator() -> HttpError:
    """What a server without a generator says."""
    text = "this server has no generator: generator.model is not set"
    return HttpError(HTTPStatus.NOT_FOUND, "no_generator", text)


def _wire(job: GenerateJob[Any], result: GenerateResult) -> wire.GenerateAnswer:
    found, timings = result.found, result.found.timings
    return wire.GenerateAnswer(
        results=[wire.Generated(list(row.sid), row.score, list(row.items)) for row in found.rows],
        normalization=found.normalization.value,
        catalog_version=result.catalog_version,
        model_version=result.model_version,
        requested=found.requested,
        returned=found.returned,
        prompt_tokens=result.prompt_tokens,
        cached_tokens=result.cached_tokens,
        unknown_items=result.unknown_items,
        timings=wire.GenerateTimings(
            queue_ms=_ms(job.started_s - job.queued_s),
            prefill_ms=_ms(job.prefilled_s - job.started_s),
            forward_ms=round(sum(timings.forward_ms), 3),
            selection_ms=round(sum(timings.selection_ms), 3),
            prepare_ms=round(sum(timings.preparation_ms), 3),
            total_ms=_ms(job.done_s - job.queued_s),
        ),
        request_id=result.request_id,
        underflow=None if found.underflow is None else found.underflow.value,
    )


def _ms(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)
