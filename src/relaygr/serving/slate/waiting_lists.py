"""Served lists until their outcome comes: by tenant and request, for a time, within a number and a memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from relaygr.core.ids import DEFAULT_TENANT
from relaygr.engine.slate.maker import Made
from relaygr.listwise.masks import NoRules
from relaygr.listwise.pool import Pool
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.result import SlateResult
from relaygr.listwise.slate_log import Drawn, SlateRecord, record_of
from relaygr.serving.slate.inflation import ListName
from relaygr.serving.slate.log_metrics import Fate, LogMetrics
from relaygr.serving.slate.observed import Seen

_BESIDE_BYTES = 4096  # of a list, beside its candidates and texts
_RELAXATION_BYTES = 256  # of a rule that was given up, beside its text
_WIDEST = 4  # bytes of a character


@dataclass(frozen=True, slots=True)
class ServedList:
    """What a log needs of a list, and nothing else of its request.

    Attributes:
        name: tenant and id of the request.
        drawn: how it was drawn; None for one that was chosen.
    """

    name: ListName
    user: str
    ask: SlateAsk
    pool: Pool
    result: SlateResult
    seed: str
    drawn: Drawn | None

    @classmethod
    def of(
        cls, name: ListName, user: str, ask: SlateAsk, made: Made, seed: str, drawn: Drawn | None
    ) -> ServedList:
        """Copies what is kept, so that no batch, vectors or explanation live as long as an outcome takes."""
        shown = ask.shown
        if shown is not None:
            shown = replace(shown, attributes={}, vectors=None)
        pool, result = made.pool, made.result
        return cls(
            name,
            user,
            replace(ask, request_id=name.request_id, rules=NoRules(), shown=shown),
            Pool(ids=pool.ids, heads=pool.heads, outputs=np.array(pool.outputs)),
            replace(result, explanation=None, pool=(), shadow=None),
            seed,
            drawn if result.explored else None,
        )

    @property
    def length(self) -> int:
        """Positions that were shown."""
        return len(self.result.picks)

    @property
    def nbytes(self) -> int:
        """About what it holds in memory."""
        shown = 0 if self.ask.shown is None else 2 * self.ask.shown.ids.nbytes
        told = sum(
            _RELAXATION_BYTES + _WIDEST * (len(one.rule) + len(one.reason)) for one in self.result.relaxations
        )
        texts = _WIDEST * (len(self.result.error) + len(self.user) + len(self.name.request_id))
        return self.pool.ids.nbytes + self.pool.outputs.nbytes + shown + told + texts + _BESIDE_BYTES

    def record(self, seen: Seen) -> SlateRecord:
        """The line of a log."""
        tenant = self.name.tenant
        return msgspec.structs.replace(
            record_of(self.user, self.ask, self.pool, self.result, self.seed),
            tenant="" if tenant == DEFAULT_TENANT else tenant,
            drawn=self.drawn,
            consumed=seen.consumed,
            labels=seen.labels,
            more=seen.more,
        )


class WaitingLists:
    """The oldest are given up first; threads may share it.

    Args:
        wait_s: that a list waits at most.
        most, most_bytes: lists that wait at once, and their memory.
    """

    def __init__(self, wait_s: float, most: int, most_bytes: int, metrics: LogMetrics) -> None:
        self._wait_s, self._most, self._most_bytes = wait_s, most, most_bytes
        self._metrics, self._lock = metrics, threading.Lock()
        self._lists: OrderedDict[ListName, tuple[float, ServedList]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._lists)

    def add(self, served: ServedList, now_s: float) -> None:
        """A later list of the same name takes the place of the earlier one."""
        with self._lock:
            if served.name in self._lists:
                self._drop(served.name, Fate.REPLACED)
            self._lists[served.name] = now_s, served
            self._bytes += served.nbytes
            while len(self._lists) > self._most or self._bytes > self._most_bytes:
                self._drop(next(iter(self._lists)), Fate.FORGOTTEN)

    def length(self, name: ListName) -> int | None:
        """Positions of a list that waits."""
        with self._lock:
            found = self._lists.get(name)
        return None if found is None else found[1].length

    def take(self, name: ListName) -> ServedList | None:
        """The list, which waits no more."""
        with self._lock:
            found = self._lists.pop(name, None)
            if found is None:
                return None
            self._bytes -= found[1].nbytes
        return found[1]

    def expire(self, now_s: float) -> None:
        """Give up those that have waited too long."""
        with self._lock:
            while self._lists:
                name, (since_s, _) = next(iter(self._lists.items()))
                if now_s - since_s < self._wait_s:
                    return
                self._drop(name, Fate.TIMEOUT)

    def clear(self) -> None:
        """The service stops."""
        with self._lock:
            for name in list(self._lists):
                self._drop(name, Fate.STOPPED)

    def _drop(self, name: ListName, fate: Fate) -> None:
        _, served = self._lists.pop(name)
        self._bytes -= served.nbytes
        self._metrics.tell(fate)
