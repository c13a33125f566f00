"""Places that cannot be opened, damaged stores, locks, servers that are gone: each has a clear error."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import numpy as np
import pytest
import redis
from store_backends import Backend, batch, flipped, numbered

from redis_process import find_redis_server, redis_server
from relaygr.config.settings import StoreConfig
from relaygr.core.errors import BackendError, ConfigError, OverloadError
from relaygr.data.stores import Profile, open_store


def filled(url: str, events: int = 3000) -> None:
    with closing(open_store(url)) as store:
        store.append("t", "u", numbered(0, events), "k")
        store.set_profile("t", "u", Profile(np.array([1, 2])))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "sqlite",
        "sqlite://",
        "sqlite:///",
        "sqlite://file.db",
        "sqlite:///a\0b",
        "lmdb://",
        "lmdb:///",
        "postgres://secret@host/db",
        "SQLITE:///x",
        "sqlite://memory/x",
        "redis:/host",
        "file:///x",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is none of sqlite:///FILE, sqlite://memory") as caught:
        open_store(url)
    assert caught.value.path == "store.url"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("?decode_responses=1", "must have no options"),
        ("/0?socket_timeout=1", "must have no options"),
        ("/0#x", "must have no options"),
        ("/one", "must be the number of a database"),
        ("/0/1", "must be the number of a database"),
    ],
)
def test_other_redis_urls_are_refused_and_show_no_password(rest: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(f"redis://user:secret@127.0.0.1:1{rest}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://host:port", "redis://host:99999", "redis://[::1"])
def test_redis_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: not a URL"):
        open_store(url)


def test_paths_are_relative_with_three_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, place in (
        ("sqlite:///here ?#%20.db", tmp_path / "here ?#%20.db"),
        (f"sqlite:///{tmp_path}/there.db", tmp_path / "there.db"),
        ("lmdb:///folder", tmp_path / "folder" / "data.mdb"),
    ):
        filled(url, 10)
        assert place.is_file()


@pytest.mark.parametrize(("url", "package"), [("lmdb:///x", "lmdb"), ("redis://127.0.0.1:1/0", "redis")])
def test_a_missing_package_is_named_with_its_extra(
    url: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'relaygr\[{package}\]'"):
        open_store(url)


@pytest.mark.parametrize("scheme", ["sqlite", "lmdb"])
def test_a_folder_that_is_missing(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: .*missing"):
        open_store(f"{scheme}:///{tmp_path}/missing/store")
    assert list(tmp_path.iterdir()) == []


def test_places_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"store\.url: .*cannot be made"):
        open_store(f"lmdb:///{tmp_path}/file")
    with pytest.raises(ConfigError, match=r"store\.url: .*cannot be opened"):
        open_store(f"sqlite:///{tmp_path}")


def test_databases_of_other_applications(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE user (id)")
    with pytest.raises(ConfigError, match="is a database of another application"):
        open_store(f"sqlite:///{tmp_path}/other.db")
    with lmdb.open(str(tmp_path / "other")) as env, env.begin(write=True) as txn:
        txn.put(b"mine", b"1")
    with pytest.raises(ConfigError, match="belongs to another application"):
        open_store(f"lmdb:///{tmp_path}/other")


def test_stores_of_another_format(lasting: Backend) -> None:
    filled(lasting.url)
    if lasting.name == "sqlite":
        with closing(sqlite3.connect(lasting.path)) as file:
            file.execute("PRAGMA user_version = 2")
    elif lasting.name == "lmdb":
        with lmdb.open(str(lasting.path), max_dbs=3) as env:
            meta = env.open_db(b"relaygr", create=False)
            with env.begin(write=True, db=meta) as txn:
                txn.put(b"format", b"2")
    else:
        with closing(redis.Redis.from_url(lasting.url)) as client:
            client.set("relaygr:format", "2")
    with pytest.raises(ConfigError, match="has format 2, this release reads 1"):
        lasting.open()


@pytest.mark.parametrize("keep", [0, 100, 5000, 40_000])
@pytest.mark.parametrize("scheme", ["sqlite", "lmdb"])
def test_a_file_that_was_cut_off(scheme: str, keep: int, tmp_path: Path) -> None:
    """It opens empty, as new, or it is damaged: an error, not a crash and not wrong events."""
    url = f"{scheme}:///{tmp_path / 'store'}"
    filled(url)
    file = tmp_path / "store" / "data.mdb" if scheme == "lmdb" else tmp_path / "store"
    with file.open("r+b") as stream:
        stream.truncate(keep)
    if keep == 0:
        with closing(open_store(url)) as store:
            assert store.count() == 0
        return
    with pytest.raises(BackendError, match=str(tmp_path)), closing(open_store(url)) as store:
        store.load("t", "u", 3000)


@pytest.mark.parametrize("scheme", ["sqlite", "lmdb"])
def test_a_file_of_rubbish(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path / 'store'}"
    filled(url)
    file = tmp_path / "store" / "data.mdb" if scheme == "lmdb" else tmp_path / "store"
    rubbish = np.random.default_rng(0).bytes(file.stat().st_size)
    file.write_bytes(rubbish)
    with pytest.raises(BackendError, match=str(tmp_path)):
        open_store(url)
    assert file.read_bytes() == rubbish


@pytest.mark.parametrize("table", ["keys", "profile", "user"])
def test_damaged_records_of_sqlite(table: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store'}"
    filled(url)
    with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as file:
        if table == "user":
            file.execute("UPDATE user SET first = total + 1")
        else:
            column = "ring" if table == "keys" else "slots"
            (blob,) = file.execute(f"SELECT {column} FROM {table}").fetchone()
            file.execute(f"UPDATE {table} SET {column} = ?", (flipped(blob),))
    with closing(open_store(url)) as store:
        read = {"profile": lambda: store.profile("t", "u")}
        with pytest.raises(BackendError, match="'u': damaged record"):
            read.get(table, lambda: store.append("t", "u", numbered(0, 1), "k2"))()


def test_damaged_records_of_redis(empty_redis: str) -> None:
    name = "relaygr:user:t\0u"
    with closing(open_store(empty_redis)) as store, closing(redis.Redis.from_url(empty_redis)) as client:
        for field, bad in (
            ("head", "rubbish"),
            ("head", "5 3 1"),
            ("c3", "x"),
            ("ring", "x"),
            ("profile", "x"),
        ):
            client.flushdb()
            filled(empty_redis, 100)
            client.hset(name, field, bad)
            with pytest.raises(BackendError, match="'u': damaged record"):
                store.profile("t", "u") if field == "profile" else store.append(
                    "t", "u", numbered(0, 1), "k2"
                )
        client.hdel(name, "c1")
        with pytest.raises(BackendError, match="chunk 1 of the events is missing"):
            store.load("t", "u", 100)
        client.delete(name)
        client.set(name, "not a hash")
        with pytest.raises(BackendError, match="WRONGTYPE"):
            store.load("t", "u", 1)


def test_a_lock_of_another_process_is_waited_for_and_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store'}"
    with closing(open_store(url, StoreConfig(timeout_ms=50))) as store:
        store.append("t", "u", numbered(0, 1))
        with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(OverloadError, match="locked by another process for 50 ms") as caught:
                store.append("t", "u", numbered(1, 1))
            assert caught.value.retry_after_ms == 50
            assert store.load("t", "u", 9).total == 1
        assert store.append("t", "u", numbered(1, 1)).sequence == 2


def test_deleted_users_leave_no_bytes_in_a_sqlite_file(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'store'}")) as store:
        store.append("t", "stays", numbered(0, 50))
        for at in range(60):
            store.append("t", "goes-and-is-gone", batch((0x7172737475767778 - at, at, 1)))
        marks = (b"goes-and-is-gone", (0x7172737475767778).to_bytes(8, "little"))
        store.checkpoint()
        before = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert all(mark in before for mark in marks)
        store.delete("t", "goes-and-is-gone")
        store.checkpoint()
        after = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert not any(mark in after for mark in marks)
        assert b"stays" in after


def test_deleted_users_leave_no_key_in_redis(empty_redis: str) -> None:
    with closing(open_store(empty_redis)) as store, closing(redis.Redis.from_url(empty_redis)) as client:
        filled(empty_redis)
        store.delete("t", "u")
        assert client.keys("*") == [b"relaygr:format"]


def test_a_redis_server_that_is_not_there() -> None:
    wanted = r"history store redis://127\.0\.0\.1:1/0 cannot be reached: .*refused"
    with pytest.raises(OverloadError, match=wanted) as caught:
        open_store("redis://user:secret@127.0.0.1:1/0")
    assert "secret" not in str(caught.value)


def test_a_redis_server_that_evicts_histories_is_refused(empty_redis: str) -> None:
    with closing(redis.Redis.from_url(empty_redis)) as client:
        try:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("maxmemory", 1 << 30)
            with pytest.raises(
                ConfigError, match=r"maxmemory-policy allkeys-lru\); histories need noeviction"
            ):
                open_store(empty_redis)
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")


def test_a_redis_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    binary = find_redis_server()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with redis_server(binary, tmp_path) as url:
        store = open_store(url, StoreConfig(timeout_ms=500))
        store.append("t", "u", numbered(0, 40))
    with closing(store):
        for call in (
            lambda: store.append("t", "u", numbered(40, 1)),
            lambda: store.load("t", "u", 1),
            store.count,
        ):
            with pytest.raises(OverloadError, match="history store redis://127") as caught:
                call()
            assert caught.value.retry_after_ms > 0
        port = int(url.rpartition(":")[2].partition("/")[0])
        with redis_server(binary, tmp_path, port):
            assert store.load("t", "u", 40).items.tolist() == list(range(40))
            assert store.append("t", "u", numbered(40, 1)).sequence == 41
