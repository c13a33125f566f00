"""What an engine has in files: the disk tier while it is open, the snapshot between two processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.ids import Fingerprint, tenant, user_id
from relaygr.core.state import Ref
from relaygr.engine import snapshot
from relaygr.engine.disk import DiskTier, Owner
from relaygr.engine.disk_open import open_files
from relaygr.engine.tiers import Tiers
from relaygr.memory.disk_folder import DiskFolder

log = logging.getLogger("relaygr.engine")


class Below:
    """Closed until `attach`, and after `detach`; then there is nothing here, and nothing to do.

    Every method may be called from any thread but `forget`, which is called with the engine's lock held. None
    waits for the disk but `attach`, `detach` and what `forget` returns.
    """

    def __init__(
        self,
        tiers: Tiers,
        config: HostConfig,
        model_fp: Fingerprint,
        clock: Clock,
        lock: threading.Lock,
    ) -> None:
        """`lock` is the engine's."""
        self._tiers, self._config, self._model_fp = tiers, config, model_fp
        self._clock, self._lock = clock, lock
        self._folder: DiskFolder | None = None

    def attach(self, fresh: bool = False) -> None:
        """Open what `HostConfig` names; what cannot be opened is left out, and the log says why.

        To be called when this engine is the one that serves, and no other of this process is attached.
        `fresh` uses nothing that is there: users may have been forgotten while nobody looked after it.
        """
        config, tiers, memory = self._config, self._tiers, self._tiers.memory
        if memory is None:
            return
        opened = None
        if config.disk_bytes and tiers.disk is None:
            opened = open_files(config, self._model_fp, tiers.books.layout_id, fresh)
        path = Path(config.snapshot_path)
        if config.snapshot_path and fresh:
            _without(lambda: snapshot.remove(path))
        with self._lock:
            if opened is not None:
                self._folder, tiers.disk = opened.folder, DiskTier.over(opened, tiers.books, memory, config)
            if config.snapshot_path and not fresh:
                snapshot.restore(path, tiers.books, memory, self._model_fp)

    def detach(self, keep: bool) -> None:
        """Close it for good: with `keep` as an orderly end, else so that no file holds a user any more."""
        config, tiers, memory = self._config, self._tiers, self._tiers.memory
        with self._lock:
            if keep and config.snapshot_path and memory is not None:
                tiers.spill_all(self._clock.now_s())
                snapshot.save(Path(config.snapshot_path), tiers.books, memory, self._model_fp)
            disk, folder = tiers.disk, self._folder
            tiers.disk = self._folder = None
            tiers.books.put_below(None)
        if disk is not None and folder is not None:
            disk.close()  # outside of the lock: ranking goes on meanwhile
            if not keep:
                _without(lambda: folder.clear(keep_own=False))
            folder.close()

    def forget(self, owner: Owner) -> Callable[[], None]:
        """The tiers have forgotten the user; what this returns waits until no later process finds them."""
        disk = self._tiers.disk
        if disk is None:
            return _nothing
        finish = disk.forget(owner)

        def wait() -> None:
            try:
                finish()
            finally:
                with self._lock:
                    if self._tiers.disk is disk:
                        disk.tell()  # files may have gone that the books still claim

        return wait

    def fetchable(self, ref: Ref, by_s: float) -> bool:
        """Whether the disk has more of a prefix than the tiers above, and it can be there by then."""
        disk = self._tiers.disk
        return disk is not None and disk.fetchable(ref, self._clock.now_s(), by_s)

    def fetch_step(self, ref: Ref | None, budget_bytes: int, by_s: float) -> bool:
        """Go on with bringing it to host memory; True when there is nothing left to do, well or not."""
        with self._lock:
            disk, now_s = self._tiers.disk, self._clock.now_s()
            return ref is None or disk is None or disk.fetch_step(ref, budget_bytes, now_s, by_s)

    def ready(self, names: tuple[str, str]) -> bool:
        """Whether `fetch_step` for a tenant's user would have something to do now."""
        disk = self._tiers.disk
        return disk is None or disk.ready((tenant(names[0]), user_id(names[1])))

    def save_step(self, budget_bytes: int) -> None:
        """Go on with writing states that leave host memory soon."""
        with self._lock:
            if self._tiers.disk is not None:
                self._tiers.disk.step(budget_bytes, self._clock.now_s())

    @property
    def is_missing(self) -> bool:
        """Whether a disk tier is wanted and none is open."""
        return bool(self._config.disk_bytes) and self._tiers.disk is None

    @property
    def wants_save(self) -> bool:
        """Whether `save_step` has something to do now."""
        disk = self._tiers.disk
        return disk is not None and disk.due(self._clock.now_s())

    @property
    def waiting(self) -> bool:
        """Whether something goes on as soon as the disk has answered."""
        disk = self._tiers.disk
        return disk is not None and disk.waiting

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """From and to disk."""
        disk = self._tiers.disk
        return (disk.fetched_bytes, disk.saved_bytes) if disk is not None else (0, 0)


def _nothing() -> None:
    """There is nothing to wait for."""


def _without(remove: Callable[[], None]) -> None:
    try:
        remove()
    except OSError as error:
        log.error("files of user states cannot be removed: %s", error)
