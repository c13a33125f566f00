"""Who came back for a state that had just left the device."""

from cache_content import FP, chain
from test_tiered import FAR, begin_load, begin_store, books, publish, ref

from relaygr.cache.books import MARGIN, DeviceBooks
from relaygr.cache.entry import identity
from relaygr.cache.lease import WriteLease
from relaygr.cache.margin import Margin, Missed
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Touch

A, B, C = (identity(chain([[1]], user=user).ref()) for user in "abc")


def test_the_last_to_leave_are_remembered_by_their_bytes() -> None:
    margin = Margin(100)
    for key, nbytes in ((A, 60), (B, 40), (C, 30)):
        margin.left(key, nbytes, 7)
    assert len(margin) == 2
    for key in (A, B, C):
        margin.visited(key, Touch.APPEND)
    assert margin.take() == [Missed(7, False), Missed(7, False)]
    assert margin.take() == []
    margin.left(A, 101, 7)
    assert len(margin) == 0


def test_a_visit_counts_once_and_a_hit_not_at_all() -> None:
    margin = Margin(100)
    margin.left(A, 10, 5)
    margin.visited(A, Touch.LOAD)
    margin.visited(A, Touch.APPEND)
    assert margin.take() == [Missed(5, True)]
    margin.left(A, 10, 5)
    margin.visited(A, Touch.HIT)
    margin.visited(A, Touch.APPEND)
    assert margin.take() == []


def test_forgetting_and_swapping() -> None:
    cache = DeviceBooks(2 * MARGIN, 4, 10, 1.0)
    for number in range(MARGIN + 1):
        lease = cache.append(chain([[1] * 8], user=f"u{number}").ref(), "w", 0.0, FAR)
        assert isinstance(lease, WriteLease)
        assert lease.publish(0.0)
    assert len(cache.margin) == 1
    cache.forget(Tenant("t1"), UserId("u0"))
    assert len(cache.margin) == 0
    cache.margin.left(A, 10, 4)
    cache.swap_model(Fingerprint(FP[::-1]))
    assert len(cache.margin) == 0


def test_what_moved_to_the_host_left_the_device_as_well() -> None:
    cache = books(pages=4 * MARGIN)
    publish(cache, ref(range(16)))
    assert cache.complete_store(begin_store(cache, ref(range(16))), ok=True)
    assert cache.complete_load(begin_load(cache, ref(range(16))), ok=True)
    cache.touch(ref(range(16)), Touch.LOAD)
    assert cache.margin.take() == [Missed(16, True)]
