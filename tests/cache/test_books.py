"""What the device books promise, one at a time; also with a host tier below that nothing moves to."""

from collections.abc import Callable

import pytest
from cache_content import FP, chain

from relaygr.cache.books import DeviceBooks
from relaygr.cache.interface import LoadPlan, Reason, Refused, StorePlan
from relaygr.cache.lease import PageCopy, ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref, Touch

FAR = 1e9


def ref(tokens: list[int] | range, user: str = "u", model_fp: bytes = FP) -> Ref:
    return chain([list(tokens)], user=user, model_fp=model_fp).ref()


MakeBooks = Callable[..., DeviceBooks]
KINDS = {
    "device": DeviceBooks,
    "tiered, off": TieredBooks,
    "tiered": lambda *args, **sizes: TieredBooks(*args, **sizes, host_bytes=1000, run_chunk_tokens=8),
}


@pytest.fixture(params=KINDS)
def books(request: pytest.FixtureRequest) -> MakeBooks:
    kind = KINDS[request.param]
    return lambda pages=16: kind(pages, page_tokens=4, page_bytes=100, lease_ttl_s=1.0)


def write(cache: DeviceBooks, wanted: Ref) -> WriteLease:
    lease = cache.append(wanted, "writer", 0.0, FAR)
    assert isinstance(lease, WriteLease), lease
    return lease


def store(cache: DeviceBooks, wanted: Ref) -> WriteLease:
    lease = write(cache, wanted)
    assert lease.publish(0.0)
    return lease


def read(cache: DeviceBooks, wanted: Ref, tokens: int) -> ReadLease:
    lease = cache.lease(wanted, tokens, "reader", 0.0, FAR)
    assert isinstance(lease, ReadLease), lease
    return lease


def test_visible_only_after_publish(books: MakeBooks) -> None:
    cache, wanted = books(), ref(range(10))
    lease = write(cache, wanted)
    assert (lease.reused_tokens, lease.fresh, lease.copies) == (0, lease.pages, ())
    assert cache.lookup(wanted) == Miss()
    assert cache.lease(wanted, 1, "r", 0.0, FAR) == Refused(Reason.NOT_RESIDENT)
    assert lease.publish(0.0)
    assert cache.lookup(wanted) == Hit(0, 10, 0, 0, 10)


def test_append_extends_the_partial_page_in_place(books: MakeBooks) -> None:
    cache = books()
    old = store(cache, ref(range(10)))
    lease = write(cache, ref(range(15)))
    assert lease.reused_tokens == 10
    assert lease.pages[:3] == old.pages
    assert lease.fresh == lease.pages[3:] == (old.pages[-1] + 1,)
    assert lease.copies == ()
    assert cache.lookup(ref(range(15))) == Hit(0, 10, 0, 0, 10)
    # a reader that comes while the page is being extended must not count on zeros behind its tokens
    assert not read(cache, ref(range(15)), 10).clean_tail
    assert read(cache, ref(range(15)), 8).clean_tail
    assert lease.publish(0.0)
    assert read(cache, ref(range(15)), 15).clean_tail


def test_partial_page_is_copied_while_a_reader_has_it(books: MakeBooks) -> None:
    cache = books()
    old = store(cache, ref(range(10)))
    reader = read(cache, ref(range(10)), 10)
    assert reader.clean_tail
    lease = write(cache, ref(range(15)))
    assert lease.pages[:2] == old.pages[:2]
    assert lease.copies == (PageCopy(old.pages[2], lease.pages[2], 2),)
    assert lease.fresh == lease.pages[3:]
    assert lease.publish(0.0)
    assert cache.stats().free_pages == 16 - 5
    reader.release()
    assert cache.stats().free_pages == 16 - 4


def test_content_that_departs_inside_a_page_is_copied_and_replaces_the_entry(books: MakeBooks) -> None:
    cache = books()
    old = store(cache, ref(range(12)))
    edited = [*range(6), 99, *range(7, 12)]
    assert cache.lookup(ref(edited)) == Hit(0, 6, 0, 0, 6)
    lease = write(cache, ref(edited))
    assert lease.reused_tokens == 6
    assert lease.pages[0] == old.pages[0]
    assert lease.copies == (PageCopy(old.pages[1], lease.pages[1], 2),)
    assert cache.lookup(ref(range(12))) == Hit(0, 12, 0, 0, 12)
    assert lease.publish(0.0)
    assert cache.lookup(ref(range(12))) == Hit(0, 6, 0, 0, 6)
    assert cache.stats().free_pages == 16 - 3
    cache.audit()


def test_abort_leaves_the_old_version_and_marks_its_tail(books: MakeBooks) -> None:
    cache = books()
    store(cache, ref(range(10)))
    write(cache, ref(range(15))).abort()
    assert cache.lookup(ref(range(15))) == Hit(0, 10, 0, 0, 10)
    with read(cache, ref(range(10)), 10) as reader:
        assert not reader.clean_tail
    again = write(cache, ref(range(15)))
    assert [copy.tokens for copy in again.copies] == [2]
    assert again.publish(0.0)
    assert read(cache, ref(range(15)), 15).clean_tail


def test_leaving_the_block_without_publish_aborts(books: MakeBooks) -> None:
    cache = books()
    with write(cache, ref(range(10))):
        assert cache.stats().pinned_pages == 3
    with write(cache, ref(range(10))) as lease:
        assert lease.publish(0.0)
    assert not lease.publish(0.0)
    lease.abort()
    assert cache.lookup(ref(range(10))) == Hit(0, 10, 0, 0, 10)
    assert (cache.stats().pinned_pages, cache.stats().leases) == (0, 0)


def test_shorter_request_uses_the_prefix_and_keeps_the_longer_entry(books: MakeBooks) -> None:
    cache = books()
    store(cache, ref(range(12)))
    assert cache.lookup(ref(range(5))) == Hit(0, 5, 0, 0, 5)
    assert cache.append(ref(range(5)), "w", 0.0, FAR) == Refused(Reason.ALREADY_STORED)
    assert cache.append(ref(range(12)), "w", 0.0, FAR) == Refused(Reason.ALREADY_STORED)
    assert cache.append(ref([]), "w", 0.0, FAR) == Refused(Reason.ALREADY_STORED)
    lease = read(cache, ref(range(5)), 5)
    assert (len(lease.pages), lease.clean_tail) == (2, False)
    assert cache.lookup(ref(range(12))) == Hit(0, 12, 0, 0, 12)


def test_one_writer_at_a_time(books: MakeBooks) -> None:
    cache = books()
    first = write(cache, ref(range(4)))
    assert cache.append(ref(range(8)), "w", 0.0, FAR) == Refused(Reason.BUSY)
    write(cache, ref(range(8), user="other")).abort()
    first.abort()
    store(cache, ref(range(8)))


def test_evicts_the_shortfall_least_recently_used_first(books: MakeBooks) -> None:
    cache = books(12)
    for user in "abc":
        store(cache, ref(range(16), user=user))
    cache.touch(ref(range(16), user="a"), Touch.HIT)
    cache.lookup(ref(range(16), user="b"))  # no use
    store(cache, ref(range(4), user="d"))
    alive = [user for user in "abcd" if cache.lookup(ref(range(16), user=user)) != Miss()]
    assert alive == ["a", "c", "d"]
    assert cache.stats().evictions == 1
    assert cache.stats().free_pages == 3


def test_never_evicts_a_pinned_entry_or_its_own(books: MakeBooks) -> None:
    cache = books(8)
    store(cache, ref(range(16), user="a"))
    store(cache, ref(range(12), user="b"))
    assert cache.append(ref(range(33), user="c"), "w", 0.0, FAR) == Refused(Reason.TOO_LARGE)
    pinned = read(cache, ref(range(16), user="a"), 1)
    assert cache.stats().pinned_pages == 4
    assert cache.append(ref(range(20), user="c"), "w", 0.0, FAR) == Refused(Reason.PINNED)
    assert cache.lookup(ref(range(12), user="b")) != Miss()
    assert cache.append(ref(range(9, 30), user="b"), "w", 0.0, FAR) == Refused(Reason.PINNED)
    pinned.release()
    store(cache, ref(range(20), user="c"))
    assert cache.lookup(ref(range(12), user="b")) == Hit(0, 12, 0, 0, 12)
    assert dict(cache.stats().refused)[Reason.PINNED] == 2


def test_forget_stops_writes_in_flight_and_returns_leased_pages_at_release(books: MakeBooks) -> None:
    cache = books()
    store(cache, ref(range(8)))
    reader, writer = read(cache, ref(range(8)), 8), write(cache, ref(range(12)))
    assert cache.forget(Tenant("t1"), UserId("u")) == 1
    assert cache.lookup(ref(range(8))) == Miss()
    assert writer.live
    assert writer.cancelled
    assert cache.stats().pinned_pages == 3
    fresh = store(cache, ref(range(4)))  # a later request of the same user may store again
    assert set(fresh.pages).isdisjoint(writer.pages)
    assert not writer.publish(0.0)
    assert cache.stats().pinned_pages == 2
    reader.release()
    assert (cache.stats().free_pages, cache.lookup(ref(range(8)))) == (15, Hit(0, 4, 0, 0, 4))


def test_swap_model_serves_the_new_fingerprint_only(books: MakeBooks) -> None:
    cache, new = books(), Fingerprint(bytes(16))
    store(cache, ref(range(8)))
    writer, reader = write(cache, ref(range(4), user="v")), read(cache, ref(range(8)), 8)
    cache.swap_model(new)
    assert cache.lookup(ref(range(8))) == Miss()
    assert cache.append(ref(range(8)), "w", 0.0, FAR) == Refused(Reason.STALE_MODEL)
    assert cache.lease(ref(range(8)), 1, "r", 0.0, FAR) == Refused(Reason.STALE_MODEL)
    assert not writer.publish(0.0)
    reader.release()
    assert cache.stats().free_pages == 16
    store(cache, ref(range(8), model_fp=new))


def test_sweep_reclaims_overdue_leases(books: MakeBooks) -> None:
    cache = books()
    store(cache, ref(range(8)))
    assert isinstance(cache.lease(ref(range(8)), 8, "r", 0.0, 5.0), ReadLease)
    late = cache.append(ref(range(12)), "w", 0.0, 5.0)
    assert isinstance(late, WriteLease)
    assert cache.sweep(5.9) == 0
    assert cache.sweep(6.0) == 2
    assert not late.live
    assert not late.publish(6.0)
    assert (cache.stats().leases, cache.stats().pinned_pages, cache.stats().overdue) == (0, 0, 2)
    expired = cache.append(ref(range(12)), "w", 0.0, 5.0)
    assert isinstance(expired, WriteLease)
    assert not expired.publish(6.0)
    assert cache.stats().overdue == 3


@pytest.mark.parametrize("kind", [DeviceBooks, TieredBooks])
def test_no_lower_tier(kind: type[DeviceBooks]) -> None:
    cache, wanted = kind(16, page_tokens=4, page_bytes=100, lease_ttl_s=1.0), ref(range(8))
    assert cache.prepare_load(wanted, 4, 0.0, FAR) == Refused(Reason.NO_LOWER_TIER)
    assert cache.prepare_store(wanted, 4, 0.0) == Refused(Reason.NO_LOWER_TIER)
    assert not cache.complete_load(LoadPlan(1, wanted, 0, 4, (), ()), ok=True)
    assert not cache.complete_store(StorePlan(1, wanted, 0, 4, (), ()), ok=False)
    assert cache.stats().host is None
    assert dict(cache.stats().refused)[Reason.NO_LOWER_TIER] == 2


def test_stats_in_bytes(books: MakeBooks) -> None:
    cache = books()
    store(cache, ref(range(8)))
    store(cache, ref(range(4), user="v"))
    read(cache, ref(range(8)), 1)
    stats = cache.stats()
    assert (stats.total_bytes, stats.free_bytes, stats.pinned_bytes, stats.evictable_bytes) == (
        1600, 1300, 200, 100,
    )  # fmt: skip


def test_bad_arguments(books: MakeBooks) -> None:
    for bad in ({"pages": 0}, {"page_tokens": 0}, {"page_bytes": 0}, {"lease_ttl_s": -1.0}):
        with pytest.raises(ValueError):
            DeviceBooks(**{"pages": 1, "page_tokens": 1, "page_bytes": 1, "lease_ttl_s": 0.0} | bad)
    with pytest.raises(ValueError, match="tokens"):
        books().lease(ref(range(4)), 0, "r", 0.0, FAR)
