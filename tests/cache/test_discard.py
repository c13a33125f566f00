"""Entries of no more use are gone from every tier, and whose state has lost a part is told."""

import pytest
from cache_content import FP, chain

from relaygr.cache.entry import Identity, identity
from relaygr.cache.inclusive import InclusiveBooks
from relaygr.cache.interface import LoadPlan, StorePlan
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.state import Hit, Miss, Ref

FAR = 1e9
KINDS = (TieredBooks, InclusiveBooks)


def ref(tokens: int, user: str = "u") -> Ref:
    return chain([list(range(tokens))], user=user, model_fp=FP).ref()


def books(kind: type[TieredBooks], pages: int = 8, chunks: int = 4) -> TieredBooks:
    return kind(pages, 4, 100, 1.0, host_bytes=chunks * 200, run_chunk_tokens=8, layout_id="kv")


def write(cache: TieredBooks, wanted: Ref) -> WriteLease:
    lease = cache.append(wanted, "writer", 0.0, FAR)
    assert isinstance(lease, WriteLease), lease
    return lease


def store(cache: TieredBooks, wanted: Ref) -> None:
    plan = cache.prepare_store(wanted, wanted.tokens, 0.0)
    assert isinstance(plan, StorePlan), plan
    assert cache.complete_store(plan, ok=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_discarded_entry_is_in_no_tier_and_its_pages_are_free(kind: type[TieredBooks]) -> None:
    cache, wanted, other = books(kind), ref(16), ref(8, "other")
    for one in (wanted, other):
        assert write(cache, one).publish(0.0)
    store(cache, wanted)
    cache.discard(identity(wanted))
    cache.discard(identity(wanted))
    assert cache.lookup(wanted) == Miss()
    assert isinstance(cache.lookup(other), Hit)
    host = cache.stats().host
    assert host is not None
    assert (cache.stats().free_pages, host.free_chunks) == (6, 4)
    cache.audit()


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_reads_or_writes_a_discarded_entry_goes_on(kind: type[TieredBooks]) -> None:
    cache, wanted, longer = books(kind), ref(10), ref(18)
    assert write(cache, wanted).publish(0.0)
    reader = cache.lease(wanted, 10, "reader", 0.0, FAR)
    assert isinstance(reader, ReadLease)
    writer = write(cache, longer)
    cache.discard(identity(wanted))
    cache.audit()
    assert cache.stats().pinned_pages == len(set(reader.pages) | set(writer.pages))
    reader.release()
    assert writer.publish(0.0)
    assert cache.lookup(longer) == Hit(0, 18, 0, 0, 18)
    cache.audit()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_a_discarded_entry_comes_to_nothing(kind: type[TieredBooks]) -> None:
    cache, wanted = books(kind), ref(16)
    assert write(cache, wanted).publish(0.0)
    plan = cache.prepare_store(wanted, 16, 0.0)
    assert isinstance(plan, StorePlan)
    cache.discard(identity(wanted))
    assert not cache.complete_store(plan, ok=True)
    assert cache.lookup(wanted) == Miss()
    assert cache.stats().free_pages == 8
    cache.audit()


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_less_is_told(kind: type[TieredBooks]) -> None:
    cache, told = books(kind), list[Identity]()
    cache.on_less = told.append
    first, second = ref(16, "a"), ref(20, "b")
    assert write(cache, first).publish(0.0)
    assert told == []
    assert write(cache, second).publish(0.0)  # five pages; the first has to leave
    assert told == [identity(first)]
    store(cache, second)
    third = ref(32, "c")
    assert write(cache, third).publish(0.0)
    told.clear()
    store(cache, third)  # in the host it takes the place of the second
    assert identity(second) in told
    assert cache.lookup(second) == Miss()
    load = cache.prepare_load(third, 32, 0.0, FAR)
    if isinstance(load, LoadPlan):
        told.clear()
        assert cache.complete_load(load, ok=False, damaged=True) is False
        assert told == [identity(third)]
    else:
        assert kind is InclusiveBooks  # it is on the device as well
