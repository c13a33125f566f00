"""Users' histories in memory, in front of the store: loaded once, grown by what the store acknowledged.

A history that grows keeps its digests, so that the next prefix or ranking computes only the new tokens.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from relaygr.config.settings import Config, StoreConfig
from relaygr.core.errors import ConfigError, RelayError
from relaygr.data.stores import Appended, EventBatch, HistoryStore, Profile, Source
from relaygr.engine import UserHistory
from relaygr.models.presets import AnyConfig
from relaygr.models.window import anchor, anchor_stride

# 24 bytes of columns and up to two records of 32 bytes in the digest chain.
_EVENT_BYTES = 88
_ENTRY_BYTES = 2048
# No store keeps more of a user.
_ALL_EVENTS = int(StoreConfig.LIMITS["keep_events"].high)

Owner = tuple[str, str]
Result = TypeVar("Result")


class Window(NamedTuple):
    """Most events that a model reads, and by how many its window moves, see `models.window`."""

    events: int
    stride: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How much of a user is read.

    Attributes:
        windows: of each model that reads the user.
        slots: values of a profile.
    """

    windows: tuple[Window, ...]
    slots: int

    @classmethod
    def of(cls, events: int, share: float, slots: int) -> Reading:
        """One model, out of whose window `share` of the events fall when it moves."""
        return cls((Window(events, anchor_stride(events, share)),), slots)

    def and_of(self, events: int, share: float) -> Reading:
        """Read enough for another model as well."""
        return replace(self, windows=(*self.windows, Window(events, anchor_stride(events, share))))

    @property
    def events(self) -> int:
        """Most that are read."""
        return max(window.events for window in self.windows)

    def first(self, total: int) -> int:
        """Sequence number of the first event that is read of so many."""
        return min(anchor(total, *window) for window in self.windows)


class WholeHistory(NamedTuple):
    """What models read of a user, and int64 [n] items of all events that are stored, oldest first."""

    history: UserHistory
    items: npt.NDArray[np.int64]


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


def reading_of(config: Config, shape: AnyConfig, prompt_items: int | None) -> Reading:
    """What is read of histories for a ranker, and for prompts of up to so many items; None for no generator.

    Raises:
        ConfigError: the store keeps fewer events than that.
    """
    events = config.serving.history_events or shape.max_history
    reading = Reading.of(events, config.engine.anchor_stride, len(shape.contextual))
    if prompt_items is not None:
        reading = reading.and_of(prompt_items, config.generator.anchor_stride)
    if config.store.keep_events < reading.events:
        raise ConfigError(
            "store.keep_events",
            f"{config.store.keep_events} is less than the {reading.events} that are read",
        )
    return reading


class Users:
    """Histories by owner, least recently used first out; belongs to one event loop.

    Whatever changes or loads a user takes turns with the others of that user, in order of arrival. So a
    history is never older than the last acknowledged append, and nothing is loaded twice at once.
    """

    def __init__(
        self, store: HistoryStore, threads: ThreadPoolExecutor, limit_bytes: int, reading: Reading
    ) -> None:
        """Calls of the store run on `threads`; a history larger than `limit_bytes` is not kept."""
        self._store, self._threads, self._limit, self._reading = store, threads, limit_bytes, reading
        self._held: OrderedDict[Owner, UserHistory] = OrderedDict()
        self._bytes = self._doubts = 0
        self._turns: dict[Owner, _Turn] = {}
        self._writes: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def read(self, reading: Reading) -> None:
        """Read so much from now on; histories of another reading are loaded again."""
        if reading != self._reading:
            self._reading = reading
            self._held.clear()
            self._bytes = 0

    def distrust(self, owner: Owner | None = None) -> None:
        """Histories, or this one, are loaded again before they are used: others may have added to them.

        What is being loaded now may have been read before that, and is not kept.
        """
        self._doubts += 1
        if owner is not None:
            self._drop(owner)
            return
        self._held.clear()
        self._bytes = 0

    def held(self, owner: Owner) -> UserHistory | None:
        """The user's history if it is in memory."""
        history = self._held.get(owner)
        if history is not None:
            self._held.move_to_end(owner)
        return history

    async def get(self, owner: Owner) -> UserHistory:
        """The user's history; empty for one that nothing is stored of.

        Nothing runs between the end of a load and the caller's next step: a deletion comes before or after.

        Raises:
            RequestError: a name is wrong.
            RelayError: what the store raises.
        """
        history = self.held(owner)
        if history is not None:
            return history
        async with self._turn(owner):
            return await self._loaded(owner)

    async def whole(self, owner: Owner) -> WholeHistory:
        """The user's history as `get` gives it, and the items of all events that are stored, from one moment.

        Events that no model reads are read from the store each time and not kept here. Raises as `get`.
        """
        history = self.held(owner)
        if history is not None and not history.first_sequence:
            return WholeHistory(history, history.items)
        async with self._turn(owner):
            history = await self._loaded(owner)
            if not history.first_sequence:
                return WholeHistory(history, history.items)
            stored = await self._call(lambda: self._store.load(*owner, _ALL_EVENTS))
            return WholeHistory(history, stored.items)

    async def _loaded(self, owner: Owner) -> UserHistory:
        """The history in memory, else from the store; in the user's turn."""
        history = self.held(owner)
        if history is None:
            reading, doubts = self._reading, self._doubts
            history = await self._call(lambda: _load(self._store, owner, reading))
            if (reading, doubts) == (self._reading, self._doubts):
                self._keep(owner, history)
        return history

    async def append(
        self, owner: Owner, events: EventBatch, key: str | None, source: Source | None = None
    ) -> Appended:
        """Store events, then grow the history in memory; both are done when this returns."""

        async def write() -> Appended:
            async with self._turn(owner):
                try:
                    appended = await self._call(
                        lambda: self._store.append(*owner, events, key, source=source)
                    )
                except RelayError:
                    # A broken connection leaves open whether it was stored.
                    self._drop(owner)
                    raise
                self._grow(owner, appended)
                return appended

        return await self._whole(write())

    async def set_profile(self, owner: Owner, profile: Profile) -> None:
        """Store a profile; the history is loaded anew with it."""

        async def write() -> None:
            async with self._turn(owner):
                self._drop(owner)
                await self._call(lambda: self._store.set_profile(*owner, profile))

        await self._whole(write())

    async def delete(self, owner: Owner, purge: Callable[[], Result]) -> tuple[int, Result]:
        """Remove everything stored, then run `purge` on a thread while nobody can load the user again.

        Returns the number of events removed, and what `purge` returned.
        """

        def everything() -> tuple[int, Result]:
            return self._store.delete(*owner), purge()

        async def write() -> tuple[int, Result]:
            async with self._turn(owner):
                self._drop(owner)
                return await self._call(everything)

        return await self._whole(write())

    async def _whole(self, write: Coroutine[Any, Any, Result]) -> Result:
        """Run a write to its end even if the caller goes away: the store's thread would not stop either."""
        task = asyncio.get_running_loop().create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    def _call(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    @asynccontextmanager
    async def _turn(self, owner: Owner) -> AsyncIterator[None]:
        turn = self._turns.setdefault(owner, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[owner]

    def _grow(self, owner: Owner, appended: Appended) -> None:
        history, events = self._held.get(owner), appended.events
        if history is None or not len(events):
            return
        if history.sequence + len(events) != appended.sequence:
            self._drop(owner)
            return
        longer = history.append(events.items, events.timestamps, events.actions)
        first = self._reading.first(longer.sequence)
        self._keep(owner, longer.newest(longer.sequence - first))

    def _keep(self, owner: Owner, history: UserHistory) -> None:
        self._drop(owner)
        self._held[owner] = history
        self._bytes += _size(history)
        while self._bytes > self._limit:
            self._drop(next(iter(self._held)))

    def _drop(self, owner: Owner) -> None:
        history = self._held.pop(owner, None)
        if history is not None:
            self._bytes -= _size(history)


def _size(history: UserHistory) -> int:
    return _ENTRY_BYTES + _EVENT_BYTES * len(history) + 40 * len(history.contextual)


def _load(store: HistoryStore, owner: Owner, reading: Reading) -> UserHistory:
    tenant, user = owner
    stored, profile = store.load(tenant, user, reading.events), store.profile(tenant, user)
    slots = profile.contextual if len(profile.contextual) else np.zeros(reading.slots, np.int64)
    history = UserHistory(
        user,
        stored.items,
        stored.timestamps,
        stored.actions,
        tenant_name=tenant,
        contextual=slots,
        utc_offset_s=profile.utc_offset_s,
        first_sequence=stored.first_sequence,
    )
    return history.newest(stored.total - reading.first(stored.total))
