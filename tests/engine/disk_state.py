"""A disk tier with all of its bytes, whose disk can be made to fail, and what must hold whatever it does."""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import torch

from relaygr.cache.digests import DigestChain, longest_match
from relaygr.cache.disk_entry import Owner
from relaygr.cache.host import HostEntry
from relaygr.cache.tiered import TieredBooks
from relaygr.config.host import HostConfig
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref
from relaygr.engine.disk import DiskTier
from relaygr.engine.disk_open import open_files
from relaygr.memory.disk import SegmentFiles
from relaygr.memory.disk_forgotten import COPIES, ForgottenLog
from relaygr.memory.host import HostPool
from relaygr.memory.layout import KvLayout

PAGE, CHUNK, CHUNKS, FAR = 4, 8, 12, 1e9
LAYOUT = KvLayout(2, 2, 3, 2, torch.float32, PAGE)
FP = Fingerprint(bytes(16))
USERS = "abcde"
TENANT = Tenant("t")


def ref(user: str, life: int, version: int, tokens: int) -> Ref:
    """The content of a user in a life, which ends when the user is forgotten."""
    chain = DigestChain(TENANT, FP, 1, UserId(user), 0, PAGE, 8)
    chain.extend(struct.pack("<q", life))
    chain.extend(struct.pack(f"<{tokens - 1}q", *(version * 100 + token for token in range(1, tokens))))
    return chain.ref()


def raw_rows(content: Ref, first: int, rows: int, nbytes: int) -> bytes:
    """The bytes of a page of a state; no two pages have the same."""
    return hashlib.shake_128(bytes(content.records) + bytes((first, rows))).digest(nbytes)


class ManualLane(Executor):
    """Does what it was told when it is told so, in order; what is not done when the process dies is lost."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def pump(self, count: int = 1 << 30) -> None:
        while count and self.jobs:
            future, job = self.jobs.popleft()
            try:
                future.set_result(job())
            except OSError as error:
                future.set_exception(error)
            count -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.pump()


class FaultyFiles(SegmentFiles):
    """Writes that are refused after a part of them, and reads that are."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        super().__init__(folder)
        self._faults = faults

    def write(self, segment: int, offset: int, data: bytes | memoryview) -> None:
        if self._faults.strikes("write"):
            super().write(segment, offset, memoryview(data)[: len(data) // 2])
            raise OSError(28, "no space left")
        super().write(segment, offset, data)

    def read(self, segment: int, offset: int, nbytes: int) -> bytearray:
        if self._faults.strikes("read"):
            raise OSError(5, "input/output error")
        return super().read(segment, offset, nbytes)


class FaultyLog(ForgottenLog):
    """Lines that are refused; a user of whom neither copy has one is counted."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        super().__init__(folder)
        self._faults = faults

    def add(self, owner: Owner, number: int) -> None:
        try:
            super().add(owner, number)
        except OSError:
            self._faults.unwritten += 1
            raise

    def _append(self, path: Path, line: bytes) -> None:
        if self._faults.strikes("log"):
            raise OSError(28, "no space left")
        super()._append(path, line)


class Faults:
    """How many of the next calls fail, by kind; and how many have so far."""

    def __init__(self) -> None:
        self.armed: dict[str, int] = {}
        self.struck = self.unwritten = 0

    def strikes(self, kind: str) -> bool:
        if not self.armed.get(kind):
            return False
        self.armed[kind] -= 1
        self.struck += 1
        return True


class DiskState:
    """One process after the other over the same folder.

    Attributes:
        lives: of each user, the one that may be found.
        whole: nothing was damaged or refused since this process began, so that all that was there must stay.
    """

    def __init__(self, folder: Path, disk_bytes: int = 400_000, index_bytes: int = 1 << 16) -> None:
        self.config = HostConfig(
            host_bytes=1 << 20, run_chunk_tokens=CHUNK, disk_path=str(folder),
            disk_bytes=disk_bytes, disk_index_bytes=index_bytes, clean_target=0.9,
        )  # fmt: skip
        self.faults, self.lives, self.versions = Faults(), dict.fromkeys(USERS, 0), 0
        self.fetched = self.saved = self.opened = 0
        self.open()

    def open(self) -> None:
        opened = open_files(self.config, FP, LAYOUT.layout_id, fresh=False)
        assert opened is not None
        files = FaultyFiles(opened.folder.path, self.faults)
        opened.files.close()
        self.folder, self.lane, self.files = opened.folder, ManualLane(), files
        self.books = TieredBooks(
            4, PAGE, LAYOUT.page_bytes, 1.0, host_bytes=CHUNKS * CHUNK * LAYOUT.token_bytes,
            run_chunk_tokens=CHUNK, layout_id=LAYOUT.layout_id,
        )  # fmt: skip
        self.pool = HostPool(LAYOUT, self.books.host_tokens)
        moves = self.books.put_below(opened.books)
        assert moves is not None
        self.disk, self.moves = opened.books, moves
        moves.torn, moves.damaged = opened.torn, opened.damaged
        log = FaultyLog(opened.folder.path, self.faults)
        self.tier = DiskTier(self.disk, moves, self.pool, files, log, self.lane, share=0.9)
        self.tier.tell()
        self.opened += 1

    def put(self, user: str, tokens: int) -> None:
        """A state comes to the host."""
        host = self.books.host
        assert host is not None
        self.versions += 1
        content = ref(user, self.lives[user], self.versions, tokens)
        runs = host.reserve(tokens)
        if runs is None:
            return
        for row, first, rows in self._pages(host.host_runs(runs, tokens), tokens):
            nbytes = self.pool.raw_bytes(rows)
            self.pool.put_raw(row, rows, bytearray(raw_rows(content, first, rows, nbytes)))
        host.put(HostEntry(content, runs, LAYOUT.layout_id, ()))

    def drop_from_host(self, user: str) -> None:
        host = self.books.host
        assert host is not None
        for key in host.keys_of(TENANT, UserId(user)):
            host.drop(key)

    def step(self, budget: int, pump: int) -> None:
        """A turn of the engine, and so many of the other thread."""
        before = self.moves.saves
        if self.tier.due(0.0):
            self.tier.step(budget, 0.0)
        self.lane.pump(pump)
        self.saved += self.moves.saves - before

    def fetch(self, user: str, budget: int, pump: int) -> None:
        """A turn of the fetch of what the disk has of a user, if it has something that the host has not."""
        before = self.moves.fetches
        for key in self.disk.keys_of(TENANT, UserId(user)):
            entry = self.disk.get(key)
            assert entry is not None
            self.tier.fetch_step(entry.ref, budget, 0.0, FAR)
        self.lane.pump(pump)
        self.fetched += self.moves.fetches - before

    def forget(self, user: str) -> None:
        """Until it is answered."""
        self.books.forget(TENANT, UserId(user))
        finish = self.tier.forget((TENANT, UserId(user)))
        self.lane.pump()
        finish()
        self.lives[user] += 1

    def close(self) -> None:
        """In good order."""
        self.books.put_below(None)
        self.tier.close()
        self.folder.close()

    def kill(self) -> None:
        """The process ends here."""
        self.lane.jobs.clear()
        self.files.close()
        self.folder.close()

    def cut(self, place: int, nbytes: int) -> None:
        """The machine went down, too, and the end of a file had not been written."""
        path = self._segment(place)
        if path is not None:
            size = path.stat().st_size
            with open(path, "r+b") as file:
                file.truncate(max(size - nbytes, 0))
            self.faults.struck += 1

    def flip(self, place: int, at: int, of_log: bool) -> None:
        """A bit of a file is another; of who was forgotten one copy alone."""
        path = self.folder.path / COPIES[0] if of_log else self._segment(place)
        if path is None or not path.exists() or not path.stat().st_size:
            return
        with open(path, "r+b") as file:
            at %= path.stat().st_size
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << at % 8)]))
        self.faults.struck += 1

    def check(self) -> None:
        """What is found is of the life that the user leads, and is what was computed."""
        self.books.audit()
        host = self.books.host
        assert host is not None
        for entry in host.entries():
            content = entry.ref
            self._of_this_life(content)
            for row, first, rows in self._pages(host.host_runs(entry.runs, entry.tokens), entry.tokens):
                nbytes = self.pool.raw_bytes(rows)
                assert self.pool.raw(row, rows) == raw_rows(content, first, rows, nbytes), "other bytes"
        for user in USERS:
            for key in self.disk.keys_of(TENANT, UserId(user)):
                found = self.disk.get(key)
                assert found is not None
                self._of_this_life(found.ref)
        on_file = sum(path.stat().st_size for path in self.folder.path.glob("*.seg"))
        if not self.lane.jobs and not self.disk.removed:
            assert on_file <= self.disk.total_bytes, "more on disk than may be"

    def contents(self) -> dict[str, Ref]:
        """What can be found on disk, by user."""
        found = {}
        for user in USERS:
            for key in self.disk.keys_of(TENANT, UserId(user)):
                entry = self.disk.get(key)
                assert entry is not None
                found[user] = entry.ref
        return found

    def _of_this_life(self, content: Ref) -> None:
        (life,) = struct.unpack_from("<q", content.records)
        assert life == self.lives[content.user], "a user who was forgotten is back"
        again = content._replace(records=memoryview(bytes(content.records)))
        assert longest_match(content, again) == content.tokens

    def _segment(self, place: int) -> Path | None:
        paths = sorted(self.folder.path.glob("*.seg"))
        return paths[place % len(paths)] if paths else None

    @staticmethod
    def _pages(runs: Any, tokens: int) -> list[tuple[int, int, int]]:
        """(row in host memory, first token, rows) of each page."""
        found, first = [], 0
        for run in runs:
            for at in range(0, run.tokens, PAGE):
                rows = min(PAGE, run.tokens - at)
                found.append((run.offset + at, first, rows))
                first += rows
        assert first == tokens
        return found
