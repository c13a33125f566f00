"""Appends from streams that deliver again: what the contract of history stores says of sources."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_backends import Backend, numbered

from relaygr.core.errors import RequestError
from relaygr.data.stores import EventBatch, HistoryStore, Source
from relaygr.data.stores.layout import SOURCES_PER_USER


def deliver(
    store: HistoryStore, first: int, stop: int, source: str = "s", user: str = "u"
) -> tuple[int, int]:
    """Events first, ..., stop - 1 with their numbers as offsets; (accepted, duplicates)."""
    answer = store.append(
        "t", user, numbered(first, stop - first), source=Source(source, tuple(range(first, stop)))
    )
    assert answer.replayed == (answer.accepted == 0)
    return answer.accepted, answer.duplicates


def items(store: HistoryStore, user: str = "u") -> list[int]:
    found: list[int] = store.load("t", user, 10_000).items.tolist()
    return found


def test_what_comes_again_is_dropped_however_it_is_cut(backend: Backend) -> None:
    store = backend.open(dedupe_events=0)
    assert deliver(store, 0, 5) == (5, 0)
    assert deliver(store, 0, 5) == (0, 5)
    assert deliver(store, 3, 9) == (4, 2)
    assert deliver(store, 8, 9) == (0, 1)
    assert items(store) == list(range(9))


def test_the_offset_outlives_the_store_and_any_number_of_keys(lasting: Backend) -> None:
    store = lasting.open(keys_per_user=1, dedupe_events=0)
    deliver(store, 0, 50)
    for at in range(5):
        store.append("t", "u", numbered(1000 + at, 1), f"key {at}")
    lasting.close()
    store = lasting.open(keys_per_user=1, dedupe_events=0)
    assert deliver(store, 0, 51) == (1, 50)
    assert items(store) == [*range(50), *range(1000, 1005), 50]
    assert store.append("t", "u", numbered(1004, 1), "key 4").replayed  # nor does it push out keys


def test_a_user_has_an_offset_in_each_of_its_last_sources(backend: Backend) -> None:
    store = backend.open(dedupe_events=0)
    for at in range(SOURCES_PER_USER + 1):
        assert deliver(store, 0, 2, f"s{at}") == (2, 0)
    assert deliver(store, 0, 2, "s0") == (2, 0)  # forgotten
    assert deliver(store, 0, 2, f"s{SOURCES_PER_USER}") == (0, 2)
    assert deliver(store, 0, 2, f"s{SOURCES_PER_USER}", "v") == (2, 0)


def test_duplicates_by_content_move_the_offset_too(backend: Backend) -> None:
    store = backend.open(dedupe_events=3)
    store.append("t", "u", numbered(0, 3))
    answer = store.append("t", "u", numbered(0, 3), source=Source("s", (0, 1, 2)))
    assert (answer.accepted, answer.duplicates, answer.replayed) == (0, 3, False)
    store.append("t", "u", numbered(100, 3))  # pushes the first ones out of what is compared
    assert deliver(store, 0, 3) == (0, 3)
    assert items(store) == [0, 1, 2, 100, 101, 102]


def test_a_key_says_more_than_an_offset(backend: Backend) -> None:
    store = backend.open()
    store.append("t", "u", numbered(1, 1), "k", source=Source("s", (7,)))
    assert store.append("t", "u", numbered(1, 1), "k", source=Source("s", (8,))).replayed
    with pytest.raises(RequestError, match="was used for other events"):
        store.append("t", "u", numbered(2, 1), "k", source=Source("s", (9,)))
    assert items(store) == [1]


def test_deletion_forgets_offsets(backend: Backend) -> None:
    store = backend.open()
    deliver(store, 0, 3)
    store.delete("t", "u")
    assert deliver(store, 0, 3) == (3, 0)


def test_offsets_have_128_bits(lasting: Backend) -> None:
    store = lasting.open()
    last = (1 << 128) - 1
    assert store.append("t", "u", numbered(0, 2), source=Source("s", (last - 1, last))).accepted == 2
    assert store.append("t", "u", numbered(2, 1), source=Source("s", (last,))).replayed


def test_no_events_leave_no_mark(backend: Backend) -> None:
    store = backend.open()
    answer = store.append("t", "u", numbered(0, 0), source=Source("s", ()))
    assert (answer.accepted, answer.replayed, store.load("t", "u", 1).total) == (0, False, 0)


@pytest.mark.parametrize("offsets", [(1, 1), (2, 1), (-1,), (1 << 128,)])
def test_offsets_rise(offsets: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="offsets"):
        Source("s", offsets)


def test_every_event_has_an_offset(backend: Backend) -> None:
    with pytest.raises(RequestError, match=r"offsets: has 1 values for 2 items"):
        backend.open().append("t", "u", numbered(0, 2), source=Source("s", (1,)))
    with pytest.raises(RequestError, match="source"):
        Source("", ())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), gaps=st.lists(st.integers(1, 5), min_size=1, max_size=15))
def test_any_redelivery_is_one_history(backend: Backend, data: st.DataObject, gaps: list[int]) -> None:
    """A reader that goes back to any place it was at, with batches of any size, stores each event once."""
    offsets = np.cumsum(gaps)
    store, at, known = (backend.opened or [backend.open(dedupe_events=0)])[0], 0, 0
    store.delete("t", "u")
    while at < len(offsets):
        begin = data.draw(st.integers(0, at))
        at = data.draw(st.integers(begin + 1, len(offsets)))
        columns = (offsets[begin:at], offsets[begin:at], np.ones(at - begin, np.int64))
        places = tuple(int(offset) for offset in offsets[begin:at])
        answer = store.append("t", "u", EventBatch(*columns), source=Source("s", places))
        assert answer.accepted == max(at - known, 0)
        known = max(known, at)
        at = known
    assert items(store) == offsets.tolist()
