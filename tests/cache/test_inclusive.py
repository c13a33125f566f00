"""What the books promise of a device that host memory backs, one promise at a time."""

import pytest
from test_tiered import begin_load, begin_store, books, host, publish, read, ref

from relaygr.cache.inclusive import InclusiveBooks
from relaygr.cache.interface import HostRun, PageSum, Reason, Refused
from relaygr.core.state import Hit, Miss, Touch

PAGE = 4


def inclusive(pages: int = 16, chunks: int = 10) -> InclusiveBooks:
    cache = books(pages, chunks, kind=InclusiveBooks)
    assert isinstance(cache, InclusiveBooks)
    return cache


def back(cache: InclusiveBooks, tokens: int, user: str = "u") -> None:
    """`tokens` tokens of the user on the device, and what is stored of them in the host, too."""
    wanted = ref(range(tokens), user)
    publish(cache, wanted)
    assert cache.complete_store(begin_store(cache, wanted), ok=True)


def test_what_is_stored_stays_on_the_device() -> None:
    cache = inclusive()
    back(cache, 16)
    assert cache.lookup(ref(range(16))) == Hit(0, 16, 16, 0, 16)
    assert (host(cache).evictable_chunks, cache.stats().evictable_pages) == (2, 4)
    assert cache.prepare_store(ref(range(16)), 16, 0.0) == Refused(Reason.ALREADY_STORED)


def test_m18_only_new_whole_pages_move() -> None:
    cache = inclusive()
    publish(cache, ref(range(18)))
    first = begin_store(cache, ref(range(18)))
    assert (first.start, first.tokens, len(first.pages)) == (0, 16, 4)
    assert first.runs == (HostRun(0, 16, 0),)
    assert cache.complete_store(first, ok=True, sums=(PageSum(0, 5), PageSum(3, 6)))
    publish(cache, ref(range(27)))
    second = begin_store(cache, ref(range(27)))
    assert (second.start, second.tokens) == (16, 8)
    assert second.runs == (HostRun(0, 24, 0),), "the run before is extended in place"
    assert cache.complete_store(second, ok=True, sums=(PageSum(5, 7),))
    assert cache.lookup(ref(range(27))) == Hit(0, 27, 24, 0, 27)
    assert cache.prepare_store(ref(range(27)), 27, 0.0) == Refused(Reason.ALREADY_STORED)
    cache._index.drop(next(iter(cache._index._entries)))  # evicted
    load = begin_load(cache, ref(range(27)), 24)
    assert load.sums == (PageSum(0, 5), PageSum(3, 6), PageSum(5, 7))
    assert cache.complete_load(load, ok=True)
    assert host(cache).entries == 1, "a load leaves the host's copy where it is"


def test_fewer_tokens_than_a_page_are_not_stored() -> None:
    cache = inclusive()
    publish(cache, ref(range(3)))
    assert cache.prepare_store(ref(range(3)), 3, 0.0) == Refused(Reason.ALREADY_STORED)
    assert cache.spill_candidates(16) == []


def test_a_store_goes_on_under_an_append() -> None:
    cache = inclusive()
    publish(cache, ref(range(16)))
    plan = begin_store(cache, ref(range(16)))
    publish(cache, ref(range(21)))
    assert cache.complete_store(plan, ok=True)
    assert cache.lookup(ref(range(21))) == Hit(0, 21, 16, 0, 21)
    more = begin_store(cache, ref(range(21)))
    assert (more.start, more.tokens) == (16, 4)


def test_a_store_of_what_was_edited_meanwhile_is_dropped() -> None:
    cache = inclusive()
    publish(cache, ref(range(16)))
    plan = begin_store(cache, ref(range(16)))
    publish(cache, ref([*range(9), 77, *range(10, 16)]))
    assert not cache.complete_store(plan, ok=True)
    assert (host(cache).entries, host(cache).superseded, host(cache).free_chunks) == (0, 1, 10)


def test_m17_clean_entries_leave_first_and_without_loss() -> None:
    cache = inclusive(pages=12)
    publish(cache, ref(range(16), "old and only here"))
    back(cache, 16, "clean")
    cache.touch(ref(range(16), "clean"), Touch.HIT)
    publish(cache, ref(range(32), "new"))
    assert cache.lookup(ref(range(16), "clean")) == Hit(0, 0, 16, 0, 16)
    assert cache.lookup(ref(range(16), "old and only here")) == Hit(0, 16, 0, 0, 16)
    assert host(cache).lost_tokens == 0
    publish(cache, ref(range(16), "more"))
    assert cache.lookup(ref(range(16), "old and only here")) == Miss()
    assert host(cache).lost_tokens == 16


def test_m17_what_the_host_gave_up_is_not_clean_any_more() -> None:
    cache = inclusive(pages=12, chunks=2)
    back(cache, 16, "a")
    publish(cache, ref(range(16), "b"))
    assert cache.spill_candidates(12) == [ref(range(16), "b")]
    assert cache.complete_store(begin_store(cache, ref(range(16), "b")), ok=True)
    assert cache.lookup(ref(range(16), "a")) == Hit(0, 16, 0, 0, 16), "the copy of b took its room"
    assert cache.spill_candidates(12) == [ref(range(16), "a")]
    publish(cache, ref(range(28), "c"))
    assert cache.lookup(ref(range(16), "b")) == Hit(0, 0, 16, 0, 16), "clean, though used later than a"
    assert cache.lookup(ref(range(16), "a")) == Hit(0, 16, 0, 0, 16)


def test_m13_the_host_may_give_up_what_lies_under_an_entry_on_the_device() -> None:
    cache = inclusive(chunks=2)
    back(cache, 16, "a")
    lease = read(cache, ref(range(16), "a"), 16)
    back(cache, 16, "b")
    answer = cache.lookup(ref(range(16), "a"))
    assert answer == Hit(0, 16, 0, 0, 16), "from token 0 on, whatever the host has"
    lease.release()


def test_m3_an_edit_keeps_the_pages_of_the_host_that_agree() -> None:
    cache = inclusive()
    back(cache, 24)
    edited = ref([*range(13), 77, *range(14, 24)])
    publish(cache, edited)
    assert cache.lookup(edited) == Hit(0, 24, 12, 0, 24)
    assert cache.lookup(ref(range(24))) == Hit(0, 13, 12, 0, 13)
    assert (host(cache).evictable_chunks, host(cache).free_chunks) == (2, 8)
    plan = begin_store(cache, edited)
    assert (plan.start, plan.tokens) == (12, 12)


def test_m10_a_shorter_request_leaves_the_longer_copy() -> None:
    cache = inclusive()
    back(cache, 24)
    cache._index.drop(next(iter(cache._index._entries)))
    load = begin_load(cache, ref(range(9)))
    assert cache.complete_load(load, ok=True)
    assert cache.lookup(ref(range(24))) == Hit(0, 9, 24, 0, 24)


@pytest.mark.parametrize("ok", [False, True])
def test_a_copy_that_is_dropped_while_it_grows(ok: bool) -> None:
    cache = inclusive()
    back(cache, 16)
    publish(cache, ref(range(24)))
    plan = begin_store(cache, ref(range(24)))
    publish(cache, ref([77, *range(1, 24)]))
    assert not cache.complete_store(plan, ok)
    assert (host(cache).entries, host(cache).free_chunks) == (0, 10)
