"""Why states left a tier: each cause is counted where it happened, and moving is none."""

from __future__ import annotations

import pytest
from test_tiered import FAR, begin_load, books, publish, ref, stored

from relaygr.cache.disk import DiskBooks
from relaygr.cache.disk_entry import DiskEntry
from relaygr.cache.host import HostBooks, HostEntry
from relaygr.cache.inclusive import InclusiveBooks
from relaygr.cache.interface import Cause, Departures
from relaygr.cache.policies import PolicySettings, make
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Fingerprint, Tenant, UserId


def counted(departures: Departures) -> dict[str, int]:
    assert [cause for cause, _ in departures] == list(Cause)
    return {cause.value: count for cause, count in departures if count}


def of_host(cache: TieredBooks) -> dict[str, int]:
    stats = cache.stats().host
    assert stats is not None
    return counted(stats.departures)


def test_moving_down_and_up_is_no_leaving() -> None:
    cache, wanted = books(), ref(range(18))
    stored(cache, wanted)
    assert cache.complete_load(begin_load(cache, wanted), ok=True)
    assert (counted(cache.stats().departures), of_host(cache)) == ({}, {})


@pytest.mark.parametrize("kind", [TieredBooks, InclusiveBooks])
def test_m33_room_a_deletion_another_model_and_damage(kind: type[TieredBooks]) -> None:
    cache = books(pages=5, chunks=4, kind=kind)
    for user in "abc":
        stored(cache, ref(range(16), user))
    assert of_host(cache) == {"room": 1}
    assert cache.forget(Tenant("t1"), UserId("b"))
    assert of_host(cache) == {"room": 1, "forgotten": 1}
    publish(cache, ref(range(20), "d"))  # takes the whole device
    plan = cache.prepare_load(ref(range(16), "c"), 16, 0.0, FAR)
    assert not hasattr(plan, "reason"), plan
    assert cache.complete_load(plan, ok=False, damaged=True) is False
    assert of_host(cache) == {"room": 1, "forgotten": 1, "damaged": 1}
    stored(cache, ref(range(16), "e"))
    publish(cache, ref(range(20), "f"))
    cache.swap_model(Fingerprint(b"other"))
    assert of_host(cache) == {"room": 1, "forgotten": 1, "damaged": 1, "model": 1}
    assert counted(cache.stats().departures)["model"] == 1
    assert counted(cache.stats().departures)["room"] == cache.stats().evictions


def test_m33_a_part_is_told_from_a_whole() -> None:
    settings = PolicySettings(growth_tokens=8, late_tokens=16)
    host = HostBooks(4, 8, "kv", policy=make("tlru", 4, settings))
    long = ref(range(32), "a")
    runs = host.reserve(32)
    assert runs is not None
    host.put(HostEntry(long, runs, "kv", ()))
    assert host.reserve(8) is not None
    assert counted(tuple(host.departed.items())) == {"part": 1}
    assert host.match(long) == 24


def test_m33_what_leaves_the_disk() -> None:
    disk = DiskBooks(16 * 100, 1 << 20, "kv")
    for user in ("a", "b"):
        wanted = ref(range(4), user)
        kept = disk.reserve((wanted.tenant, wanted.user), 100)
        assert kept is not None
        disk.put(DiskEntry(wanted, kept[1], kept[0], "kv", ()))
    disk.forget(Tenant("t1"), UserId("a"))
    disk.remove(2)
    assert counted(tuple(disk.departed.items())) == {"forgotten": 1, "room": 1}
