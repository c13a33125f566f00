"""The disk tier of an engine: states are written to it and read from it beside the engine, never for ranking.

One thread reads and writes, in the order in which it was told to. The engine's thread copies between host
memory and buffers, part by part, and never waits for that thread.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from relaygr.cache.disk import DiskBooks
from relaygr.cache.disk_entry import Burial
from relaygr.cache.disk_moves import DiskMoves
from relaygr.cache.entry import identity
from relaygr.cache.interface import Refused
from relaygr.cache.tiered import TieredBooks
from relaygr.config.host import HostConfig
from relaygr.core.errors import BackendError
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref
from relaygr.engine.disk_copies import Fetching, Saving
from relaygr.engine.disk_open import Opened
from relaygr.memory.disk import SegmentFiles
from relaygr.memory.disk_forgotten import ForgottenLog
from relaygr.memory.disk_record import Meta, encode, record_bytes
from relaygr.memory.host import HostPool
from relaygr.relay.link import MEASURABLE_BYTES, NEWEST

log = logging.getLogger("relaygr.engine")

_UNWRITTEN = "who was forgotten cannot be written down"
FAILURES_MAX = 3  # writes in a row that the system refused: then the tier is off
FETCHED_BYTES_PER_S = 500e6  # until reads were measured
_SLACK_LINES = 1024  # of who was forgotten, that are not needed any more, before they are removed
_FULL = (errno.ENOSPC, errno.EDQUOT)

Owner = tuple[Tenant, UserId]


class Done(NamedTuple):
    """What became of something that was done to the files.

    Attributes:
        safe: whether a later process finds nobody there who was forgotten.
        lost: segments whose files had to go, and of which the books do not know that.
    """

    safe: bool = True
    lost: tuple[int, ...] = ()


class DiskTier:
    """All methods run where the engine runs, but for `waiting`, `due`, `ready` and what `forget` returns.

    Whatever the system refuses ends a transfer and is counted; after `FAILURES_MAX` writes in a row nothing
    is written any more. Nothing is raised for it.
    """

    def __init__(
        self,
        books: DiskBooks,
        moves: DiskMoves,
        host: HostPool,
        files: SegmentFiles,
        forgotten: ForgottenLog,
        lane: Executor,
        slots: int = 2,
        share: float = 0.15,
    ) -> None:
        """`lane` does one thing after another; `slots` fetches at once; `share` of the host to be safe."""
        self._books, self._moves, self._host = books, moves, host
        self._files, self._forgotten, self._lane = files, forgotten, lane
        self._slots, self._share = slots, share
        self._saving: Saving | None = None
        self._tried = -1  # the changes after which nothing could be written
        self._fetching: dict[Owner, Fetching] = {}
        self._told: list[Future[Done]] = []  # burials and removals that are not done
        self._bytes_per_s = FETCHED_BYTES_PER_S
        self._in_row = 0
        self.saved_bytes = self.fetched_bytes = 0

    @classmethod
    def over(cls, opened: Opened, books: TieredBooks, host: HostPool, config: HostConfig) -> DiskTier:
        """The tier over opened files, below the host tier of `books`, with a thread of its own."""
        moves = books.put_below(opened.books)
        assert moves is not None, "there is no disk tier without a host tier"
        lane = ThreadPoolExecutor(1, "relaygr-disk")
        slots, share = config.reload_slots, config.clean_target
        tier = cls(opened.books, moves, host, opened.files, opened.forgotten, lane, slots, share)
        moves.torn, moves.damaged = opened.torn, opened.damaged
        tier.tell()
        return tier

    @property
    def waiting(self) -> bool:
        """Whether the other thread has something to do without which nothing here goes on."""
        saving = self._saving
        return any(not copy.ready for copy in (*self._fetching.values(), saving) if copy is not None)

    def due(self, now_s: float) -> bool:
        """Whether `step` has something to do now."""
        if self._books.burials or self._books.removed:
            return True
        if any(one.deadline_s < now_s for one in tuple(self._fetching.values())):
            return True
        saving, moves = self._saving, self._moves
        if saving is not None:
            return saving.ready
        return not moves.off and moves.changes != self._tried and moves.short_of(self._share)

    def ready(self, owner: Owner) -> bool:
        """Whether `fetch_step` for this user has something to do now."""
        fetching = self._fetching.get(owner)
        return fetching is None or fetching.ready

    def step(self, budget_bytes: int, now_s: float) -> None:
        """Go on with what is to be written, by about so much."""
        self._end_overdue(now_s)
        self.tell()
        if self._saving is None:
            self._tried = self._moves.changes
            self._saving = self._next_save()
        saving = self._saving
        if saving is None or not saving.ready:
            return
        over = True  # also of what ends in an error that nobody foresaw
        try:
            over = not self._moves.running(saving.plan) or saving.step(budget_bytes)
        finally:
            if over:
                self._saving = None
                self._saved(saving)

    def fetchable(self, ref: Ref, now_s: float, deadline_s: float) -> bool:
        """Whether the disk has more of `ref` than the tiers above, and it can be there in time."""
        entry = self._books.get(identity(ref))
        if entry is None or not self._moves.fetchable(ref) or len(self._fetching) >= self._slots:
            return False
        ahead = sum(one.left_bytes for one in tuple(self._fetching.values()))
        return now_s + (ahead + entry.place.nbytes) / self._bytes_per_s <= deadline_s

    def fetch_step(self, ref: Ref, budget_bytes: int, now_s: float, deadline_s: float) -> bool:
        """Go on with bringing an entry to the host; True when there is nothing left to do, well or not."""
        owner = ref.tenant, ref.user
        self._end_overdue(now_s)
        fetching = self._fetching.get(owner)
        if fetching is None:
            if not self.fetchable(ref, now_s, deadline_s):
                return True
            plan = self._moves.prepare_fetch(ref)
            if isinstance(plan, Refused):
                return True
            fetching = self._fetching[owner] = Fetching(self._files, self._host, plan, self._lane, deadline_s)
        over = True
        try:
            running = self._moves.running(fetching.plan)
            over = not running or (fetching.ready and fetching.step(budget_bytes))
        finally:
            if over:
                self.abandon(owner)
        return over

    def abandon(self, owner: Owner) -> None:
        """End the fetch of a user at whatever stage."""
        fetching = self._fetching.pop(owner, None)
        if fetching is None:
            return
        unreadable = fetching.damaged or fetching.failed is not None
        if self._moves.complete_fetch(fetching.plan, fetching.done, unreadable):
            self.fetched_bytes += fetching.bytes_done
        if fetching.failed is not None:
            self._failed("a state could not be read from disk", fetching.failed)
        if fetching.bytes_done >= MEASURABLE_BYTES and fetching.measured_s > 0:
            speed = fetching.bytes_done / fetching.measured_s
            self._bytes_per_s += NEWEST * (speed - self._bytes_per_s)

    def forget(self, owner: Owner) -> Callable[[], None]:
        """The books have forgotten the user: nothing of theirs is found any more, whatever happens next.

        Returns what waits until that holds for a later process, too, and raises BackendError if it will not.
        It must not be called under a lock that ranking needs.
        """
        self.abandon(owner)
        self.tell()
        told = tuple(self._told)
        return lambda: self._finish(told)

    def _finish(self, told: tuple[Future[Done], ...]) -> None:
        wait(told)
        if not all(one.result().safe for one in told):
            self._turn_off(_UNWRITTEN)
            raise BackendError(f"{_UNWRITTEN}: a later process may find their state in host.disk_path")

    def tell(self) -> None:
        """Have the other thread do to the files what the books have decided."""
        books = self._books
        for one in [one for one in self._told if one.done()]:
            self._told.remove(one)
            done = one.result()
            for number in done.lost:
                books.lose(number)
            if not done.safe:
                self._turn_off(_UNWRITTEN)
        while books.burials:
            burial = books.burials.pop(0)
            self._told.append(self._lane.submit(self._bury, burial))
        removed, books.removed = books.removed, []
        for number in removed:
            self._told.append(self._lane.submit(self._remove, number))
        if not self._told and not self._moves.off and self._forgotten.lines > _SLACK_LINES:
            needed = books.needed()
            if self._forgotten.lines > 2 * len(needed) + _SLACK_LINES:
                self._told.append(self._lane.submit(self._prune, needed))

    def close(self) -> None:
        """Wait for the other thread; the files stay, and what is in them can be found again.

        The books must have let go of the tier before; then no lock is needed.
        """
        self._saving = None
        self._fetching.clear()
        self.tell()
        self._lane.shutdown(wait=True)
        self._files.close()

    def _next_save(self) -> Saving | None:
        if self._moves.off or not self._moves.short_of(self._share):
            return None
        entry = self._moves.next_dirty()
        if entry is None:
            return None
        meta = encode(Meta(entry.ref, entry.layout_id, entry.sums))
        data_bytes = self._host.raw_bytes(entry.tokens)
        plan = self._moves.prepare_save(entry, record_bytes(len(meta), data_bytes))
        self.tell()  # room may have been made: that goes before what is written there
        if isinstance(plan, Refused):
            return None
        return Saving(self._files, self._host, plan, self._lane, meta)

    def _saved(self, saving: Saving) -> None:
        if self._moves.complete_save(saving.plan, saving.done):
            self.saved_bytes += saving.bytes_done
            self._in_row = 0
        if saving.failed is not None:
            self._books.seal()
            if saving.failed.errno in _FULL:
                self._books.shrink()
            self._in_row += 1
            self._failed("a state could not be written to disk", saving.failed)
            if self._in_row >= FAILURES_MAX:
                self._turn_off(str(saving.failed))

    def _failed(self, what: str, error: OSError) -> None:
        self._moves.failures += 1
        level = logging.WARNING if self._moves.failures == 1 else logging.DEBUG
        log.log(level, "%s: %s", what, error)

    def _turn_off(self, reason: str) -> None:
        if not self._moves.off:
            self._moves.off = reason
            log.warning("nothing is written to disk any more: %s", reason)

    def _end_overdue(self, now_s: float) -> None:
        for owner, fetching in tuple(self._fetching.items()):
            if fetching.deadline_s < now_s:
                self.abandon(owner)

    def _bury(self, burial: Burial) -> Done:
        """On the other thread; not safe if the user's records may be found by a later process."""
        try:
            self._forgotten.add(burial.owner, burial.number)
            return Done()
        except OSError as error:
            log.warning("who was forgotten cannot be written down, so their files are removed: %s", error)
        safe = [self._remove(number).safe for number in burial.segments]
        try:
            self._files.sync_folder()
        except OSError as error:
            log.error("files of user states may come back after the end of the machine: %s", error)
            return Done(safe=False, lost=burial.segments)
        return Done(all(safe), burial.segments)

    def _remove(self, number: int) -> Done:
        try:
            self._files.remove(number)
            return Done()
        except OSError as error:
            log.error("a file of user states cannot be removed: %s", error)
            return Done(safe=False)

    def _prune(self, needed: dict[Owner, int]) -> Done:
        try:
            self._files.sync_folder()  # records whose tombstones go must be gone for good
            self._forgotten.rewrite(needed)
        except OSError as error:
            log.warning("the list of who was forgotten cannot be shortened: %s", error)
        return Done()
