"""What the contract of history stores says, on every back-end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
from store_backends import Backend, batch, numbered

from relaygr.core.errors import BackendError, NotReadyError, RequestError
from relaygr.data.stores import Appended, EventBatch, HistoryStore, Profile, StoredHistory

I64 = np.iinfo(np.int64)


def rows_of(history: StoredHistory) -> list[tuple[int, int, int]]:
    """(item, sent time, actions) of the loaded events."""
    columns = (history.items, history.sent_timestamps, history.actions)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_user_without_anything(backend: Backend) -> None:
    store = backend.open()
    history, profile = store.load("t", "u", 10), store.profile("t", "u")
    assert (rows_of(history), history.first_sequence, history.total) == ([], 0, 0)
    assert (profile.contextual.tolist(), profile.utc_offset_s) == ([], 0)
    assert (store.delete("t", "u"), store.count()) == (0, 0)


def test_events_come_back_as_they_were(backend: Backend) -> None:
    store = backend.open()
    events = batch((I64.min, 0, 0), (-1, 5, I64.max), (2**53 + 1, 5, 3), (I64.max, 10**11 - 1, 1))
    assert store.append("t", "u", events) == Appended(4, 4, 0, 0)
    history = store.load("t", "u", 100)
    assert rows_of(history) == [
        (I64.min, 0, 0),
        (-1, 5, I64.max),
        (2**53 + 1, 5, 3),
        (I64.max, 10**11 - 1, 1),
    ]
    assert history.timestamps.tolist() == history.sent_timestamps.tolist()
    assert (history.first_sequence, history.total) == (0, 4)


@pytest.mark.parametrize("sizes", [[1] * 100, [31, 1, 1, 63, 64, 65], [500], [33, 33, 33, 33]])
def test_any_split_into_appends_is_one_history(backend: Backend, sizes: list[int]) -> None:
    store = backend.open()
    done = 0
    for size in sizes:
        store.append("t", "u", numbered(done, size))
        done += size
    for newest in (0, 1, 31, 32, 33, 64, 97, done, done + 1, 2**70):
        history = store.load("t", "u", newest)
        first = max(0, done - newest)
        assert history.items.tolist() == list(range(first, done))
        assert (history.first_sequence, history.total) == (first, done)


def test_what_is_loaded_is_the_callers(backend: Backend) -> None:
    store = backend.open()
    store.append("t", "u", numbered(0, 40))
    mine = store.load("t", "u", 40)
    for column in (mine.items, mine.timestamps, mine.actions, mine.sent_timestamps):
        column += 1
    assert store.load("t", "u", 40).items.tolist() == list(range(40))


def test_late_events_keep_their_place_and_get_the_newest_time(backend: Backend) -> None:
    store = backend.open()
    first = store.append("t", "u", batch((1, 100, 1), (2, 90, 1), (3, 100, 1), (4, 120, 1)))
    second = store.append("t", "u", batch((5, 119, 1), (6, 120, 1), (7, 130, 1), (8, 0, 1)))
    assert (first.late, second.late) == (1, 2)
    assert second.events.timestamps.tolist() == [120, 120, 130, 130]
    history = store.load("t", "u", 8)
    assert history.timestamps.tolist() == [100, 100, 100, 120, 120, 120, 130, 130]
    assert history.sent_timestamps.tolist() == [100, 90, 100, 120, 119, 120, 130, 0]
    assert history.items.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_time_is_the_same_however_much_is_loaded(backend: Backend) -> None:
    store = backend.open()
    store.append("t", "u", batch((0, 5000, 1)))
    for first in range(1, 101, 20):
        items = np.arange(first, first + 20)
        store.append("t", "u", EventBatch(items, items, items))
    for newest in range(1, 102):
        assert set(store.load("t", "u", newest).timestamps.tolist()) == {5000}


def test_duplicates_are_dropped_without_a_key_only(backend: Backend) -> None:
    store = backend.open()
    events = batch((1, 10, 1), (2, 20, 1))
    assert store.append("t", "u", events) == Appended(2, 2, 0, 0)
    assert store.append("t", "u", events) == Appended(2, 0, 2, 0)
    assert store.append("t", "u", events, dedupe=False) == Appended(4, 2, 0, 1)
    assert store.append("t", "u", events, "k") == Appended(6, 2, 0, 1)
    assert store.append("t", "u", events, "k2", dedupe=True) == Appended(6, 0, 2, 0)
    assert store.append("t", "u", events, "k2", dedupe=True) == Appended(6, 0, 2, 0, replayed=True)


def test_a_duplicate_is_equal_in_item_sent_time_and_actions(backend: Backend) -> None:
    store = backend.open()
    store.append("t", "u", batch((1, 10, 1), (1, 5, 1)))  # the second is late: raised to 10
    answer = store.append("t", "u", batch((1, 10, 1), (1, 5, 1), (1, 10, 2), (2, 10, 1), (1, 6, 1)))
    assert (answer.accepted, answer.duplicates) == (3, 2)
    assert answer.events.items.tolist() == [1, 2, 1]
    assert answer.events.actions.tolist() == [2, 1, 1]


def test_the_window_of_duplicates_counts_accepted_events(backend: Backend) -> None:
    store = backend.open(dedupe_events=3)
    store.append("t", "u", numbered(0, 4))
    assert store.append("t", "u", numbered(1, 1)).duplicates == 1
    assert store.append("t", "u", numbered(0, 1)).accepted == 1  # three others came since
    assert store.append("t", "u", batch((9, 9, 9), (9, 9, 9), (8, 8, 8), (9, 9, 9))).duplicates == 2


def test_no_window_no_duplicates(backend: Backend) -> None:
    store = backend.open(dedupe_events=0)
    store.append("t", "u", numbered(0, 1))
    assert store.append("t", "u", numbered(0, 1), dedupe=True).accepted == 1


def test_a_key_is_answered_as_the_first_time(backend: Backend) -> None:
    store = backend.open()
    first = store.append("t", "u", batch((1, 10, 1), (2, 5, 1)), "k", dedupe=True)
    store.append("t", "u", numbered(5, 3))
    again = store.append("t", "u", batch((1, 10, 1), (2, 5, 1)), "k")
    assert first == Appended(2, 2, 0, 1)
    assert again == Appended(2, 2, 0, 1, replayed=True)
    assert len(again.events) == 0
    assert store.load("t", "u", 9).total == 5
    # Another user's key of the same name is another key.
    assert not store.append("t", "v", numbered(0, 1), "k").replayed
    assert not store.append("t2", "u", numbered(0, 1), "k").replayed


def test_a_key_with_other_events_is_refused(backend: Backend) -> None:
    store = backend.open()
    store.append("t", "u", batch((1, 10, 1)), "k")
    for other in (
        batch((2, 10, 1)),
        batch((1, 11, 1)),
        batch((1, 10, 2)),
        batch(),
        batch((1, 10, 1), (1, 1, 1)),
    ):
        with pytest.raises(RequestError, match="key: 'k' was used for other events"):
            store.append("t", "u", other, "k")
    assert store.load("t", "u", 9).total == 1


def test_only_the_newest_keys_are_known(backend: Backend) -> None:
    store = backend.open(keys_per_user=3)
    for at in range(4):
        store.append("t", "u", numbered(at, 1), f"k{at}")
    assert [store.append("t", "u", numbered(at, 1), f"k{at}").replayed for at in (1, 2, 3)] == [True] * 3
    assert store.append("t", "u", numbered(0, 1), "k0") == Appended(5, 1, 0, 1)
    assert not store.append("t", "u", numbered(1, 1), "k1").replayed


def test_an_empty_batch(backend: Backend) -> None:
    store = backend.open()
    assert store.append("t", "u", batch()) == Appended(0, 0, 0, 0)
    assert store.count() == 0
    assert store.append("t", "u", batch(), "k") == Appended(0, 0, 0, 0)
    store.append("t", "u", numbered(0, 2))
    assert store.append("t", "u", batch(), "k") == Appended(0, 0, 0, 0, replayed=True)
    assert store.count() == 1


@pytest.mark.parametrize("keep", [1, 31, 32, 33, 100])
def test_only_the_newest_events_are_kept(backend: Backend, keep: int) -> None:
    store = backend.open(keep_events=keep)
    done = 0
    for size in (1, 30, 2, 64, 1, 300, 7):
        store.append("t", "u", numbered(done, size))
        done += size
        history = store.load("t", "u", 10_000)
        assert history.items.tolist() == list(range(max(0, done - keep), done))
        assert (history.first_sequence, history.total) == (max(0, done - keep), done)
    assert store.delete("t", "u") == keep


def test_what_was_dropped_stays_so(lasting: Backend) -> None:
    lasting.open(keep_events=10).append("t", "u", numbered(0, 35))
    lasting.close()
    store = lasting.open(keep_events=1000)
    assert store.load("t", "u", 1000).first_sequence == 25
    store.append("t", "u", numbered(35, 40))
    assert store.load("t", "u", 1000).items.tolist() == list(range(25, 75))


STRANGE = [
    "a",
    "A",
    "á",
    "a\u0301",
    "用户",
    "🙂",
    "a b",
    "a/b",
    "a:b",
    "'; DROP TABLE user; --",
    "%",
    "\n",
    "\ufeff",
    "x" * 256,
]


def test_strange_names_are_different_users(backend: Backend) -> None:
    store = backend.open()
    owners = [(tenant, user) for tenant in STRANGE[:6] for user in STRANGE]
    owners += [("ab", "c"), ("a", "bc"), ("x" * 256, "x" * 256)]
    for at, (tenant, user) in enumerate(owners):
        store.append(tenant, user, numbered(at, 1), "key 🙂")
        store.set_profile(tenant, user, Profile(np.array([at])))
    assert store.count() == len(owners)
    for at, (tenant, user) in enumerate(owners):
        assert store.load(tenant, user, 9).items.tolist() == [at]
        assert store.profile(tenant, user).contextual.tolist() == [at]


CALLS: dict[str, Callable[[HistoryStore, str, str], object]] = {
    "append": lambda store, tenant, user: store.append(tenant, user, numbered(0, 1)),
    "load": lambda store, tenant, user: store.load(tenant, user, 1),
    "profile": lambda store, tenant, user: store.profile(tenant, user),
    "set_profile": lambda store, tenant, user: store.set_profile(tenant, user, Profile(np.array([1]))),
    "delete": lambda store, tenant, user: store.delete(tenant, user),
}


@pytest.mark.parametrize("call", CALLS)
def test_bad_names_are_refused(backend: Backend, call: str) -> None:
    store = backend.open()
    for bad in ("", "a\0b", "x" * 257, "\ud800"):
        with pytest.raises(RequestError, match="user: "):
            CALLS[call](store, "t", bad)
        with pytest.raises(RequestError, match="tenant: "):
            CALLS[call](store, bad, "u")
        with pytest.raises(RequestError, match="key: "):
            store.append("t", "u", numbered(0, 1), bad)
    assert store.count() == 0


def test_a_negative_length_is_refused(backend: Backend) -> None:
    with pytest.raises(RequestError, match="newest: -1 must not be negative"):
        backend.open().load("t", "u", -1)


def test_profiles(backend: Backend) -> None:
    store = backend.open()
    store.set_profile("t", "u", Profile(np.array([I64.min, 0, I64.max]), -3600))
    assert store.count() == 1
    store.append("t", "u", numbered(0, 3))
    found = store.profile("t", "u")
    assert (found.contextual.tolist(), found.utc_offset_s) == ([I64.min, 0, I64.max], -3600)
    store.set_profile("t", "u", Profile(np.zeros(0, np.int64), 86_400))
    found = store.profile("t", "u")
    assert (found.contextual.tolist(), found.utc_offset_s) == ([], 86_400)
    assert (store.load("t", "u", 9).total, store.count()) == (3, 1)


def test_delete_leaves_nothing_of_the_user_and_all_of_the_others(backend: Backend) -> None:
    store = backend.open()
    for user in ("u", "u2", "v"):
        store.append("t", user, numbered(0, 100), "k")
        store.set_profile("t", user, Profile(np.array([7]), 60))
    assert store.delete("t", "u") == 100
    assert (store.delete("t", "u"), store.count()) == (0, 2)
    assert store.load("t", "u", 9).total == 0
    assert store.profile("t", "u").contextual.tolist() == []
    assert store.append("t", "u", numbered(7, 1), "k") == Appended(1, 1, 0, 0)
    assert store.load("t", "u", 9).items.tolist() == [7]
    for user in ("u2", "v"):
        assert store.load("t", user, 100).items.tolist() == list(range(100))
        assert store.profile("t", user).utc_offset_s == 60
        assert store.append("t", user, numbered(0, 100), "k").replayed


def test_another_opening_finds_everything(lasting: Backend) -> None:
    store = lasting.open()
    answer = store.append("t", "u", numbered(0, 70), "k")
    store.set_profile("t", "u", Profile(np.array([3]), 60))
    store.checkpoint()
    store.append("t", "u", numbered(70, 1))
    lasting.close()
    store = lasting.open()
    assert store.load("t", "u", 100).items.tolist() == list(range(71))
    assert store.append("t", "u", numbered(0, 70), "k") == Appended(70, 70, 0, 0, replayed=True)
    assert answer.sequence == 70
    assert store.profile("t", "u").contextual.tolist() == [3]
    assert store.append("t", "u", batch((1, 1, 1))).late == 1


def test_a_closed_store_says_so(backend: Backend) -> None:
    store = backend.open()
    store.close()
    store.close()
    others: list[Callable[[], object]] = [store.count, store.checkpoint]
    for call in [*(lambda call=call: call(store, "t", "u") for call in CALLS.values()), *others]:
        with pytest.raises(NotReadyError, match="is closed"):
            call()


def test_a_damaged_event_is_an_error_and_old_events_are_not_read(lasting: Backend) -> None:
    """A million events, of which the newest 4,096 are loaded without a look at the first."""
    store = lasting.open(keep_events=1 << 20)
    for first in range(0, 1_000_000, 50_000):
        store.append("t", "u", numbered(first, 50_000), dedupe=False)
    store.append("t", "other", numbered(0, 40))
    lasting.close()
    lasting.damage_chunk("t", "u", 0)
    store = lasting.open(keep_events=1 << 20)
    assert store.load("t", "u", 4096).items.tolist() == list(range(1_000_000 - 4096, 1_000_000))
    assert store.append("t", "u", numbered(1_000_000, 1)).sequence == 1_000_001
    with pytest.raises(BackendError, match=r"tenant 't', user 'u': damaged record: .* chunk 0 of the events"):
        store.load("t", "u", 1_000_001)
    assert store.load("t", "other", 40).total == 40


def test_an_append_to_damaged_events_is_refused_and_fails_no_other(lasting: Backend) -> None:
    store = lasting.open()
    for user in ("u", "v"):
        store.append("t", user, numbered(0, 40))
    lasting.close()
    lasting.damage_chunk("t", "u", 1)
    store = lasting.open()
    with pytest.raises(BackendError, match="'u': damaged record: the checksum of the chunk 1 of the events"):
        store.append("t", "u", numbered(40, 1))
    assert store.append("t", "v", numbered(40, 1)).sequence == 41
    assert store.delete("t", "u") == 40


def test_threads_that_append_to_one_user_and_to_others(backend: Backend) -> None:
    store = backend.open()
    threads, appends = 6, 40
    done = threading.Event()

    def write(thread: int) -> list[int]:
        sequences = []
        for at in range(appends):
            event = batch((thread * 1000 + at, 100 + at, 1))
            sequences.append(store.append("t", "shared", event).sequence)
            store.append("t", f"own {thread}", event)
        return sequences

    def read() -> int:
        loads = 0
        while not done.is_set():
            history = store.load("t", "shared", 50)
            assert len(history.items) == history.total - history.first_sequence
            assert (np.diff(history.timestamps) >= 0).all()
            loads += 1
        return loads

    with ThreadPoolExecutor(threads + 1) as pool:
        reader = pool.submit(read)
        try:
            sequences = list(pool.map(write, range(threads)))
        finally:
            done.set()
        assert reader.result() > 0
    assert sorted(chain.from_iterable(sequences)) == list(range(1, threads * appends + 1))
    shared = store.load("t", "shared", 10_000).items
    for thread in range(threads):
        expected = [thread * 1000 + at for at in range(appends)]
        assert shared[shared // 1000 == thread].tolist() == expected
        assert store.load("t", f"own {thread}", 10_000).items.tolist() == expected
        # What was answered is where the events are.
        assert [int(shared[sequence - 1]) for sequence in sequences[thread]] == expected


def test_one_key_from_many_threads_is_stored_once(backend: Backend) -> None:
    store = backend.open()
    start = threading.Barrier(6)

    def write(_: int) -> Appended:
        start.wait()
        return store.append("t", "u", numbered(0, 3), "k")

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(write, range(6)))
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 5
    assert {answer.sequence for answer in answers} == {3}
    assert store.load("t", "u", 9).total == 3


def test_it_says_what_it_is_and_what_a_crash_loses(backend: Backend) -> None:
    said = backend.open(synchronous="full").describe()
    assert said.startswith("sqlite" if backend.name == "memory" else backend.name)
    assert "loses" in said or "lose" in said or "nothing is left" in said
