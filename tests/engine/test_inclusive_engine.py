"""A real engine whose device is backed by host memory: what is safe, what moves, and the scores."""

from __future__ import annotations

import pytest
from relay_rig import FULL, PAGE_BYTES, Rig, longer, rig, user

from relaygr.engine.requests import Path

HOST = {"host_bytes": 4 << 20, "tier_mode": "inclusive", "spill_min_reuse": 0.0}


def safe_pages(r: Rig) -> int:
    """Free, or of entries that the host has, too."""
    books = r.engine._tiers.books
    stats = books.stats()
    clean = sum(
        len(entry.pages)
        for entry in books._index._entries.values()
        if books._to_store(books._host, entry)[0] >= books._to_store(books._host, entry)[1]
    )
    return stats.free_pages + clean


@pytest.mark.parametrize("target", [0.15, 0.4, 0.9])
def test_m17_so_much_of_the_device_is_free_or_safe(target: float) -> None:
    with rig(host=HOST | {"clean_target": target}) as r:
        for number in range(12):
            r.rank(user(f"u{number % 7}", 40 + 9 * number))
            assert safe_pages(r) >= int(target * 16)


def test_a_state_is_on_the_device_and_in_the_host_and_only_new_pages_move() -> None:
    with rig(host=HOST | {"clean_target": 0.9}) as r:
        one = user("one", 100)
        r.rank(one)
        r.crowd(1)
        assert r.cached(one) == (100, 96)
        stored = r.engine.copied_bytes[1]
        one = longer(one, 40)
        r.rank(one)
        r.crowd(1, first=1)
        assert r.cached(one)[1] == 128
        mine = r.engine.copied_bytes[1] - stored - r.cached(user("crowd-1"))[1] * PAGE_BYTES // 32
        assert mine == PAGE_BYTES, "one new page"


def test_what_left_the_device_comes_back_and_stays_in_the_host() -> None:
    with rig(host=HOST | {"clean_target": 0.9}) as r:
        one = user("one", FULL)
        r.rank(one)
        r.crowd(4)
        device, host = r.cached(one)
        assert (device, host) == (0, 128)
        answer = r.rank(one)
        assert (answer.served.path, answer.served.tokens_loaded) == (Path.RESUMED, 128)
        assert r.cached(one) == (FULL, 128)


@pytest.mark.parametrize("policy", ["gd_cost", "lru", "lru2"])
def test_a_host_that_is_too_small_is_not_written_for_ever(policy: str) -> None:
    """What is stored pushes out what was safe: that is no gain, and ends until there is new work."""
    host = HOST | {"host_bytes": 10 * PAGE_BYTES, "clean_target": 0.9, "policy_host": policy}
    with rig(host=host) as r:
        for number in range(3):
            r.rank(user(f"u{number}"))  # each ends at rest, or not at all
        stores = r.engine.cache_stats().host.stores
        assert 0 < stores <= 12
        for number in range(3):
            r.rank(user(f"u{number}"))
