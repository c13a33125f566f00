"""Histories on a Redis server, one hash a user; needs redis, the extra `redis`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from relaygr.config.settings import StoreConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.data.redis_url import named_errors, place_of
from relaygr.data.stores.gate import Gate
from relaygr.data.stores.interface import Appended, EventBatch, HistoryStore, Profile, Source, StoredHistory
from relaygr.data.stores.layout import (
    CHUNK_EVENTS,
    SCHEMA_VERSION,
    Head,
    Owner,
    check_newest,
    pack_profile,
    stored_history,
    unpack_profile,
)
from relaygr.data.stores.plan import AppendCall, Plan, Stored, plan_append

USERS = b"relaygr:users"
FORMAT = b"relaygr:format"
_USER = b"relaygr:user:"
_LOCKS = 64
_RETRY_MS = 1000.0
_MAX_TRIES = 16

# A user's hash has the fields head ("first total newest_s"), ring, profile and c<number> for chunks.
# KEYS: hash. ARGV: events wanted. Answers head, ring and the chunks of those events.
_READ = f"""
local head = redis.call('HGET', KEYS[1], 'head')
local out = {{head, redis.call('HGET', KEYS[1], 'ring')}}
if not head then return out end
local first, total = string.match(head, '^(%d+) (%d+) %d+$')
if not total then return out end
local from = math.max(tonumber(first), tonumber(total) - tonumber(ARGV[1]))
if from >= tonumber(total) then return out end
for number = math.floor(from / {CHUNK_EVENTS}), math.floor((total - 1) / {CHUNK_EVENTS}) do
  out[#out + 1] = redis.call('HGET', KEYS[1], string.format('c%d', number))
end
return out
"""
# KEYS: hash, set of users. ARGV: head that was read, its successor, member of the set, ring or '', first and
# last number to drop, then number and chunk in turn. Answers 0, and does nothing, if the head is another.
_WRITE = """
if (redis.call('HGET', KEYS[1], 'head') or '') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'head', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'ring', ARGV[4]) end
for number = tonumber(ARGV[5]), tonumber(ARGV[6]) do
  redis.call('HDEL', KEYS[1], string.format('c%d', number))
end
for at = 7, #ARGV, 2 do redis.call('HSET', KEYS[1], 'c' .. ARGV[at], ARGV[at + 1]) end
return 1
"""
# KEYS: hash, set of users. ARGV: member of the set. Answers the head that was there.
_DELETE = """
local head = redis.call('HGET', KEYS[1], 'head')
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('UNLINK', KEYS[1])
return head
"""


class RedisStore(HistoryStore):
    """See `HistoryStore`. Each write is one script or MULTI, so the server does all of it or nothing.

    Acknowledged is what the server has taken. What a crash of the server loses is up to its files:
    `appendonly yes` with `appendfsync always` nothing, with `everysec` about a second, without it
    everything since the last snapshot; deleted bytes stay in them until the server rewrites them. A server
    that may evict keys is refused. Nothing is sent twice: where the connection breaks during a write, it may
    or may not have been done, and a repeat with the same key settles it.
    """

    def __init__(self, url: str, settings: StoreConfig) -> None:
        """Connect to `redis://` or `rediss://` (TLS); the path is the number of the database.

        Raises:
            ConfigError: redis is not installed, a bad URL, a server that evicts keys, or another format.
            OverloadError: the server cannot be reached.
            BackendError: it refuses us.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ModuleNotFoundError as error:
            raise ConfigError(
                "store.url", "a redis:// store needs redis: pip install 'relaygr[redis]'"
            ) from error
        place = place_of(url, "store.url")
        self._name, self._settings = f"the history store {place}", settings
        self._redis_error, self._no_script = redis.RedisError, redis.exceptions.NoScriptError
        self._unreachable = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
        self._gate = Gate(self._name)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        wait_s = settings.timeout_ms / 1000
        try:
            self._client = redis.Redis.from_url(
                url,
                socket_timeout=wait_s,
                socket_connect_timeout=wait_s,
                health_check_interval=30,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise ConfigError("store.url", f"{place}: {error}") from error
        self._call: Callable[..., Any] = self._client.execute_command
        with self._named_errors():
            self._survives = self._check_server(place)

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
        with self._gate, self._lock(owner), owner.named(self._name):
            for _ in range(_MAX_TRIES):
                found, stored = self._read(owner, call.looks_back)
                plan = plan_append(call, stored, self._settings)
                if plan.head is None or self._write(owner, found, plan):
                    return plan.answer
            raise BackendError(f"{_MAX_TRIES} times another process wrote to this user first")

    def load(self, tenant: str, user: str, newest: int) -> StoredHistory:
        owner, newest = Owner.of(tenant, user), check_newest(newest)
        with self._gate, owner.named(self._name):
            _, stored = self._read(owner, newest)
            return stored_history(stored.head, stored.head.span(newest), stored.blobs)

    def profile(self, tenant: str, user: str) -> Profile:
        owner = Owner.of(tenant, user)
        with self._gate, owner.named(self._name):
            with self._named_errors():
                blob = self._call("HGET", _hash(owner), b"profile")
            return unpack_profile(blob)

    def set_profile(self, tenant: str, user: str, profile: Profile) -> None:
        owner, slots = Owner.of(tenant, user), pack_profile(profile)
        with self._gate, self._named_errors(), self._client.pipeline(transaction=True) as both:
            both.hset(_hash(owner), "profile", slots)
            both.sadd(USERS, owner.joined())
            both.execute()

    def delete(self, tenant: str, user: str) -> int:
        owner = Owner.of(tenant, user)
        # Behind the lock, so that no append of ours puts back a user that it read before.
        with self._gate, self._lock(owner), owner.named(self._name):
            with self._named_errors():
                found = self._script(_DELETE, [_hash(owner), USERS], [owner.joined()])
            head = _head(found)
            return head.total - head.first

    def count(self) -> int:
        with self._gate, self._named_errors():
            return int(self._call("SCARD", USERS))

    def checkpoint(self) -> None:
        """Nothing: the server keeps its files as it is set up to."""
        with self._gate:
            return

    def describe(self) -> str:
        return f"redis, {self._name.removeprefix('the history store ')}: {self._survives}"

    def close(self) -> None:
        if self._gate.close():
            self._client.close()

    def _lock(self, owner: Owner) -> threading.Lock:
        return self._locks[hash(owner) % _LOCKS]

    def _check_server(self, place: str) -> str:
        info = self._client.info()
        policy = info.get("maxmemory_policy", "noeviction")
        if info.get("maxmemory", 0) and policy.startswith("allkeys"):
            reason = f"{place} evicts any key (maxmemory-policy {policy}); histories need noeviction"
            raise ConfigError("store.url", reason)
        wanted = b"%d" % SCHEMA_VERSION
        self._call("SET", FORMAT, wanted, "NX")
        version = self._call("GET", FORMAT)
        if version != wanted:
            shown = bytes(version)[:32].decode(errors="replace")
            raise ConfigError("store.url", f"{place} has format {shown}, this release reads {SCHEMA_VERSION}")
        if info.get("aof_enabled", 0):
            return "append-only file on: a crash of the server loses what appendfsync allows"
        return "append-only file off: a crash of the server loses what came after its last snapshot"

    def _read(self, owner: Owner, newest: int) -> tuple[bytes, Stored]:
        """The head as it lies on the server, and what was found with it, from one moment."""
        with self._named_errors():
            found, ring, *blobs = self._script(_READ, [_hash(owner)], [newest])
        return found or b"", Stored(_head(found), ring, blobs)

    def _write(self, owner: Owner, found: bytes, plan: Plan) -> bool:
        head = plan.head
        assert head is not None
        arguments: list[bytes | int] = [
            found,
            b"%d %d %d" % (head.first, head.total, head.newest_s),
            owner.joined(),
            plan.ring or b"",
            plan.dropped.start,
            plan.dropped.stop - 1,
        ]
        for number, blob in plan.chunks:
            arguments += [number, blob]
        with self._named_errors():
            return bool(self._script(_WRITE, [_hash(owner), USERS], arguments))

    def _script(self, script: str, keys: Sequence[bytes], arguments: Sequence[bytes | int]) -> Any:
        name = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return self._call("EVALSHA", name, len(keys), *keys, *arguments)
        except self._no_script:
            return self._call("EVAL", script, len(keys), *keys, *arguments)

    def _named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self._name, self._unreachable, self._redis_error)


def _hash(owner: Owner) -> bytes:
    return _USER + owner.joined()


def _head(found: bytes | None) -> Head:
    if found is None:
        return Head()
    try:
        first, total, newest_s = map(int, found.split(b" "))
    except ValueError as error:
        raise BackendError(f"damaged record: the head is {found[:64]!r}") from error
    return Head(first, total, newest_s)
