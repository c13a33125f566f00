"""Order of use: right, and neither slow nor growing."""

import random
import time

from cache_content import FP, chain

from relaygr.cache.books import DeviceBooks
from relaygr.cache.entry import Identity
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.recency import Recency
from relaygr.core.ids import Tenant, UserId


def keys(n: int) -> list[Identity]:
    return [Identity(Tenant("t"), UserId(f"u{i}"), FP, 0, 0) for i in range(n)]


def test_against_a_list() -> None:
    rng, users, recency = random.Random(0), keys(8), Recency()
    order: list[Identity] = []
    parked: set[Identity] = set()
    for _ in range(5000):
        key = rng.choice(users)
        kind = rng.choice(["insert", "touch", "park", "pop", "pop", "remove"])
        if kind == "insert" and key not in order:
            order.append(key)
            recency.insert(key)
        elif kind == "touch" and key in order:
            order.append(order.pop(order.index(key)))
            recency.touch(key)
        elif kind == "park" and key in order:
            (recency.unpark if key in parked else recency.park)(key)
            parked ^= {key}
        elif kind == "remove" and key in order:
            order.remove(key)
            parked.discard(key)
            recency.remove(key)
        elif kind == "pop" and rng.random() < 0.5:
            victims = [other for other in order if other not in parked and other != key]
            assert recency.pop_oldest(keep=key) == (victims[0] if victims else None)
            if victims:
                order.remove(victims[0])
        assert len(recency) == len(order)
        assert list(recency.oldest()) == [other for other in order if other not in parked]
        assert all(recency.is_parked(other) == (other in parked) for other in users)


def test_recency_stays_small_and_fast() -> None:
    recency = Recency()
    users = keys(20_000)
    for key in users:
        recency.insert(key)
    start = time.perf_counter()
    for i in range(40_000):
        recency.touch(users[(i * 7919) % len(users)])
    for _ in range(10_000):
        assert recency.pop_oldest() is not None
    assert (time.perf_counter() - start) / 50_000 < 100e-6  # a few us on an idle core
    assert len(recency._heap) <= 2 * len(users) + 64
    assert len(recency) == 10_000


def test_finished_leases_do_not_pile_up() -> None:
    books, ref = DeviceBooks(4, page_tokens=4, page_bytes=1, lease_ttl_s=1.0), chain([[1, 2, 3]]).ref()
    write = books.append(ref, "writer", 0.0, 1e9)
    assert isinstance(write, WriteLease)
    assert write.publish(0.0)
    for _ in range(2000):
        lease = books.lease(ref, 3, "reader", 0.0, 1e9)
        assert isinstance(lease, ReadLease)
        lease.release()
    assert len(books._leases._heap) < 200
