"""The engine: prefetch, append, rank and forget over one user state.

A request's scores depend on the model, the user's history, the query time and the candidate only: never on
batch mates, micro-batches, page placement or on whether the prefix came from the cache.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TypeVar

import torch

from relaygr.cache.interface import Stats
from relaygr.cache.margin import Missed
from relaygr.config.host import HostConfig
from relaygr.config.settings import EngineConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import BackendError, RelayError, RequestError
from relaygr.core.ids import Fingerprint, tenant, user_id
from relaygr.core.state import Ref
from relaygr.engine.aside import Aside
from relaygr.engine.batch import Work, next_wave, score
from relaygr.engine.below import Below
from relaygr.engine.checker import Checker
from relaygr.engine.choosing import Loader, chooser_for, weigh_by
from relaygr.engine.columns import Int64, IntColumn
from relaygr.engine.courier import CopyStats
from relaygr.engine.history import UserHistory
from relaygr.engine.passes import Passes
from relaygr.engine.requests import EngineStats, Path, PrefetchResult, RankRequest, RankResult
from relaygr.engine.residency import Residency
from relaygr.engine.tiers import NO_HOST, Readable, Tiers, format_of
from relaygr.kernels.interface import Kernel
from relaygr.kernels.select import Choice, choose
from relaygr.kernels.threads import serve_with_threads
from relaygr.memory.lane import Lanes
from relaygr.memory.layout import KvLayout
from relaygr.memory.stores import PrivateKv
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker
from relaygr.models.weights import open_ranker

log = logging.getLogger("relaygr.engine")

_Result = TypeVar("_Result")


class Engine:
    """One model on one device; `below` is what it has in files.

    Every method may be called from any thread; calls run one after another. `rank_batch` and
    `prefetch_batch` report errors per request and never raise for one of them.
    """

    def __init__(
        self,
        model: Ranker,
        model_fp: Fingerprint,
        choice: Choice,
        config: EngineConfig | None = None,
        clock: Clock | None = None,
        host: HostConfig = NO_HOST,
        lanes: Lanes | None = None,
    ) -> None:
        """Serve `model`, whose matrices are in `choice.dtype`, within `config.device_bytes` of K/V.

        `host` sizes the tier below, which takes what the device has no room for; `lanes` copy between them,
        those of `host.copy_threads` threads if it is None.

        Raises:
            ConfigError: the pool is smaller than one page, or the host format does not exist here.
        """
        settings = config or EngineConfig()
        self.config, self.model, self.model_fp, self.choice = settings, model.eval(), model_fp, choice
        self._kernel: Kernel = choice.kernel
        self._clock: Clock = clock or MonotonicClock()
        shape = model.config
        self.layout = KvLayout(
            shape.num_layers, shape.num_heads, shape.qk_dim, shape.v_dim, choice.dtype, settings.page_tokens
        )
        self._checker = Checker(self.model, model_fp, settings)
        lease_s, chooser = settings.lease_ttl_ms / 1000, chooser_for(shape, host)
        weigh = weigh_by(chooser, format_of(host, choice.dtype).token_bytes(self.layout))
        self._tiers = Tiers(self.layout, settings.device_bytes, lease_s, host, self._clock, lanes, weigh)
        self._desk = self._tiers.desk
        self.loader = Loader(self._tiers, chooser)
        self.host_format = self._tiers.host_format
        parts = (self._checker, self._tiers, self.loader, self._clock)
        self._passes = Passes(self.model, self._kernel, *parts, settings.microbatch)
        self._lock = threading.Lock()
        self.below = Below(self._tiers, host, model_fp, self._clock, self._lock)
        self._served = dict.fromkeys(Path, 0)
        self._computed = self._cached = self._scored = self._errors = 0

    @classmethod
    def load(cls, folder: FilePath, config: EngineConfig | None = None, clock: Clock | None = None) -> Engine:
        """Open a model folder; kernel and dtype are chosen once, by measurement, and logged.

        Raises:
            ConfigError: the folder or a setting is wrong.
        """
        settings = config or EngineConfig()
        serve_with_threads(settings.threads, power_of_two=settings.bitwise)
        choice = choose(settings.kernel, settings.dtype, settings.bitwise)
        model, model_fp = open_ranker(folder, choice.dtype)
        return cls(model, model_fp, choice, settings, clock)

    @property
    def model_config(self) -> AnyConfig:
        return self.model.config

    def prefetch(self, history: UserHistory) -> PrefetchResult:
        """Encode a user's prefix ahead of ranking; only tokens not cached are computed.

        Raises:
            RequestError: the history does not fit the model.
        """
        return _only(self.prefetch_batch([history]))

    def prefetch_batch(self, histories: Sequence[UserHistory]) -> list[PrefetchResult | RelayError]:
        """`prefetch` for several users in one pass."""
        requests = [RankRequest(history, ()) for history in histories]
        with self._lock:
            return [r.served if isinstance(r, RankResult) else r for r in self._serve(requests)]

    def prefetch_chunk(self, history: UserHistory, limit_tokens: int) -> PrefetchResult:
        """One step of a prefetch: about `limit_tokens` of what is missing, in whole pages, at least one page.

        `tokens_left` of the answer says how much is missing afterwards; repeat until it is 0. What a step
        computed is in the cache at once, and any rank call of the user goes on from there.

        Raises:
            RequestError: the history does not fit the model.
        """
        if limit_tokens < 1:
            raise RequestError("limit_tokens", f"{limit_tokens} must be at least 1")
        with self._lock:
            whole = self._checker.work(0, RankRequest(history, ()))
            work = self._step(whole, limit_tokens)
            served = _only(self._run([work])).served
        return replace(served, tokens_left=whole.tokens - work.tokens)

    def append(
        self,
        history: UserHistory,
        items: IntColumn,
        timestamps: IntColumn,
        actions: IntColumn | None = None,
    ) -> tuple[UserHistory, PrefetchResult]:
        """Add events behind a history and encode exactly their tokens if the prefix is cached.

        Raises:
            RequestError: the events are malformed or older than the history's last.
        """
        longer = history.append(items, timestamps, actions)
        return longer, self.prefetch(longer)

    def rank(self, request: RankRequest) -> RankResult:
        """Score one request's candidates.

        Raises:
            RequestError: the request does not fit the model or a limit.
        """
        return _only(self.rank_batch([request]))

    def rank_batch(self, requests: Sequence[RankRequest]) -> list[RankResult | RelayError]:
        """Score several requests together; answers stand in request order, each a result or its own error."""
        with self._lock:
            return self._serve(requests)

    @torch.inference_mode()
    def score_aside(self, aside: Aside, limit_tokens: int) -> bool:
        """Compute about `limit_tokens` more of it, in memory of its own; True when its scores are there.

        Raises:
            RequestError: the request does not fit the model.
        """
        with self._lock:
            whole = self._checker.work(0, aside.request)
            part = self._checker.shorter(whole, aside.filled, limit_tokens) if whole.tokens else whole
            if aside.store is None and whole.tokens:
                aside.store = PrivateKv(self.layout, whole.tokens)
            last = part.tokens == whole.tokens
            if not last:
                part = replace(part, candidates=part.candidates[:0])
            held = [Residency(aside.store, aside.filled, "")]
            logits = score(self.model, self._kernel, [part], held, self.config.microbatch)[0]
            aside.filled = part.tokens
            if last:
                aside.logits = logits.float().numpy()
            return last

    def stop_reuse(self) -> None:
        """Compute every history anew from now on: what is kept between requests gives other scores."""
        self._passes.reuses = False

    def check_events(self, items: Int64, actions: Int64) -> None:
        """Refuse events that would make a history unrankable.

        Raises:
            RequestError: an action or an item that the model does not take.
        """
        self.model.tokens.check_events(items, actions)

    def peek(self, request: RankRequest) -> tuple[int, int]:
        """(history tokens, of these cached) of a request, without waiting for a running batch.

        The answer may be out of date when it is read; it is for admission and estimates.

        Raises:
            RequestError: the request does not fit the model or a limit.
        """
        tokens, readable = self.locate(request)
        return tokens, readable.device

    def locate(self, request: RankRequest) -> tuple[int, Readable]:
        """`peek`, by tier."""
        work = self._checker.work(0, request)
        ref = self._passes.kept_ref(work)
        return work.tokens, Readable(0, 0) if ref is None else self._tiers.readable(ref)

    def ref(self, history: UserHistory) -> Ref | None:
        """What identifies a prefix that is kept between requests; None where none is, or nothing is in it."""
        return self._passes.kept_ref(self._checker.work(0, RankRequest(history, ())))

    def readable(self, ref: Ref) -> Readable:
        """What the tiers have of a prefix; changes nothing, and may be asked from any thread."""
        return self._tiers.readable(ref)

    def forget(self, tenant_name: str, user: str) -> int:
        """Drop everything held of a user; returns the number of entries dropped."""
        owner = tenant(tenant_name), user_id(user)
        with self._lock:
            dropped, finish = self._tiers.forget(owner), self.below.forget(owner)
        finish()  # outside of the lock: ranking goes on while this waits for the disk
        return dropped

    def hold(self, history: UserHistory, seconds: float) -> int:
        """Keep what the device has of a prefix from being evicted; returns the tokens held.

        One hold a user: it replaces the one before, and ends with `let_go`, or by itself after so long.
        """
        ref = self.ref(history)
        with self._lock:
            now = self._clock.now_s()
            return self._tiers.hold(ref, now, now + seconds) if ref is not None else 0

    def let_go(self, tenant_name: str, user: str) -> None:
        """End the user's hold and a reload that nobody goes on with; without them a no-op."""
        with self._lock:
            self._tiers.abandon((tenant(tenant_name), user_id(user)))

    def reload_step(self, history: UserHistory, budget_bytes: int) -> bool:
        """Copy about so much of what the host has of a prefix to the device; True when that is all.

        Raises:
            BackendError: the copy failed, and `host.fail_mode` is closed.
        """
        ref = self.ref(history)
        with self._lock:
            return ref is None or self._tiers.reload_step(ref, budget_bytes, self._clock.now_s())

    def wants_spill(self, free_share: float) -> bool:
        """Whether less of the device than this share is free, or a spill is under way."""
        return self._tiers.wants_spill(free_share)

    def spill_step(self, free_share: float, budget_bytes: int, worth: Callable[[Ref], bool]) -> bool:
        """See `Tiers.spill_step`."""
        with self._lock:
            return self._tiers.spill_step(free_share, budget_bytes, self._clock.now_s(), worth)

    def reloaded(self, nbytes: int, seconds: float) -> None:
        """Steps of a reload brought so much in so long: later choices between copying and computing know."""
        with self._lock:
            self.loader.copied(nbytes, seconds)

    @property
    def fails_closed(self) -> bool:
        """Whether a copy that failed is an error, not something to compute anew."""
        return self._tiers.fails_closed

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """From and to host memory."""
        return self._tiers.copied_bytes

    def copy_stats(self) -> CopyStats:
        """Counters of the copies between the tiers."""
        with self._lock:
            return self._tiers.copy_stats()

    def loads_in_time(self, found: Readable, by_s: float) -> bool:
        """Whether what the host has more than the device would be there by then."""
        return self._tiers.loads_in_time(found, self._clock.now_s(), by_s)

    def missed(self) -> list[Missed]:
        """Visits since the last call whose states a little more device memory would have kept."""
        with self._lock:
            return self._tiers.books.margin.take()

    def cache_stats(self) -> Stats:
        """Pages by state; free + pinned + evictable = total."""
        with self._lock:
            return self._tiers.stats()

    def stats(self) -> EngineStats:
        with self._lock:
            return EngineStats(
                full=self._served[Path.FULL],
                resumed=self._served[Path.RESUMED],
                hit=self._served[Path.HIT],
                tokens_computed=self._computed,
                tokens_cached=self._cached,
                candidates=self._scored,
                errors=self._errors,
                decisions=self.loader.decisions,
            )

    def _serve(self, requests: Sequence[RankRequest]) -> list[RankResult | RelayError]:
        limit = self.config.max_batch_requests
        if len(requests) > limit:
            raise RequestError("batch", f"{len(requests)} requests, limit {limit}")
        answers: list[RankResult | RelayError | None] = [None] * len(requests)
        waiting: list[Work] = []
        for place, request in enumerate(requests):
            try:
                waiting.append(self._checker.work(place, request))
            except RequestError as error:
                answers[place] = error
        while waiting:
            wave, waiting = next_wave(waiting)
            for work, answer in zip(wave, self._run(wave), strict=True):
                answers[work.place] = answer
        self._errors += sum(isinstance(answer, RelayError) for answer in answers)
        return [answer for answer in answers if answer is not None]

    @torch.inference_mode()
    def _run(self, wave: list[Work]) -> list[RankResult | RelayError]:
        held: list[Residency] = []
        try:
            logits = self._passes.score(wave, held)
            return [
                self._answer(work, residency, scores)
                for work, residency, scores in zip(wave, held, logits, strict=True)
            ]
        finally:
            for residency in held:
                self._desk.close(residency)

    def _step(self, work: Work, limit_tokens: int) -> Work:
        """The part of a prefetch that ends about `limit_tokens` behind what is cached."""
        ref = self._passes.kept_ref(work)
        if ref is None:
            return work
        return self._checker.shorter(work, self._tiers.readable(ref).device, limit_tokens)

    def _answer(self, work: Work, residency: Residency, logits: torch.Tensor) -> RankResult | RelayError:
        if residency.error is not None:
            return residency.error
        if not bool(torch.isfinite(logits).all()):
            self._desk.drop(residency)
            return BackendError(f"scores of user {work.history.user!r} are not finite; the prefix is dropped")
        idle = not len(work.candidates) and bool(residency.reason)
        reason = self._desk.keep(residency, self._clock.now_s())
        cached = residency.cached
        computed = 0 if idle else work.tokens - cached
        path = Path.FULL if not cached else Path.RESUMED if computed else Path.HIT
        self._served[path] += 1
        self._cached += cached
        self._computed += computed
        self._scored += len(logits)
        provisional = min(self.model.config.provisional, len(work.history)) if len(logits) else 0
        served = PrefetchResult(
            path,
            cached,
            computed,
            resident=not reason,
            uncached_reason=reason,
            model=self.model_fp,
            tokens_provisional=provisional,
            unknown_ids=work.unknown,
            tokens_loaded=residency.loaded,
            tokens_quantized=self._desk.quantized(residency),
        )
        shape = self.model.config
        return RankResult(shape.tasks, logits.float().numpy(), served, shape.regressions)


def _only(answers: Sequence[_Result | RelayError]) -> _Result:
    """The single answer of a batch of one, or its error raised."""
    answer = answers[0]
    if isinstance(answer, RelayError):
        raise answer
    return answer
