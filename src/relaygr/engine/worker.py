"""What the executor does in one turn: a rank batch, a step of a prefix, or chores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from relaygr.cache.interface import Reason
from relaygr.core.clock import Clock
from relaygr.core.errors import RelayError
from relaygr.engine.chores import COPY_BYTES, Chores
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import ChunkTokens, Fit, Flight, Observer, Turn, guarded
from relaygr.engine.relay import Relay
from relaygr.engine.requests import PrefetchResult, RankRequest
from relaygr.engine.turns import Turnstile

Land = Callable[[Turn, Flight, UserHistory, PrefetchResult], bool]


class Worker:
    """Runs on the executor's thread; nothing that goes wrong in a turn ends it.

    Args:
        land: ends a flight, or puts it back and says False.
        back: puts a flight back that has not ended.
    """

    def __init__(
        self,
        clock: Clock,
        chunk: ChunkTokens,
        fit: Fit | None,
        observer: Observer | None,
        relay: Relay | None,
        chores: Chores | None,
        turns: Turnstile | None = None,
        *,
        land: Land,
        back: Callable[[Flight], None],
    ) -> None:
        self._clock, self._chunk, self._fit, self._observer = clock, chunk, fit, observer
        self._relay, self._chores, self._land, self._back = relay, chores, land, back
        self._turns = turns

    def run(self, turn: Turn, idle: bool) -> None:
        """`idle` or `work`; when it has its turn, if others compute in the process as well."""
        work = self.idle if idle else self.work
        if self._turns is None:
            work(turn)
            return
        with self._turns.turn(ranking=bool(turn.batch)):
            work(turn)

    def work(self, turn: Turn) -> None:
        """Answer the batch, or bring the flight forward, as far as anybody still waits for them."""
        failed = guarded("a turn", partial(self._work, turn))
        if failed is not None:
            for job in turn.jobs():
                job.resolve(failed)

    def _work(self, turn: Turn) -> None:
        self._settle(turn)
        now = self._clock.now_s()
        for job in turn.jobs():
            if job.deadline_s <= now:  # the timer may be late
                job.expire()
        if turn.batch:
            self._rank(turn)
        elif turn.flight is not None and turn.flight.waiting:
            self._fly(turn, turn.flight)

    def idle(self, turn: Turn) -> None:
        """Nothing waits."""
        self._settle(turn)
        if self._chores is not None:
            guarded("chores", partial(self._chores.step, turn.engine))

    def _settle(self, turn: Turn) -> None:
        if self._relay is not None:
            guarded("settling holds", partial(self._relay.settle, turn.engine))

    def _rank(self, turn: Turn) -> None:
        relay = self._relay
        waiting = [job for job in turn.batch if job.waiting]
        laps = [] if relay is None else [(job, relay.enter(job)) for job in waiting]
        began_s = self._clock.now_s()
        turn.rank(self._clock, self._fit)
        share_s = (self._clock.now_s() - began_s) / len(turn.batch)
        for job, lap in laps:
            assert relay is not None
            relay.leave(lap, share_s, job)
        if self._chores is not None:
            self._chores.worked()
            for job in turn.batch:
                if job.done() and job.exception() is None:
                    self._chores.ranked(job, job.result(), turn.engine)

    def _fly(self, turn: Turn, flight: Flight) -> None:
        if self._relay is not None and not self._relay.wanted(flight.owner):
            flight.cancel("its rankings are over")
            return
        started = self._clock.now_s()
        flight.started_s = flight.started_s or started
        if flight.fetching:
            self._fetch(turn, flight)
        elif flight.reloading:
            self._reload(turn, flight, started)
        else:
            self._step(turn, flight, started)

    def _fetch(self, turn: Turn, flight: Flight) -> None:
        engine = turn.engine

        def fetch() -> bool:
            return engine.below.fetch_step(engine.ref(flight.history), COPY_BYTES, flight.deadline_s)

        if guarded("a fetch from disk", fetch) is not False:
            flight.fetching = False
            request = RankRequest(flight.history, ())
            found = guarded("looking for a prefix", partial(engine.locate, request))
            flight.fetched = not isinstance(found, RelayError) and found[1].host > found[1].device
            flight.reloading = flight.fetched
        self._back(flight)

    def _reload(self, turn: Turn, flight: Flight, started: float) -> None:
        relay = self._relay
        # What came from disk was decided on when it was begun, and did not wait for the link.
        if relay is None or flight.fetched or relay.may_reload(flight.owner):
            copied, _ = turn.engine.copied_bytes
            done = guarded("a reload", partial(turn.engine.reload_step, flight.history, COPY_BYTES))
            flight.reload_s += self._clock.now_s() - started
            if done is False:
                self._back(flight)
                return
            nbytes = turn.engine.copied_bytes[0] - copied
            turn.engine.reloaded(nbytes, flight.reload_s)
            if relay is not None:
                relay.reloaded(flight.owner, nbytes, flight.reload_s)
                relay.stepped(flight.owner, turn.engine, flight.history)
            if isinstance(done, RelayError) and turn.engine.fails_closed:
                flight.resolve(done)
                return
            flight.reloaded = done is True
        flight.reloading = False
        self._back(flight)

    def _step(self, turn: Turn, flight: Flight, started: float) -> None:
        history = flight.history
        served = turn.step(history, self._chunk)
        if isinstance(served, RelayError):
            flight.resolve(served)
            return
        flight.done_s = self._clock.now_s()
        flight.stepped(served, flight.done_s - started)
        if self._observer is not None:
            guarded("an observer", partial(self._observer.stepped, flight, flight.done_s - started))
        if self._relay is not None:
            self._relay.stepped(flight.owner, turn.engine, history)
            if served.uncached_reason == Reason.PINNED:
                self._relay.no_room()
        if not self._land(turn, flight, history, served):
            return
        if self._chores is not None:
            self._chores.worked()
        flight.resolve(served)
