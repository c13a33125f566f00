"""Histories in an LMDB folder: reads are plain memory accesses; needs lmdb, the extra `lmdb`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from relaygr.config.settings import StoreConfig
from relaygr.core.errors import BackendError, ConfigError, RelayError
from relaygr.data.stores.gate import Gate
from relaygr.data.stores.group import GroupCommit, Write
from relaygr.data.stores.interface import Appended, EventBatch, HistoryStore, Profile, Source, StoredHistory
from relaygr.data.stores.layout import (
    HEAD_BYTES,
    SCHEMA_VERSION,
    Head,
    Owner,
    check_newest,
    chunk_numbers,
    name_digest,
    pack_profile,
    stored_history,
    unpack_profile,
)
from relaygr.data.stores.plan import AppendCall, Plan, Stored, plan_append

if TYPE_CHECKING:
    from lmdb import Transaction

MAX_READERS = 512
_FORMAT = b"format"
_NUMBER = struct.Struct(">Q")  # big-endian: chunks lie in their order


class _Keys:
    """Where the records of a user lie, by a digest: two names may be longer than an LMDB key."""

    __slots__ = ("profile", "ring", "user")

    def __init__(self, owner: Owner) -> None:
        self.user = name_digest(owner.joined())
        self.ring, self.profile = self.user + b"k", self.user + b"p"

    def chunk(self, number: int) -> bytes:
        return self.user + b"c" + _NUMBER.pack(number)


class LmdbStore(HistoryStore):
    """See `HistoryStore`. A commit writes the data to the disk, and then the page that makes it current.

    `synchronous` "normal" leaves that last page to the operating system: a power cut can undo the newest
    appends. "full" waits for both. LMDB trusts its file: events, keys and profiles have checksums here, but
    damage to its own tree is only found where it looks wrong. A deleted user's bytes stay in free pages
    until they are written over. Another process that writes is waited for without a limit.
    """

    def __init__(self, folder: Path, settings: StoreConfig) -> None:
        """Open or make `folder`, which one process may hold open once.

        Raises:
            ConfigError: lmdb is not installed, no such parent folder, no permission, or a foreign store.
            BackendError: the file is damaged or of another format of LMDB.
        """
        try:
            import lmdb
        except ModuleNotFoundError as error:
            raise ConfigError(
                "store.url", "an lmdb:// store needs lmdb: pip install 'relaygr[lmdb]'"
            ) from error
        self._lmdb_error, self._lmdb_full = lmdb.Error, lmdb.MapFullError
        self._folder, self._settings = folder, settings
        self._name = f"the history store {folder}"
        self._gate = Gate(self._name)
        self._group = GroupCommit(self._transaction)
        _make_folder(folder)
        with self._named_errors():
            self._env = lmdb.Environment(
                os.fspath(folder),
                map_size=settings.map_bytes,
                metasync=settings.synchronous == "full",
                readahead=False,
                max_readers=MAX_READERS,
                max_dbs=3,
                max_spare_txns=16,
            )
            try:
                self._prepare(lmdb.NotFoundError)
            except (lmdb.Error, RelayError):
                self._env.close()
                raise

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
        keys = _Keys(owner)

        def work(txn: Transaction[bytes]) -> tuple[Appended, Write | None]:
            with owner.named(self._name):
                plan = plan_append(call, self._stored(txn, keys, call), self._settings)
            write = (lambda: self._write(txn, owner, keys, plan)) if plan.head is not None else None
            return plan.answer, write

        with self._gate:
            return self._group.run(work)

    def load(self, tenant: str, user: str, newest: int) -> StoredHistory:
        owner, newest = Owner.of(tenant, user), check_newest(newest)
        keys = _Keys(owner)
        with self._gate, owner.named(self._name):
            with self._named_errors(), self._env.begin() as txn:
                head = self._head(txn, keys)
                span = head.span(newest)
                blobs = self._chunks(txn, keys, span)
            return stored_history(head, span, blobs)

    def profile(self, tenant: str, user: str) -> Profile:
        owner = Owner.of(tenant, user)
        with self._gate, owner.named(self._name):
            with self._named_errors(), self._env.begin() as txn:
                blob = txn.get(_Keys(owner).profile, db=self._rows)
            return unpack_profile(blob)

    def set_profile(self, tenant: str, user: str, profile: Profile) -> None:
        owner, slots = Owner.of(tenant, user), pack_profile(profile)
        keys = _Keys(owner)

        def work(txn: Transaction[bytes]) -> tuple[None, Write]:
            new = Head().packed() + owner.joined()

            def write() -> None:
                txn.put(keys.user, new, overwrite=False, db=self._users)
                txn.put(keys.profile, slots, db=self._rows)

            return None, write

        with self._gate:
            self._group.run(work)

    def delete(self, tenant: str, user: str) -> int:
        owner = Owner.of(tenant, user)
        keys = _Keys(owner)

        def work(txn: Transaction[bytes]) -> tuple[int, Write]:
            with owner.named(self._name):
                head = self._head(txn, keys)
            return head.total - head.first, lambda: self._delete(txn, keys)

        with self._gate:
            return self._group.run(work)

    def count(self) -> int:
        with self._gate, self._named_errors(), self._env.begin() as txn:
            return txn.stat(self._users)["entries"]

    def checkpoint(self) -> None:
        with self._gate, self._named_errors():
            self._env.sync(True)

    def describe(self) -> str:
        loses = "nothing" if self._settings.synchronous == "full" else "the newest appends"
        return (
            f"lmdb {self._folder}, synchronous {self._settings.synchronous}: a power cut can lose {loses}, "
            "a killed process nothing"
        )

    def close(self) -> None:
        if self._gate.close():
            self._env.close()

    def _prepare(self, not_found: type[Exception]) -> None:
        # Pages behind the end of a file that was cut off would kill the process; as zeros they are damage
        # that is seen. Pages that were taken and never written may lie there too, and nobody reads those.
        whole_bytes = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if (self._folder / "data.mdb").stat().st_size < whole_bytes:
            os.truncate(self._folder / "data.mdb", whole_bytes)
        self._env.reader_check()  # frees the places of readers that were killed
        foreign = self._env.stat()["entries"] > 0
        try:
            meta = self._env.open_db(b"relaygr", create=False)
        except not_found as error:
            if foreign:
                raise ConfigError("store.url", f"{self._folder} belongs to another application") from error
            meta = self._env.open_db(b"relaygr")
        self._users, self._rows = self._env.open_db(b"users"), self._env.open_db(b"rows")
        with self._env.begin(write=True, db=meta) as txn:
            version = txn.get(_FORMAT)
            if version is None:
                txn.put(_FORMAT, b"%d" % SCHEMA_VERSION)
            elif version != b"%d" % SCHEMA_VERSION:
                shown = version[:32].decode(errors="replace")
                reason = f"{self._folder} has format {shown}, this release reads {SCHEMA_VERSION}"
                raise ConfigError("store.url", reason)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction[bytes]]:
        with self._named_errors(), self._env.begin(write=True) as txn:
            yield txn

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except self._lmdb_full as error:
            limit = self._settings.map_bytes
            raise BackendError(f"{self._name} is full: store.map_bytes is {limit} bytes") from error
        except (self._lmdb_error, OSError) as error:
            raise BackendError(f"{self._name}: {error}") from error

    def _head(self, txn: Transaction[bytes], keys: _Keys) -> Head:
        blob = txn.get(keys.user, db=self._users)
        return Head() if blob is None else Head.unpacked(blob[:HEAD_BYTES])

    def _chunks(self, txn: Transaction[bytes], keys: _Keys, span: range) -> list[bytes | None]:
        return [txn.get(keys.chunk(number), db=self._rows) for number in chunk_numbers(span)]

    def _stored(self, txn: Transaction[bytes], keys: _Keys, call: AppendCall) -> Stored:
        head = self._head(txn, keys)
        ring = txn.get(keys.ring, db=self._rows) if call.reads_ring else None
        return Stored(head, ring, self._chunks(txn, keys, head.span(call.looks_back)))

    def _write(self, txn: Transaction[bytes], owner: Owner, keys: _Keys, plan: Plan) -> None:
        assert plan.head is not None
        txn.put(keys.user, plan.head.packed() + owner.joined(), db=self._users)
        for number, blob in plan.chunks:
            txn.put(keys.chunk(number), blob, db=self._rows)
        for number in plan.dropped:
            txn.delete(keys.chunk(number), db=self._rows)
        if plan.ring is not None:
            txn.put(keys.ring, plan.ring, db=self._rows)

    def _delete(self, txn: Transaction[bytes], keys: _Keys) -> None:
        txn.delete(keys.user, db=self._users)
        with txn.cursor(self._rows) as cursor:
            more = cursor.set_range(keys.user)
            while more and cursor.key().startswith(keys.user):
                more = cursor.delete()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError("store.url", f"{folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError("store.url", f"{folder} cannot be written to")
