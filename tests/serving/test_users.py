"""Histories in memory: never older than what was acknowledged, loaded once, bounded."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from relaygr.core.errors import BackendError
from relaygr.data.stores import Appended, EventBatch, HistoryStore, Profile, Source, StoredHistory, open_store
from relaygr.serving.users import Reading, Users

OWNER = ("t", "u")
READING = Reading.of(64, 0.25, 0)


def batch(*items: int, time_s: int = 100) -> EventBatch:
    count = len(items)
    return EventBatch(np.array(items), np.full(count, time_s), np.ones(count, np.int64))


class Slow:
    """A store that counts loads, and waits or fails where a test wants it to."""

    def __init__(self) -> None:
        self.inner: HistoryStore = open_store("sqlite://memory")
        self.loads = 0
        self.gate = threading.Event()
        self.gate.set()
        self.fail = False

    def load(self, tenant: str, user: str, newest: int) -> StoredHistory:
        self.loads += 1
        found = self.inner.load(tenant, user, newest)
        assert self.gate.wait(10)
        return found

    def append(
        self, tenant: str, user: str, events: EventBatch, key: str | None = None, source: Source | None = None
    ) -> Appended:
        done = self.inner.append(tenant, user, events, key, source=source)
        assert self.gate.wait(10)
        if self.fail:
            raise BackendError("the connection broke")
        return done

    def profile(self, tenant: str, user: str) -> Profile:
        return self.inner.profile(tenant, user)

    def set_profile(self, tenant: str, user: str, profile: Profile) -> None:
        self.inner.set_profile(tenant, user, profile)

    def delete(self, tenant: str, user: str) -> int:
        return self.inner.delete(tenant, user)


def with_users(
    test: Callable[[Users, Slow], Coroutine[Any, Any, None]], limit: int = 1 << 20, reading: Reading = READING
) -> None:
    store = Slow()

    async def run() -> None:
        with ThreadPoolExecutor(4) as threads:
            users = Users(store, threads, limit, reading)  # type: ignore[arg-type]
            await test(users, store)
            assert not users._turns
            assert not users._writes

    asyncio.run(run())
    store.inner.close()


def test_many_who_want_a_user_load_it_once() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(1, 2), None)
        store.gate.clear()
        waiting = [asyncio.create_task(users.get(OWNER)) for _ in range(5)]
        await asyncio.sleep(0.02)
        store.gate.set()
        found = await asyncio.gather(*waiting)
        assert store.loads == 1
        assert all(one is found[0] for one in found)

    with_users(test)


def test_an_append_that_is_cancelled_still_reaches_the_history() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(1), None)
        await users.get(OWNER)
        store.gate.clear()
        appending = asyncio.create_task(users.append(OWNER, batch(2), None))
        await asyncio.sleep(0.02)
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        store.gate.set()
        while users._turns:
            await asyncio.sleep(0.005)
        assert (await users.get(OWNER)).items.tolist() == [1, 2]

    with_users(test)


def test_after_a_failed_append_the_store_is_asked() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(1), None)
        await users.get(OWNER)
        store.fail = True
        with pytest.raises(BackendError):
            await users.append(OWNER, batch(2), None)
        store.fail = False
        assert (await users.get(OWNER)).items.tolist() == [1, 2]
        assert store.loads == 2

    with_users(test)


def test_a_history_grows_by_what_was_new_of_a_source() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(1, 2), None, Source("s", (1, 2)))
        await users.get(OWNER)
        await users.append(OWNER, batch(2, 3), None, Source("s", (2, 3)))
        await users.append(OWNER, batch(1, 2, 3), None, Source("s", (1, 2, 3)))
        assert (await users.get(OWNER)).items.tolist() == [1, 2, 3]
        assert store.loads == 1

    with_users(test)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    async def test(users: Users, store: Slow) -> None:
        for number in range(20):
            await users.get(("t", f"u{number}"))
            assert users.held_bytes <= 5 * 2048
        assert len(users) == 5
        await users.get(("t", "u15"))
        await users.get(("t", "new"))
        assert users.held(("t", "u15")) is not None
        assert users.held(("t", "u16")) is None

    with_users(test, limit=5 * 2048)


def test_a_history_too_large_to_keep_is_still_given() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(*range(50)), None)
        assert len(await users.get(OWNER)) == 50
        assert len(users) == 0
        assert users.held_bytes == 0

    with_users(test, limit=3000)


def test_a_reload_that_reads_more_drops_shorter_histories() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(*range(100)), None)
        assert len(await users.get(OWNER)) == 36
        users.read(Reading.of(128, 0.25, 0))
        assert len(await users.get(OWNER)) == 100

    with_users(test)


def test_nobody_loads_a_user_while_it_is_deleted() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(1), None)
        await users.get(OWNER)
        entered, leave = threading.Event(), threading.Event()

        def purge() -> int:
            entered.set()
            assert leave.wait(10)
            return 7

        deleting = asyncio.create_task(users.delete(OWNER, purge))
        while not entered.is_set():
            await asyncio.sleep(0.002)
        getting = asyncio.create_task(users.get(OWNER))
        await asyncio.sleep(0.02)
        assert not getting.done()
        leave.set()
        assert await deleting == (1, 7)
        assert len(await getting) == 0

    with_users(test)


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_agree_with_the_store(seed: int) -> None:
    """Tasks append, read, delete and set profiles at once; afterwards memory and store say the same."""

    async def test(users: Users, store: Slow) -> None:
        owners = [("t", "a"), ("t", "b"), ("s", "a")]
        chance = random.Random(seed)
        clock = 10

        async def life() -> None:
            nonlocal clock
            for _ in range(40):
                owner, what = chance.choice(owners), chance.random()
                if what < 0.5:
                    clock += 1
                    items = [chance.randrange(99) for _ in range(chance.randrange(1, 12))]
                    events = batch(*items, time_s=clock - chance.randrange(3))
                    done = await users.append(owner, events, f"k{clock}")
                    held = users.held(owner)
                    assert held is None or held.sequence >= done.sequence
                elif what < 0.9:
                    await users.get(owner)
                elif what < 0.95:
                    await users.set_profile(owner, Profile(np.zeros(0, np.int64), chance.randrange(100)))
                else:
                    await users.delete(owner, lambda: None)

        await asyncio.gather(*(life() for _ in range(4)))
        for owner in owners:
            held = await users.get(owner)
            fresh = Users(store, users._threads, 0, READING)  # type: ignore[arg-type]
            stored = await fresh.get(owner)
            assert held.items.tolist() == stored.items.tolist()
            assert held.timestamps.tolist() == stored.timestamps.tolist()
            assert (held.first_sequence, held.utc_offset_s) == (stored.first_sequence, stored.utc_offset_s)

    with_users(test, limit=8000)


def test_the_whole_history_is_of_one_moment_and_not_kept() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(*range(50)), None)
        short = await users.whole(OWNER)
        assert short.items is short.history.items
        assert store.loads == 1
        assert (await users.whole(OWNER)).history is short.history
        assert store.loads == 1
        await users.append(OWNER, batch(*range(50, 200)), None)
        whole = await users.whole(OWNER)
        assert whole.items.tolist() == list(range(200))
        assert 0 < len(whole.history) <= 64
        assert whole.history.sequence == 200
        assert whole.history is users.held(OWNER)
        before = users.held_bytes
        # The store is asked again, and what comes meanwhile waits.
        store.gate.clear()
        reading = asyncio.create_task(users.whole(OWNER))
        deleting = asyncio.create_task(users.delete(OWNER, lambda: "purged"))
        appending = asyncio.create_task(users.append(OWNER, batch(7), None))
        while OWNER not in users._turns or users._turns[OWNER].waiting < 3:
            await asyncio.sleep(0)
        store.gate.set()
        found, gone, _ = await asyncio.gather(reading, deleting, appending)
        assert found.items.tolist() == list(range(200))
        assert found.history is whole.history
        assert gone == (200, "purged")
        assert users.held_bytes < before
        after = await users.whole(OWNER)
        assert (after.items.tolist(), after.history.sequence) == ([7], 1)

    with_users(test)
