"""One way to keep user states, on an engine of its own; it serves visits and remembers what came of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.bench.cache_report import TierShare
from relaygr.bench.cache_users import Visitors
from relaygr.config.host import HostConfig
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import BackendError
from relaygr.core.ids import Fingerprint
from relaygr.core.units import MIB
from relaygr.engine import Engine, UserHistory
from relaygr.engine.chores import COPY_BYTES
from relaygr.engine.tiers import NO_HOST
from relaygr.kernels.select import Choice
from relaygr.models.ranker import Ranker

Ints = npt.NDArray[np.int64]
_DISK_S, _LOOK_S = 10.0, 2e-4  # what the disk is waited for, and how often it is looked at
_FINGERPRINT = Fingerprint(bytes(16))


@dataclass(frozen=True, slots=True)
class Setup:
    """A name, and what the tiers may take; without any device memory nothing is reused."""

    name: str
    device_bytes: int = 0
    host: HostConfig = NO_HOST

    @property
    def reuses(self) -> bool:
        return self.device_bytes > 0


class Arm:
    """Attributes, one value a visit:

    ms: of the ranking; spill_ms: of copies to the host after it, and from and to disk.
    cached, loaded: history tokens that were reused, and of these what was copied for it.
    """

    def __init__(
        self, setup: Setup, model: Ranker, choice: Choice, visitors: Visitors, max_candidates: int
    ) -> None:
        self.setup = setup
        self.ms: list[float] = []
        self.spill_ms: list[float] = []
        self.cached: list[int] = []
        self.loaded: list[int] = []
        self.logits: npt.NDArray[np.float32] | None = None
        self.furthest = 0.0
        self._visitors = visitors
        config = EngineConfig(
            device_bytes=max(setup.device_bytes, MIB), max_candidates=max(max_candidates, 1)
        )
        self.engine = Engine(model, _FINGERPRINT, choice, config, host=setup.host)
        if not setup.reuses:
            self.engine.stop_reuse()
        self.engine.below.attach(fresh=True)

    def visit(self, place: int) -> None:
        """Serve the next visit, and then do what the scheduler would do when nothing waits.

        Raises:
            BackendError: the engine gave no scores.
        """
        request = self._visitors.request(place)
        signalled = time.perf_counter()
        self._fetch(request.history)
        began = time.perf_counter()
        answer = self.engine.rank(request)
        ranked = time.perf_counter()
        share = self.setup.host.clean_target
        while self.engine.wants_spill(share):
            if not self.engine.spill_step(share, COPY_BYTES, lambda ref: True):
                break
        self._save()
        done = time.perf_counter()
        self.ms.append(1000 * (ranked - began))
        self.spill_ms.append(1000 * (began - signalled + done - ranked))
        self.cached.append(answer.served.tokens_cached)
        self.loaded.append(answer.served.tokens_loaded)
        self.logits = answer.logits

    def _fetch(self, history: UserHistory) -> None:
        """What a signal ahead of the ranking does: bring to host memory what only the disk has."""
        below, ref, by_s = self.engine.below, self.engine.ref(history), time.monotonic() + _DISK_S
        if ref is None or not below.fetchable(ref, by_s):
            return
        while not below.fetch_step(ref, COPY_BYTES, by_s):
            while not below.ready((history.tenant, history.user)) and time.monotonic() < by_s:
                time.sleep(_LOOK_S)

    def _save(self) -> None:
        """Write to disk what may leave host memory soon."""
        below, by_s = self.engine.below, time.monotonic() + _DISK_S
        while (below.wants_save or below.waiting) and time.monotonic() < by_s:
            if below.wants_save:
                below.save_step(COPY_BYTES)
            else:
                time.sleep(_LOOK_S)

    def close(self) -> None:
        """Leave nothing on disk."""
        self.engine.below.detach(keep=False)

    def compare(self, logits: npt.NDArray[np.float32], limit: float | None) -> None:
        """Hold the scores of the last visit against those without reuse.

        Raises:
            BackendError: they differ by more than `limit`.
        """
        assert self.logits is not None, "something was ranked"
        difference = float(np.abs(self.logits - logits).max(initial=0.0))
        self.furthest = max(self.furthest, difference)
        if limit is not None and not difference <= limit:
            raise BackendError(f"{self.setup.name}: scores differ by {difference:.3g}, limit {limit:.3g}")

    @property
    def decisions(self) -> dict[str, int]:
        return dict(self.engine.stats().decisions)

    def tiers(self, length: Ints) -> TierShare:
        """Of visits with so many history tokens."""
        cached, loaded = np.array(self.cached), np.array(self.loaded)
        tokens, visits = max(int(length.sum()), 1), max(len(length), 1)
        return TierShare(
            device_requests=int(np.count_nonzero((cached > 0) & (loaded == 0))) / visits,
            host_requests=int(np.count_nonzero(loaded)) / visits,
            device_tokens=int((cached - loaded).sum()) / tokens,
            host_tokens=int(loaded.sum()) / tokens,
        )

    def spent_ms(self, places: Sequence[int]) -> float:
        """Of these visits, copies to the host included."""
        return sum(self.ms[place] + self.spill_ms[place] for place in places)
