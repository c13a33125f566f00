"""The back-ends that every test of the contract runs on, and ways to damage what they stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import numpy as np
import redis

from relaygr.config.settings import StoreConfig
from relaygr.data.stores import EventBatch, HistoryStore, open_store
from relaygr.data.stores.layout import Owner, name_digest

ROW = tuple[int, int, int]


def batch(*rows: ROW) -> EventBatch:
    """Events of (item, time, actions) rows."""
    return EventBatch(*np.array(rows, np.int64).reshape(-1, 3).T.copy())


def numbered(first: int, count: int) -> EventBatch:
    """Events first, first + 1, ...: item and time say which."""
    items = np.arange(first, first + count)
    return EventBatch(items, items + 1_000_000, np.ones(count, np.int64))


@dataclass
class Backend:
    """One place that can be opened again and again."""

    name: str
    url: str
    opened: list[HistoryStore] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return Path(self.url.partition(":///")[2])

    def open(self, **settings: object) -> HistoryStore:
        store = open_store(self.url, StoreConfig(**settings))
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()
        self.opened.clear()

    def damage_chunk(self, tenant: str, user: str, number: int) -> None:
        """Flip a bit in a stored chunk, behind the back of the store, which must be closed."""
        if self.name == "sqlite":
            _damage_sqlite(self.path, tenant, user, number)
        elif self.name == "lmdb":
            _damage_lmdb(self.path, tenant, user, number)
        else:
            _damage_redis(self.url, tenant, user, number)


def flipped(blob: bytes) -> bytes:
    return blob[:-1] + bytes([blob[-1] ^ 64])


def _damage_sqlite(file: Path, tenant: str, user: str, number: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        where = "user = (SELECT id FROM user WHERE tenant = ? AND name = ?) AND number = ?"
        names = (tenant, user, number)
        (blob,) = connection.execute(f"SELECT events FROM chunk WHERE {where}", names).fetchone()
        connection.execute(f"UPDATE chunk SET events = ? WHERE {where}", (flipped(blob), *names))


def _damage_lmdb(folder: Path, tenant: str, user: str, number: int) -> None:
    with lmdb.open(str(folder), max_dbs=3, map_size=1 << 30) as env:
        rows = env.open_db(b"rows", create=False)
        key = name_digest(Owner(tenant, user).joined()) + b"c" + number.to_bytes(8, "big")
        with env.begin(write=True, db=rows) as txn:
            blob = txn.get(key)
            assert blob is not None
            txn.put(key, flipped(blob))


def _damage_redis(url: str, tenant: str, user: str, number: int) -> None:
    with closing(redis.Redis.from_url(url)) as client:
        name = b"relaygr:user:" + Owner(tenant, user).joined()
        blob = client.hget(name, f"c{number}")
        assert isinstance(blob, bytes)
        client.hset(name, f"c{number}", flipped(blob))
