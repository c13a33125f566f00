"""What the executor does when nothing else waits: spills to host memory and disk, scoring hits uncached."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from relaygr.config.host import HostConfig
from relaygr.core.state import Ref
from relaygr.engine.engine import Engine
from relaygr.engine.jobs import ChunkTokens, RankJob, guarded
from relaygr.engine.requests import RankResult
from relaygr.engine.shadow import Shadow, Shadows

_SHADOWS_MAX = 4  # that wait; more would only be old when they are scored
_LOOK_S = 0.002
COPY_BYTES = 2 << 20  # of one turn: a fraction of a millisecond

Owner = tuple[str, str]


class Chores:
    """Work of the lowest priority, in turns no longer than a step of a pre-inference; bounded.

    `forget` may be called from any thread, everything else is called by the executor.
    """

    def __init__(
        self, host: HostConfig, shadows: Shadows, worth: Callable[[Ref], bool], chunk: ChunkTokens
    ) -> None:
        """`worth` tells whether a state is worth a place in host memory."""
        self._host, self._shadows, self._worth, self._chunk = host, shadows, worth, chunk
        self._waiting: deque[Shadow] = deque()
        self._lock = threading.Lock()  # around changes of what waits
        self._nothing_to_spill = False

    def ranked(self, job: RankJob, result: RankResult, engine: Engine) -> None:
        """A ranking is over; some of those that used the cache are scored again."""
        served = result.served
        # Rounded in host memory it differs by the drift of the format, which says nothing about the cache.
        comparable = served.tokens_cached and not served.tokens_quantized and not job.truncated
        if comparable and len(self._waiting) < _SHADOWS_MAX:
            shadow = self._shadows.pick(job.request, result, engine)
            if shadow is not None:
                with self._lock:
                    self._waiting.append(shadow)

    def worked(self) -> None:
        """The device may hold more than before."""
        self._nothing_to_spill = False

    def due(self, engine: Engine) -> bool:
        """Whether there is anything to do."""
        return self._spills(engine) or bool(self._waiting) or engine.below.wants_save

    def idle_s(self, engine: Engine, limit_s: float | None) -> float | None:
        """How long to wait for work, at most; None for ever. Whether the disk has answered is looked at."""
        if not engine.below.waiting:
            return limit_s
        return _LOOK_S if limit_s is None else min(_LOOK_S, limit_s)

    def step(self, engine: Engine) -> None:
        """A part of what is due; errors are logged and end what caused them."""
        if self._spills(engine):
            did = guarded(
                "a spill", partial(engine.spill_step, self._host.clean_target, COPY_BYTES, self._worth)
            )
            self._nothing_to_spill = did is not True
            return
        shadow = next(iter(tuple(self._waiting)), None)
        if shadow is None:
            guarded("writing to disk", partial(engine.below.save_step, COPY_BYTES))
            return
        same = shadow.engine is engine
        done = guarded("shadow scoring", partial(shadow.step, self._chunk)) if same else None
        if done is False:
            return
        self._keep(lambda one: one is not shadow)
        if done is True:
            self._shadows.compare(shadow)

    def forget(self, owner: Owner) -> None:
        """Nothing of this user is scored any more."""
        self._keep(lambda one: one.owner != owner)

    def _keep(self, wanted: Callable[[Shadow], bool]) -> None:
        with self._lock:
            self._waiting = deque(one for one in self._waiting if wanted(one))

    def _spills(self, engine: Engine) -> bool:
        return not self._nothing_to_spill and engine.wants_spill(self._host.clean_target)
