"""The default back-end: one SQLite file in WAL mode, written by one connection and read by a few."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from relaygr.config.settings import StoreConfig
from relaygr.core.errors import BackendError, ConfigError, OverloadError, RelayError
from relaygr.data.stores.gate import Gate
from relaygr.data.stores.group import GroupCommit, Write
from relaygr.data.stores.interface import Appended, EventBatch, HistoryStore, Profile, Source, StoredHistory
from relaygr.data.stores.layout import (
    SCHEMA_VERSION,
    Owner,
    check_newest,
    pack_profile,
    stored_history,
    unpack_profile,
)
from relaygr.data.stores.plan import AppendCall, plan_append
from relaygr.data.stores.sqlite_tables import (
    APPLICATION_ID,
    TABLES,
    delete_user,
    read_for_append,
    read_history,
    read_profile,
    write_plan,
    write_profile,
)

MAX_IDLE_READERS = 8
# A log that grew during a long read shrinks to this at the next checkpoint.
_LOG_LIMIT_BYTES = 64 << 20


def _place(file: Path) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino


def _only_writer(file: Path) -> IO[bytes]:
    """A lock beside the file, held until it is closed: two services would serve stale histories.

    Raises:
        ConfigError: another process has it, or it cannot be made.
    """
    path = file.with_name(file.name + ".lock")
    try:
        lock = path.open("ab")
    except OSError as error:
        raise ConfigError("store.url", f"{path} cannot be opened for writing: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError("store.url", f"{file} is in use by another process, which holds {path}") from error
    return lock


class SqliteStore(HistoryStore):
    """See `HistoryStore`. `synchronous` says what a failure of the machine can lose, a crash of us nothing:

    "normal" leaves the log to the operating system: a power cut can undo the newest appends, never half of
    one. "full" waits for the disk at every commit; threads that append together share the wait.
    Deleted and dropped events are overwritten with zeros; old copies in the log end with `checkpoint`.
    """

    def __init__(self, file: Path | None, settings: StoreConfig) -> None:
        """Open or make `file`; None keeps everything in memory, for tests.

        Raises:
            ConfigError: no such folder, no permission, another application's file or a newer format.
            BackendError: the file is damaged.
        """
        self._file, self._settings = file, settings
        self._name = "the history store in memory" if file is None else f"the history store {file}"
        self._gate = Gate(self._name)
        self._group = GroupCommit(self._transaction)
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._opened: tuple[int, int] | None = None
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError("store.url", f"{file}: {file.absolute().parent} is not a folder")
        self._lock = None if file is None else _only_writer(file)
        try:
            self._open()
        except RelayError:
            self._unlock()
            raise

    def _open(self) -> None:
        with self._named_errors(opening=True):
            self._writer = self._connect()
            try:
                self._prepare()
                self._opened = None if self._file is None else _place(self._file)
            except (sqlite3.Error, RelayError):
                self._writer.close()
                raise

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def append(
        self,
        tenant: str,
        user: str,
        events: EventBatch,
        key: str | None = None,
        dedupe: bool | None = None,
        source: Source | None = None,
    ) -> Appended:
        owner = Owner.of(tenant, user)
        call = AppendCall.of(events, key, dedupe, source, self._settings)

        def work(writer: sqlite3.Connection) -> tuple[Appended, Write | None]:
            with owner.named(self._name):
                plan = plan_append(call, read_for_append(writer, owner, call), self._settings)
            return plan.answer, (lambda: write_plan(writer, owner, plan)) if plan.head is not None else None

        with self._gate:
            return self._group.run(work)

    def load(self, tenant: str, user: str, newest: int) -> StoredHistory:
        owner, newest = Owner.of(tenant, user), check_newest(newest)
        with self._gate, owner.named(self._name):
            with self._named_errors(), self._reader() as reader:
                head, blobs = read_history(reader, owner, newest)
            return stored_history(head, head.span(newest), blobs)

    def profile(self, tenant: str, user: str) -> Profile:
        owner = Owner.of(tenant, user)
        with self._gate, owner.named(self._name):
            with self._named_errors(), self._reader() as reader:
                blob = read_profile(reader, owner)
            return unpack_profile(blob)

    def set_profile(self, tenant: str, user: str, profile: Profile) -> None:
        owner, slots = Owner.of(tenant, user), pack_profile(profile)

        def work(writer: sqlite3.Connection) -> tuple[None, Write]:
            return None, lambda: write_profile(writer, owner, slots)

        with self._gate:
            self._group.run(work)

    def delete(self, tenant: str, user: str) -> int:
        owner = Owner.of(tenant, user)

        def work(writer: sqlite3.Connection) -> tuple[int, Write | None]:
            row = writer.execute(
                "SELECT id, total - first FROM user WHERE tenant = ? AND name = ?", (owner.tenant, owner.user)
            ).fetchone()
            return (0, None) if row is None else (row[1], lambda: delete_user(writer, row[0]))

        with self._gate:
            return self._group.run(work)

    def count(self) -> int:
        with self._gate, self._named_errors(), self._reader() as reader:
            return int(reader.execute("SELECT COUNT(*) FROM user").fetchone()[0])

    def checkpoint(self) -> None:
        with self._gate, self._group.alone(), self._named_errors():
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def describe(self) -> str:
        if self._file is None:
            return "sqlite in memory: nothing is left when the process ends"
        loses = "nothing" if self._settings.synchronous == "full" else "the newest appends"
        return (
            f"sqlite {self._file}, synchronous {self._settings.synchronous}: a power cut can lose {loses}, "
            "a killed process nothing"
        )

    def close(self) -> None:
        if self._gate.close():
            for connection in [*self._idle, self._writer]:
                connection.close()
            self._unlock()

    def _connect(self) -> sqlite3.Connection:
        # Connections go from thread to thread, one at a time.
        connection = sqlite3.connect(
            ":memory:" if self._file is None else self._file,
            timeout=self._settings.timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    def _prepare(self) -> None:
        writer = self._writer
        version = writer.execute("PRAGMA user_version").fetchone()[0]
        application = writer.execute("PRAGMA application_id").fetchone()[0]
        empty = writer.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
        if not empty and application != APPLICATION_ID:
            raise ConfigError("store.url", f"{self._file} is a database of another application")
        if not empty and version != SCHEMA_VERSION:
            reason = f"{self._file} has format {version}, this release reads {SCHEMA_VERSION}"
            raise ConfigError("store.url", reason)
        mode = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal" and self._file is not None:
            raise ConfigError("store.url", f"{self._file} is where SQLite cannot keep a log (mode {mode})")
        writer.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
        writer.execute("PRAGMA secure_delete = ON")
        writer.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
        with self._transaction():
            # Looked at again inside: another process may have made the tables meanwhile.
            if writer.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0:
                for statement in TABLES.split(";"):
                    writer.execute(statement)
                writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._named_errors():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._check_file()
                self._writer.execute("COMMIT")
            finally:
                # Some errors undo the transaction by themselves; after a commit there is none.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _check_file(self) -> None:
        """BackendError if the file is not where it was: what is written to it would be gone with us."""
        if self._file is None or self._opened is None:
            return
        try:
            now: tuple[int, int] | None = _place(self._file)
        except OSError:
            now = None
        if now != self._opened:
            raise BackendError(f"{self._name} was removed or replaced while it was open; restart the service")

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        if self._file is None:  # a database in memory has one connection
            with self._group.alone():
                yield self._writer
            return
        with self._idle_lock:
            reader = self._idle.pop() if self._idle else None
        reader = reader or self._connect()
        try:
            yield reader
        finally:
            with self._idle_lock:
                kept = len(self._idle) < MAX_IDLE_READERS
                if kept:
                    self._idle.append(reader)
            if not kept:
                reader.close()

    @contextmanager
    def _named_errors(self, *, opening: bool = False) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                waited = self._settings.timeout_ms
                reason = f"{self._name} was locked by another process for {waited} ms"
                raise OverloadError(reason, waited) from error
            if opening and code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise ConfigError(
                    "store.url", f"{self._file} cannot be opened for writing: {error}"
                ) from error
            raise BackendError(f"{self._name}: {error}") from error
