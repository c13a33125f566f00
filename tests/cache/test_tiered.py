"""What the books promise of two tiers, one promise at a time."""

import pytest
from cache_content import FP, chain

from relaygr.cache.host import HostBooks
from relaygr.cache.interface import HostRun, HostStats, LoadPlan, PageSum, Reason, Refused, StorePlan
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref, Touch

FAR = 1e9
PAGE_BYTES, CHUNK = 100, 8


def ref(tokens: list[int] | range, user: str = "u", model_fp: bytes = FP) -> Ref:
    return chain([list(tokens)], user=user, model_fp=model_fp).ref()


def books(
    pages: int = 16, chunks: int = 10, layout_id: str = "kv", kind: type[TieredBooks] = TieredBooks
) -> TieredBooks:
    return kind(
        pages, 4, PAGE_BYTES, 1.0, host_bytes=chunks * 200, run_chunk_tokens=CHUNK, layout_id=layout_id
    )


def publish(cache: TieredBooks, wanted: Ref) -> None:
    lease = cache.append(wanted, "writer", 0.0, FAR)
    assert isinstance(lease, WriteLease), lease
    assert lease.publish(0.0)


def begin_store(cache: TieredBooks, wanted: Ref) -> StorePlan:
    plan = cache.prepare_store(wanted, wanted.tokens, 0.0)
    assert isinstance(plan, StorePlan), plan
    return plan


def begin_load(cache: TieredBooks, wanted: Ref, tokens: int | None = None, deadline: float = FAR) -> LoadPlan:
    plan = cache.prepare_load(wanted, tokens or wanted.tokens, 0.0, deadline)
    assert isinstance(plan, LoadPlan), plan
    return plan


def stored(cache: TieredBooks, wanted: Ref) -> None:
    """`wanted` in the host tier, and not on the device."""
    publish(cache, wanted)
    assert cache.complete_store(begin_store(cache, wanted), ok=True)


def host(cache: TieredBooks) -> HostStats:
    stats = cache.stats().host
    assert stats is not None
    assert stats.free_chunks + stats.pinned_chunks + stats.evictable_chunks == stats.total_chunks
    cache.audit()
    return stats


def read(cache: TieredBooks, wanted: Ref, tokens: int) -> ReadLease:
    lease = cache.lease(wanted, tokens, "reader", 0.0, FAR)
    assert isinstance(lease, ReadLease), lease
    return lease


def test_a_store_moves_the_whole_entry_and_a_load_brings_it_back() -> None:
    cache, wanted = books(), ref(range(18))
    publish(cache, wanted)
    plan = begin_store(cache, wanted)
    assert (plan.start, plan.tokens, len(plan.pages)) == (0, 18, 5)
    assert plan.runs == (HostRun(0, 18, 0),)
    assert cache.lookup(wanted) == Hit(0, 18, 0, 0, 18)  # visible in the host only when complete
    assert (cache.stats().pinned_pages, host(cache).pinned_chunks) == (5, 3)
    assert cache.running(plan)
    assert cache.complete_store(plan, ok=True, sums=(PageSum(1, 7),))
    assert not cache.running(plan)
    assert cache.lookup(wanted) == Hit(0, 0, 18, 0, 18)
    assert (cache.stats().free_pages, host(cache).evictable_chunks, host(cache).stores) == (16, 3, 1)
    load = begin_load(cache, wanted)
    assert (load.start, load.tokens, load.runs) == (0, 18, (HostRun(0, 18, 0),))
    assert (load.copies, load.sums, len(load.pages)) == ((), (PageSum(1, 7),), 5)
    assert cache.lookup(wanted) == Hit(0, 0, 18, 0, 18)
    assert (cache.stats().pinned_pages, host(cache).pinned_chunks) == (5, 3)
    assert cache.complete_load(load, ok=True)
    assert cache.lookup(wanted) == Hit(0, 18, 0, 0, 18)
    assert (cache.stats().evictable_pages, host(cache).free_chunks, host(cache).loads) == (5, 10, 1)
    assert read(cache, wanted, 18).clean_tail


def test_complete_is_idempotent() -> None:
    cache, wanted = books(), ref(range(10))
    publish(cache, wanted)
    plan = begin_store(cache, wanted)
    assert cache.complete_store(plan, ok=True)
    assert not cache.complete_store(plan, ok=True)
    load = begin_load(cache, wanted)
    assert cache.complete_load(load, ok=True)
    assert not cache.complete_load(load, ok=False)
    assert cache.lookup(wanted) == Hit(0, 10, 0, 0, 10)
    assert host(cache).moving == 0


@pytest.mark.parametrize("damaged", [False, True])
def test_m16_a_failed_load_is_never_a_hit(damaged: bool) -> None:
    cache, wanted = books(), ref(range(10))
    stored(cache, wanted)
    assert not cache.complete_load(begin_load(cache, wanted), ok=False, damaged=damaged)
    assert cache.lookup(wanted) == (Miss() if damaged else Hit(0, 0, 10, 0, 10))
    assert (cache.stats().free_pages, host(cache).damaged) == (16, int(damaged))
    assert host(cache).free_chunks == (10 if damaged else 8)


def test_m16_damaged_bytes_are_never_published_even_if_the_mover_says_ok() -> None:
    cache, wanted = books(), ref(range(10))
    stored(cache, wanted)
    assert not cache.complete_load(begin_load(cache, wanted), ok=True, damaged=True)
    assert cache.lookup(wanted) == Miss()


def test_m16_a_failed_store_leaves_the_device_entry() -> None:
    cache, wanted = books(), ref(range(10))
    publish(cache, wanted)
    assert not cache.complete_store(begin_store(cache, wanted), ok=False)
    assert cache.lookup(wanted) == Hit(0, 10, 0, 0, 10)
    assert (host(cache).free_chunks, cache.stats().evictable_pages) == (10, 3)


@pytest.mark.parametrize("here", [0, 9])
def test_a_load_with_room_for_the_whole_publishes_what_others_wrote_behind_it(here: int) -> None:
    cache, wanted = books(), ref(range(33))
    stored(cache, ref(range(20)))
    if here:
        publish(cache, ref(range(here)))
    plan = cache.prepare_load(wanted, 20, 0.0, FAR, whole=True)
    assert isinstance(plan, LoadPlan)
    assert (plan.ref, plan.start, plan.tokens, len(plan.pages)) == (wanted, here, 20 - here, 9)
    assert cache.append(wanted, "other", 0.0, FAR) == Refused(Reason.BUSY)
    assert cache.lookup(wanted) == Hit(0, here, 20, 0, 20)
    assert cache.complete_load(plan, ok=True)
    assert cache.lookup(wanted) == Hit(0, 33, 0, 0, 33)
    assert (host(cache).free_chunks, cache.stats().free_pages) == (10, 7)


def test_a_load_with_room_for_the_whole_that_fails_leaves_both_tiers_as_they_were() -> None:
    cache, wanted = books(), ref(range(33))
    stored(cache, ref(range(20)))
    publish(cache, ref(range(9)))
    plan = cache.prepare_load(wanted, 20, 0.0, FAR, whole=True)
    assert isinstance(plan, LoadPlan)
    assert not cache.complete_load(plan, ok=False)
    assert cache.lookup(wanted) == Hit(0, 9, 20, 0, 20)
    assert (cache.stats().free_pages, host(cache).pinned_chunks) == (13, 0)
    assert cache.prepare_load(wanted, 9, 0.0, FAR, whole=True) == Refused(Reason.ALREADY_STORED)
    assert cache.prepare_load(ref(range(100)), 20, 0.0, FAR, whole=True) == Refused(Reason.TOO_LARGE)
    assert cache.lookup(wanted) == Hit(0, 9, 20, 0, 20)


def test_only_what_the_device_lacks_is_loaded() -> None:
    cache = books()
    stored(cache, ref(range(30)))
    publish(cache, ref(range(10)))
    assert cache.lookup(ref(range(40))) == Hit(0, 10, 30, 0, 30)
    plan = begin_load(cache, ref(range(40)), 30)
    assert (plan.start, plan.tokens, plan.ref.tokens, len(plan.pages)) == (10, 20, 30, 8)
    assert cache.complete_load(plan, ok=True)
    assert cache.lookup(ref(range(40))) == Hit(0, 30, 0, 0, 30)
    assert host(cache).free_chunks == 10


def test_a_partial_page_that_is_read_meanwhile_is_copied() -> None:
    cache = books()
    stored(cache, ref(range(30)))
    publish(cache, ref(range(10)))
    reader = read(cache, ref(range(10)), 10)
    plan = begin_load(cache, ref(range(30)))
    assert [(copy.src, copy.dst, copy.tokens) for copy in plan.copies] == [
        (reader.pages[2], plan.pages[2], 2)
    ]
    assert plan.start == 10
    assert cache.complete_load(plan, ok=True)


def test_m10_a_shorter_request_loads_its_part_and_keeps_the_longer_entry() -> None:
    cache = books()
    stored(cache, ref(range(30)))
    plan = begin_load(cache, ref(range(6)))
    assert (plan.tokens, plan.runs, len(plan.pages)) == (6, (HostRun(0, 30, 0),), 2)
    assert cache.complete_load(plan, ok=True)
    assert cache.lookup(ref(range(6))) == Hit(0, 6, 6, 0, 6)
    assert cache.lookup(ref(range(30))) == Hit(0, 6, 30, 0, 30)
    assert cache.prepare_load(ref(range(6)), 6, 0.0, FAR) == Refused(Reason.ALREADY_STORED)


def test_m3_content_that_departs_is_loaded_up_to_the_change_and_then_the_old_one_is_gone() -> None:
    cache = books()
    stored(cache, ref(range(20)))
    edited = ref([*range(10), 99, *range(11, 20)])
    assert cache.lookup(edited) == Hit(0, 0, 10, 0, 10)
    assert cache.prepare_load(edited, 11, 0.0, FAR) == Refused(Reason.NOT_RESIDENT)
    assert cache.complete_load(begin_load(cache, edited, 10), ok=True)
    publish(cache, edited)
    assert cache.lookup(edited) == Hit(0, 20, 0, 0, 20)
    assert cache.lookup(ref(range(20))) == Hit(0, 10, 0, 0, 10)
    assert host(cache).free_chunks == 10


def test_what_is_computed_on_the_device_makes_the_host_copy_unneeded() -> None:
    cache = books()
    stored(cache, ref(range(20)))
    publish(cache, ref(range(12)))  # a shorter head: the host still has more
    assert cache.lookup(ref(range(20))) == Hit(0, 12, 20, 0, 20)
    publish(cache, ref(range(20)))
    assert cache.lookup(ref(range(20))) == Hit(0, 20, 0, 0, 20)
    stored(cache, ref(range(20), user="v"))
    publish(cache, ref([7, *range(1, 20)], user="v"))
    assert cache.lookup(ref(range(20), user="v")) == Miss()
    assert host(cache).free_chunks == 10


def test_an_entry_leased_meanwhile_stays_on_the_device_and_is_in_the_host_too() -> None:
    cache, wanted = books(), ref(range(10))
    publish(cache, wanted)
    plan = begin_store(cache, wanted)
    with read(cache, wanted, 10):
        assert cache.complete_store(plan, ok=True)
        assert cache.lookup(wanted) == Hit(0, 10, 10, 0, 10)
        assert cache.stats().pinned_pages == 3
    assert cache.prepare_store(wanted, 10, 0.0) == Refused(Reason.ALREADY_STORED)
    assert cache.spill_candidates(16) == []  # it may go at any time and nothing would be lost
    publish(cache, ref(range(64), user="v"))
    assert cache.lookup(wanted) == Hit(0, 0, 10, 0, 10)
    assert host(cache).lost_tokens == 0


def test_an_entry_that_grew_meanwhile_stays_and_its_store_is_dropped() -> None:
    cache = books()
    publish(cache, ref(range(10)))
    plan = begin_store(cache, ref(range(10)))
    publish(cache, ref(range(14)))
    assert not cache.complete_store(plan, ok=True)
    assert cache.lookup(ref(range(14))) == Hit(0, 14, 0, 0, 14)
    assert (host(cache).free_chunks, host(cache).superseded, cache.stats().pinned_pages) == (10, 1, 0)


def test_one_transfer_of_an_identity_at_a_time_and_none_beside_a_writer() -> None:
    cache, wanted = books(), ref(range(10))
    stored(cache, wanted)
    plan = begin_load(cache, wanted)
    for refused in (
        cache.prepare_load(wanted, 10, 0.0, FAR),
        cache.prepare_store(wanted, 10, 0.0),
        cache.append(ref(range(20)), "w", 0.0, FAR),
    ):
        assert refused == Refused(Reason.BUSY)
    begin_store_of_other = ref(range(4), user="v")
    publish(cache, begin_store_of_other)
    begin_store(cache, begin_store_of_other)
    assert cache.complete_load(plan, ok=True)
    store = begin_store(cache, wanted)
    assert cache.prepare_store(wanted, 10, 0.0) == Refused(Reason.BUSY)
    cache.complete_store(store, ok=False)
    writer = cache.append(ref(range(20)), "w", 0.0, FAR)
    assert cache.prepare_store(wanted, 10, 0.0) == Refused(Reason.BUSY)
    assert isinstance(writer, WriteLease)
    writer.abort()


def test_refusals_change_nothing() -> None:
    cache = books(pages=8, chunks=3)
    publish(cache, ref(range(10)))
    before = (cache.stats().free_pages, host(cache).free_chunks)
    assert cache.prepare_load(ref(range(10)), 10, 0.0, FAR) == Refused(Reason.NOT_RESIDENT)
    assert cache.prepare_store(ref(range(10)), 11, 0.0) == Refused(Reason.NOT_RESIDENT)
    assert cache.prepare_store(ref(range(10), user="x"), 1, 0.0) == Refused(Reason.NOT_RESIDENT)
    publish(cache, ref(range(32), user="w"))
    assert cache.prepare_store(ref(range(32), user="w"), 32, 0.0) == Refused(Reason.TOO_LARGE)
    for bad in (cache.prepare_load, cache.prepare_store):
        with pytest.raises(ValueError, match="tokens"):
            bad(ref(range(4)), 0, 0.0, *([FAR] if bad == cache.prepare_load else []))
    assert (before, host(cache).free_chunks, cache.stats().leases) == ((5, 3), 3, 0)


def test_a_load_evicts_the_shortfall_and_no_leased_entry() -> None:
    cache = books(pages=8)
    stored(cache, ref(range(20)))
    for user in "abcd":
        publish(cache, ref(range(8), user=user))
    lease = read(cache, ref(range(8), user="a"), 1)
    plan = begin_load(cache, ref(range(20)))
    alive = [user for user in "abcd" if cache.lookup(ref(range(8), user=user)) != Miss()]
    assert alive == ["a"]
    assert host(cache).lost_tokens == 24
    assert cache.prepare_store(ref(range(8), user="a"), 8, 0.0) != Refused(Reason.BUSY)
    cache.complete_load(plan, ok=False)
    lease.release()
    for user in "ab":
        publish(cache, ref(range(16), user=user))
    held = [read(cache, ref(range(16), user=user), 16) for user in "ab"]
    assert cache.prepare_load(ref(range(20)), 20, 0.0, FAR) == Refused(Reason.PINNED)
    assert len(held) == 2


def test_a_store_evicts_the_shortfall_of_the_host_least_recently_used_first() -> None:
    cache = books(chunks=6)
    for user in "abc":
        stored(cache, ref(range(16), user=user))
    cache.touch(ref(range(16), user="a"), Touch.HIT)
    stored(cache, ref(range(4), user="d"))
    alive = [user for user in "abcd" if cache.lookup(ref(range(16), user=user)) != Miss()]
    assert alive == ["a", "c", "d"]
    assert host(cache).evictions == 1


def test_m20_a_touch_refreshes_both_tiers() -> None:
    cache = books(chunks=4)
    stored(cache, ref(range(16), user="a"))
    publish(cache, ref(range(4), user="a"))
    stored(cache, ref(range(16), user="b"))
    cache.touch(ref(range(4), user="a"), Touch.HIT)
    stored(cache, ref(range(4), user="c"))
    assert cache.lookup(ref(range(16), user="a")) == Hit(0, 4, 16, 0, 16)
    assert cache.lookup(ref(range(16), user="b")) == Miss()


def test_a_host_entry_that_is_read_is_not_evicted() -> None:
    cache = books(chunks=4)
    stored(cache, ref(range(32), user="a"))
    plan = begin_load(cache, ref(range(32), user="a"))
    publish(cache, ref(range(4), user="b"))
    assert cache.prepare_store(ref(range(4), user="b"), 4, 0.0) == Refused(Reason.PINNED)
    assert cache.complete_load(plan, ok=True)
    assert isinstance(cache.prepare_store(ref(range(4), user="b"), 4, 0.0), StorePlan)


def test_m8_forget_during_a_load() -> None:
    cache, wanted = books(), ref(range(10))
    stored(cache, wanted)
    plan = begin_load(cache, wanted)
    assert cache.forget(Tenant("t1"), UserId("u")) == 1
    assert cache.lookup(wanted) == Miss()
    assert not cache.running(plan)
    assert (host(cache).entries, host(cache).pinned_chunks, cache.stats().pinned_pages) == (0, 2, 3)
    publish(cache, wanted)  # a later request may write and store again, on other pages and chunks
    other = begin_store(cache, wanted)
    assert set(other.pages).isdisjoint(plan.pages)
    assert other.runs[0].offset != plan.runs[0].offset
    assert not cache.complete_load(plan, ok=True)
    assert cache.complete_store(other, ok=True)
    assert cache.lookup(wanted) == Hit(0, 0, 10, 0, 10)
    assert (cache.stats().free_pages, host(cache).free_chunks) == (16, 8)


def test_m8_forget_during_a_store() -> None:
    cache, wanted = books(), ref(range(10))
    publish(cache, wanted)
    plan = begin_store(cache, wanted)
    assert cache.forget(Tenant("t1"), UserId("u")) == 1
    assert not cache.running(plan)
    publish(cache, wanted)
    assert not cache.complete_store(plan, ok=True)
    assert cache.lookup(wanted) == Hit(0, 10, 0, 0, 10)
    assert (cache.stats().free_pages, host(cache).free_chunks) == (13, 10)


def test_forget_counts_an_identity_once() -> None:
    cache = books()
    stored(cache, ref(range(10)))
    publish(cache, ref(range(4)))
    stored(cache, ref(range(10), user="v"))
    assert cache.forget(Tenant("t1"), UserId("u")) == 1
    assert cache.forget(Tenant("t1"), UserId("v")) == 1
    assert cache.forget(Tenant("t1"), UserId("v")) == 0


def test_m7_swap_during_transfers() -> None:
    cache, new = books(), Fingerprint(bytes(16))
    stored(cache, ref(range(10)))
    publish(cache, ref(range(10), user="v"))
    load, store = begin_load(cache, ref(range(10))), begin_store(cache, ref(range(10), user="v"))
    cache.swap_model(new)
    assert not cache.running(load)
    assert not cache.running(store)
    assert not cache.complete_load(load, ok=True)
    assert not cache.complete_store(store, ok=True)
    assert cache.prepare_load(ref(range(10)), 10, 0.0, FAR) == Refused(Reason.STALE_MODEL)
    assert cache.prepare_store(ref(range(10)), 10, 0.0) == Refused(Reason.STALE_MODEL)
    assert (cache.stats().free_pages, host(cache).free_chunks) == (16, 10)
    stored(cache, ref(range(10), model_fp=new))


def test_m19_overdue_transfers_are_swept_and_hold_nothing() -> None:
    cache = books()
    stored(cache, ref(range(10)))
    publish(cache, ref(range(10), user="v"))
    load = begin_load(cache, ref(range(10)), deadline=5.0)
    store = begin_store(cache, ref(range(10), user="v"))
    assert cache.sweep(1.9) == 0
    assert cache.sweep(2.0) == 1  # a second for a store, and the grace of every lease
    assert not cache.running(store)
    assert cache.running(load)
    assert cache.sweep(6.0) == 1
    assert not cache.complete_load(load, ok=True)
    assert not cache.complete_store(store, ok=True)
    assert (cache.stats().pinned_pages, host(cache).pinned_chunks, host(cache).moving) == (0, 0, 0)
    assert cache.lookup(ref(range(10))) == Hit(0, 0, 10, 0, 10)
    assert cache.lookup(ref(range(10), user="v")) == Hit(0, 10, 0, 0, 10)


def test_spill_candidates_are_the_least_recently_used_that_make_up_the_target() -> None:
    cache = books(pages=16)
    for user, tokens in (("a", 8), ("b", 12), ("c", 4), ("d", 8)):
        publish(cache, ref(range(tokens), user=user))
    cache.touch(ref(range(8), user="a"), Touch.HIT)
    held = read(cache, ref(range(4), user="c"), 4)
    assert cache.stats().free_pages == 8
    assert cache.spill_candidates(8) == []
    assert [one.user for one in cache.spill_candidates(9)] == ["b"]
    assert [one.user for one in cache.spill_candidates(12)] == ["b", "d"]
    assert [one.user for one in cache.spill_candidates(99)] == ["b", "d", "a"]
    begin_store(cache, ref(range(12), user="b"))  # what is on its way counts
    assert [one.user for one in cache.spill_candidates(11)] == []
    assert [one.user for one in cache.spill_candidates(12)] == ["d"]
    held.release()
    assert TieredBooks(4, 4, PAGE_BYTES, 1.0).spill_candidates(99) == []


def test_an_entry_of_another_layout_is_a_miss() -> None:
    tier = HostBooks(4, CHUNK, "kv")
    cache, wanted = books(), ref(range(10))
    stored(cache, wanted)
    assert cache._host is not None
    assert cache._host.match(wanted) == 10
    cache._host.layout_id = tier.layout_id = "another"
    assert cache.lookup(wanted) == Miss()
    assert cache.prepare_load(wanted, 10, 0.0, FAR) == Refused(Reason.NOT_RESIDENT)


def test_r18_entries_are_local() -> None:
    here, there, wanted = books(), books(), ref(range(10))
    stored(here, wanted)
    assert there.lookup(wanted) == Miss()
    assert there.prepare_load(wanted, 10, 0.0, FAR) == Refused(Reason.NOT_RESIDENT)


def test_m38_chunks_go_by_the_bytes_of_the_host() -> None:
    room = {"host_bytes": 4000, "run_chunk_tokens": CHUNK}
    same, half = (TieredBooks(64, 4, PAGE_BYTES, 1.0, host_token_bytes=nbytes, **room) for nbytes in (0, 12))
    assert (host(same).chunk_bytes, host(same).total_chunks, same.host_tokens) == (200, 20, 160)
    assert (host(half).chunk_bytes, host(half).total_chunks, half.host_tokens) == (96, 41, 328)
    for cache, users in ((same, 9), (half, 19)):
        for number in range(40):
            stored(cache, ref(range(16), user=f"u{number}"))
        assert host(cache).entries == users
    with pytest.raises(ValueError, match="host_token_bytes"):
        TieredBooks(64, 4, PAGE_BYTES, 1.0, host_token_bytes=-1, **room)


def rounded(cache: TieredBooks, wanted: Ref, tokens: int) -> int:
    lease = read(cache, wanted, tokens)
    lease.release()
    return lease.rounded_tokens


@pytest.mark.parametrize("rounds", [False, True])
def test_what_came_back_rounded_is_known_as_long_as_it_is_used(rounds: bool) -> None:
    cache = TieredBooks(32, 4, PAGE_BYTES, 1.0, host_bytes=2000, run_chunk_tokens=CHUNK, host_rounds=rounds)
    publish(cache, ref(range(10)))
    assert rounded(cache, ref(range(10)), 10) == 0
    assert cache.complete_store(begin_store(cache, ref(range(10))), ok=True)
    assert cache.complete_load(begin_load(cache, ref(range(10))), ok=True)
    assert rounded(cache, ref(range(10)), 10) == 10 * rounds
    assert rounded(cache, ref(range(10)), 6) == 6 * rounds
    writer = cache.append(ref(range(17)), "w", 0.0, FAR)  # the newer tokens are computed, on rounded ones
    assert isinstance(writer, WriteLease)
    assert writer.rounded_tokens == 10 * rounds
    assert writer.publish(0.0)
    assert rounded(cache, ref(range(17)), 17) == 10 * rounds
    edited = ref([*range(5), 99])
    publish(cache, edited)
    assert rounded(cache, edited, 6) == 5 * rounds
    publish(cache, ref([7, 8]))  # nothing of it is left
    assert rounded(cache, ref([7, 8]), 2) == 0


def test_a_failed_load_leaves_no_mark() -> None:
    cache = TieredBooks(32, 4, PAGE_BYTES, 1.0, host_bytes=2000, run_chunk_tokens=CHUNK, host_rounds=True)
    stored(cache, ref(range(10)))
    publish(cache, ref(range(4)))
    assert not cache.complete_load(begin_load(cache, ref(range(10))), ok=False)
    assert rounded(cache, ref(range(4)), 4) == 0


def test_sizes() -> None:
    assert books(chunks=10).host_tokens == 80
    assert TieredBooks(4, 4, PAGE_BYTES, 1.0).host_tokens == 0
    with pytest.raises(ValueError, match="run_chunk_tokens"):
        TieredBooks(4, 4, PAGE_BYTES, 1.0, run_chunk_tokens=6)
    with pytest.raises(ValueError, match="host_bytes"):
        TieredBooks(4, 4, PAGE_BYTES, 1.0, host_bytes=199, run_chunk_tokens=8)
