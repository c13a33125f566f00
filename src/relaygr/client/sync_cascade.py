"""`Cascade` for pipelines of threads."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from relaygr.client.answers import PrefixSignal, Ranking
from relaygr.client.calls import History, Ints
from relaygr.client.course import Asked, Counts, Plan, Stage, Watch, candidates_of, missing, nothing
from relaygr.client.errors import RequestRejectedError
from relaygr.client.recommendation import Admission, Recommendation, Signal, Timings, best
from relaygr.client.sync import Client

DEFAULT_SIGNALS = 32


class SyncLap:
    """One request whose signal is on its way; made by `SyncCascade.lap`."""

    def __init__(self, client: Client, plan: Plan, asked: Asked, sent: Future[PrefixSignal] | Signal) -> None:
        self._client, self._plan, self._asked, self._sent = client, plan, asked, sent
        self._watch = Watch(plan.deadline_ms, asked.request_id, time.monotonic())

    @property
    def signal(self) -> Signal:
        """What is known of the signal now; settled after the `with` block."""
        if isinstance(self._sent, Signal):
            return self._sent
        if not self._sent.done():
            return Signal(Admission.UNANSWERED)
        error = self._sent.exception()
        return Signal.answered(self._sent.result()) if error is None else Signal.failed(error)

    @property
    def timings(self) -> Timings:
        return self._watch.timings(time.monotonic())

    def rank(
        self,
        candidates: Ints,
        *,
        top_k: int | None = None,
        query_time: int | Ints | None = None,
        output: str = "logits",
    ) -> Ranking:
        """Rank with what is left of the time, at the member that the signal was answered by, if it was."""
        start_s = time.monotonic()
        both = self._asked.rank(self._plan, self._watch.left_ms(start_s), self.signal.hint)
        self._watch.begin("ranking")
        self._watch.lead(start_s)
        try:
            return self._client.rank(
                self._asked.user, candidates, query_time=query_time, output=output, top_k=top_k, **both
            )
        finally:
            self._watch.took("ranking", time.monotonic() - start_s)

    def _run(self, stage: str, function: Stage, *arguments: Any) -> Any:
        self._watch.begin(stage)
        start_s = time.monotonic()
        try:
            found = function(*arguments)
        finally:
            end_s = time.monotonic()
            self._watch.took(stage, end_s - start_s)
        self._watch.left_ms(end_s)
        return found

    def _settle(self) -> None:
        # An answer that comes later changes nothing of what this request says about its signal.
        self._sent = self.signal
        self._watch.end(time.monotonic())


class SyncCascade:
    """`Cascade` for `Client`; may be shared by threads; close it, or use `with`.

    Stages run in the caller's thread, the signal in a thread of the cascade. What runs cannot be cancelled: a
    stage that overruns the deadline is noticed at its end, and an unanswered signal ends with the time of its
    call, by `deadline_ms` or `Door.timeout_ms`.

    Args:
        client, retrieve, preprocess, budget_ms, deadline_ms, candidates, enabled: as for `Cascade`.
        signals: on their way at once, a thread each; while so many are, no further one is sent.
    """

    def __init__(
        self,
        client: Client,
        *,
        retrieve: Stage | None = None,
        preprocess: Stage | None = None,
        budget_ms: float | None = None,
        deadline_ms: float | None = None,
        candidates: int | None = None,
        enabled: bool = True,
        signals: int = DEFAULT_SIGNALS,
    ) -> None:
        for name, stage in (("retrieve", retrieve), ("preprocess", preprocess)):
            if inspect.iscoroutinefunction(stage):
                raise RequestRejectedError(f"{name}: coroutine functions need Cascade", field=name)
        if not 1 <= signals <= 1024:
            raise RequestRejectedError(f"signals: {signals} is outside [1, 1024]", field="signals")
        self._client, self._plan = client, Plan(budget_ms, deadline_ms, candidates)
        self._retrieve, self._preprocess = retrieve, preprocess
        self._counts = Counts()
        self._free = threading.BoundedSemaphore(signals)
        self._threads = ThreadPoolExecutor(signals, "relaygr-signal")
        self.enabled = enabled

    @property
    def signals(self) -> dict[Admission, int]:
        """How many signals ended how, as far as their requests could tell."""
        return self._counts.read()

    def recommend(
        self,
        user: str,
        request: Any = None,
        *,
        top_k: int | None = None,
        query_time: int | Ints | None = None,
        history: History | None = None,
        output: str = "logits",
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Recommendation:
        """As `Cascade.recommend`."""
        of_both = {"history": history, "request_id": request_id, "traceparent": traceparent}
        with self.lap(user, **of_both) as lap:  # type: ignore[arg-type]
            candidates = self._candidates(lap, user, request)
            wanted = len(candidates) if top_k is None else top_k
            ranking = None
            if candidates:
                ranking = lap.rank(candidates, top_k=wanted, query_time=query_time, output=output)
        items = [] if ranking is None else best(candidates, ranking)
        return Recommendation(user, items, candidates, ranking, lap.signal, lap.timings)

    @contextmanager
    def lap(
        self,
        user: str,
        *,
        history: History | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Iterator[SyncLap]:
        """Send the signal, and rank with `SyncLap.rank` inside the block."""
        asked = Asked.of(user, history, request_id, traceparent)
        lap = SyncLap(self._client, self._plan, asked, self._send(asked))
        try:
            yield lap
        finally:
            lap._settle()
            self._counts.add(lap.signal.admission)

    def close(self) -> None:
        """Wait for the signals on their way; later requests send none."""
        self.enabled = False
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _candidates(self, lap: SyncLap, user: str, request: Any) -> list[int]:
        if self._retrieve is None:
            raise missing()
        found = lap._run("retrieval", self._retrieve, user, request)
        if self._preprocess is not None and not nothing(found):
            found = lap._run("pre-processing", self._preprocess, user, request, found)
        return candidates_of(found)

    def _send(self, asked: Asked) -> Future[PrefixSignal] | Signal:
        if not self.enabled:
            return Signal(Admission.NOT_SENT, "disabled")
        if not self._free.acquire(blocking=False):
            return Signal(Admission.NOT_SENT, "crowded")
        try:
            sent = self._threads.submit(self._client.prefix, asked.user, **asked.signal(self._plan))
        except RuntimeError as error:  # no thread can be started
            self._free.release()
            return Signal.failed(error)
        sent.add_done_callback(lambda _: self._free.release())
        return sent
