"""The books of the host tier alone: whose chunks, in how many runs, after how much coming and going."""

import math
import random

import pytest
from cache_content import chain

from relaygr.cache.entry import identity
from relaygr.cache.host import HostBooks, HostEntry
from relaygr.cache.interface import HostRun
from relaygr.cache.policies import make
from relaygr.cache.runs import Run
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref


def ref(tokens: int, user: str) -> Ref:
    return chain([[0] * tokens], user=user).ref()


def put(books: HostBooks, wanted: Ref) -> HostEntry:
    runs = books.reserve(wanted.tokens)
    assert runs is not None
    entry = HostEntry(wanted, runs, "kv", ())
    books.put(entry)
    return entry


def test_runs_in_tokens() -> None:
    books = HostBooks(10, 8, "kv")
    runs = (Run(4, 2), Run(0, 1))
    assert books.host_runs(runs, 20) == (HostRun(0, 16, 32), HostRun(16, 4, 0))
    assert books.host_runs(runs, 16) == (HostRun(0, 16, 32),)
    assert [books.chunks_for(tokens) for tokens in (1, 8, 9)] == [1, 1, 2]


def test_the_one_before_leaves_when_the_next_is_put() -> None:
    books = HostBooks(10, 8, "kv")
    old = put(books, ref(10, "a"))
    books.pin(old)
    put(books, ref(20, "a"))
    assert (len(books), books.free_chunks, books.evictable_chunks, old.visible) == (1, 5, 3, False)
    books.unpin(old)
    assert (books.free_chunks, books.runs) == (7, 1)
    with pytest.raises(AssertionError):
        books.unpin(old)
    books.audit()


def test_two_readers_of_one_entry() -> None:
    books = HostBooks(4, 8, "kv")
    entry = put(books, ref(20, "a"))
    books.pin(entry)
    books.pin(entry)
    books.unpin(entry)
    assert (books.evictable_chunks, books.reserve(16)) == (0, None)
    books.unpin(entry)
    assert books.evictable_chunks == 3
    assert books.reserve(16) is not None
    assert len(books) == 0
    books.audit()


def test_the_headroom_is_used_when_nobody_can_be_evicted() -> None:
    books = HostBooks(40, 8, "kv")
    first = put(books, ref(19 * 8, "a"))
    second = put(books, ref(19 * 8, "b"))
    assert (books.free_chunks, books.evictions) == (2, 0)
    books.pin(first)
    books.pin(second)
    assert books.reserve(16) is not None
    assert (books.free_chunks, books.evictions) == (0, 0)


def test_m14_few_runs_an_entry_after_a_day() -> None:
    """Users come back, each time with a longer history and a state stored anew; the tier is always full."""
    rng = random.Random(0)
    books, lengths, resident = HostBooks(300, 1024, "kv"), {}, []
    for step in range(12_000):
        user = f"u{int(1500 * rng.random() ** 3)}"
        tokens = lengths.get(user) or max(1, min(8192, int(rng.lognormvariate(math.log(1200), 0.9))))
        lengths[user] = min(8192, tokens + rng.randint(4, 19))
        wanted = _named(lengths[user], user)
        if books.get(identity(wanted)) is not None:
            books.drop(identity(wanted))  # loaded
        assert len(put(books, wanted).runs) <= books.chunks_for(wanted.tokens)
        if step > 6000 and step % 100 == 0:
            resident.append(books.runs / len(books))
    books.audit()
    assert books.evictions > 5000
    assert sum(resident) / len(resident) <= 1.25


def _named(tokens: int, user: str) -> Ref:
    """Without records, which these books never look at: a day of histories would take long to digest."""
    empty = ref(0, user)
    return Ref(
        empty.tenant, empty.user, empty.model_fp, 3, 0, empty.digests, (), memoryview(b""), 8, tokens
    )  # fmt: skip


def test_m8_a_forgotten_user_is_no_ghost_either() -> None:
    policy = make("gd_cost", 80)
    books = HostBooks(10, 8, "kv", policy=policy)
    for user in ("a", "b"):
        for anchor in (0, 7):
            put(books, chain([[0] * 10], user=user, anchor=anchor).ref())
    assert books.reserve(80) is not None
    assert {key.user for key in policy.remembered()} == {"a", "b"}
    assert books.forget(Tenant("t1"), UserId("a")) == []
    assert [key.user for key in policy.remembered()] == ["b", "b"]
