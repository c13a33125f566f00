"""What is written to disk and read from it: when it becomes visible, what is refused, what is safe."""

from __future__ import annotations

import pytest
from cache_content import FP, chain

from relaygr.cache.books import DeviceBooks
from relaygr.cache.disk import DiskBooks
from relaygr.cache.disk_moves import DiskMoves, FetchPlan, SavePlan
from relaygr.cache.host import HostEntry
from relaygr.cache.interface import PageSum, Reason, Refused
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref, Touch

T = Tenant("t1")
LAYOUT = "layout"
CHUNKS, CHUNK, PAGE = 10, 8, 4
SUMS = (PageSum(0, 7),)


def content(user: str, tokens: int = 8) -> Ref:
    return chain([list(range(tokens))], user=user).ref()


class Shelf:
    """Books of all three tiers; states come to the host without a device."""

    def __init__(self, disk_bytes: int = 16_000) -> None:
        self.books = TieredBooks(
            8, PAGE, 64, 1.0, host_bytes=CHUNKS * 128, run_chunk_tokens=CHUNK, layout_id=LAYOUT
        )
        assert self.books.host is not None
        self.host = self.books.host
        self.disk = DiskBooks(disk_bytes, 1 << 20, LAYOUT)
        moves = self.books.put_below(self.disk)
        assert isinstance(moves, DiskMoves)
        self.moves = moves

    def put(self, user: str, tokens: int = 8) -> HostEntry:
        runs = self.host.reserve(tokens)
        assert runs is not None
        entry = HostEntry(content(user, tokens), runs, LAYOUT, SUMS)
        self.host.put(entry)
        self.books.audit()
        return entry

    def save(self, user: str, ok: bool = True, nbytes: int = 100) -> bool:
        entry = self.host.get(next(iter(self.host.keys_of(T, UserId(user)))))
        assert entry is not None
        plan = self.moves.prepare_save(entry, nbytes)
        assert isinstance(plan, SavePlan), plan
        done = self.moves.complete_save(plan, ok)
        self.books.audit()
        return done

    def drop(self, user: str) -> None:
        for key in self.host.keys_of(T, UserId(user)):
            self.host.drop(key)

    def fetch(self, user: str, tokens: int = 8) -> FetchPlan:
        plan = self.moves.prepare_fetch(content(user, tokens))
        assert isinstance(plan, FetchPlan), plan
        return plan

    def full(self) -> bool:
        self.books.audit()
        return not len(self.moves) and self.host.free_chunks + self.host.evictable_chunks == CHUNKS


def test_m16_a_save_is_visible_when_it_is_complete_and_again_is_a_no_op() -> None:
    shelf = Shelf()
    entry = shelf.put("u")
    plan = shelf.moves.prepare_save(entry, 100)
    assert isinstance(plan, SavePlan)
    assert (plan.number, plan.place.nbytes, plan.sums, plan.layout_id) == (1, 100, SUMS, LAYOUT)
    assert shelf.books.lookup(content("u")) == Hit(0, 0, 8, 0, 8)
    assert shelf.moves.prepare_save(entry, 100) == Refused(Reason.BUSY)
    assert shelf.host.evictable_chunks == 0
    assert shelf.moves.complete_save(plan, ok=True)
    assert not shelf.moves.complete_save(plan, ok=True)
    assert shelf.books.lookup(content("u")) == Hit(0, 0, 8, 8, 8)
    shelf.drop("u")
    assert shelf.books.lookup(content("u", 12)) == Hit(0, 0, 0, 8, 8)
    assert shelf.full()


def test_m16_a_fetch_is_visible_when_it_is_complete() -> None:
    shelf = Shelf()
    shelf.put("u")
    shelf.save("u")
    assert shelf.moves.prepare_fetch(content("u")) == Refused(Reason.NOT_RESIDENT), "the host has it"
    shelf.drop("u")
    plan = shelf.fetch("u")
    assert shelf.moves.prepare_fetch(content("u")) == Refused(Reason.BUSY)
    assert shelf.books.lookup(content("u")) == Hit(0, 0, 0, 8, 8)
    assert sum(run.tokens for run in plan.runs) == 8
    assert shelf.moves.complete_fetch(plan, ok=True)
    assert not shelf.moves.complete_fetch(plan, ok=True)
    assert shelf.books.lookup(content("u")) == Hit(0, 0, 8, 8, 8)
    back = shelf.host.get(next(iter(shelf.host.keys_of(T, UserId("u")))))
    assert back is not None
    assert back.sums == SUMS
    assert shelf.full()
    assert shelf.moves.next_dirty() is None, "it need not be written again"


@pytest.mark.parametrize("direction", ["save", "fetch"])
@pytest.mark.parametrize("how", ["failed", "forgotten", "swapped", "closed", "damaged"])
def test_what_ends_badly_is_never_visible_and_keeps_nothing(direction: str, how: str) -> None:
    shelf = Shelf()
    entry = shelf.put("u")
    if direction == "fetch":
        shelf.save("u")
        shelf.drop("u")
        fetch = shelf.fetch("u")
    else:
        save = shelf.moves.prepare_save(entry, 100)
        assert isinstance(save, SavePlan)
    plan = fetch if direction == "fetch" else save
    if how == "forgotten":
        assert shelf.books.forget(T, UserId("u")) == 1
    elif how == "swapped":
        shelf.books.swap_model(Fingerprint(bytes(16)))
    elif how == "closed":
        shelf.books.put_below(None)
        assert shelf.books.stats().disk is None
    assert shelf.moves.running(plan) == (how in ("failed", "damaged"))
    if isinstance(plan, FetchPlan):
        assert not shelf.moves.complete_fetch(plan, how != "failed", damaged=how == "damaged")
        assert (shelf.moves.damaged, len(shelf.disk)) == (
            (1, 0) if how == "damaged" else (0, int(how in ("failed", "closed")))
        )
    else:
        assert not shelf.moves.complete_save(plan, ok=how not in ("failed", "damaged"))
        assert len(shelf.disk) == 0
    if how in ("forgotten", "swapped"):
        assert shelf.books.lookup(content("u")) == Miss()
    assert shelf.full()


def test_a_cancelled_transfer_is_not_in_the_way_of_the_next() -> None:
    shelf = Shelf()
    before = shelf.moves.prepare_save(shelf.put("u"), 100)
    assert isinstance(before, SavePlan)
    shelf.books.forget(T, UserId("u"))
    after = shelf.moves.prepare_save(shelf.put("u"), 100)
    assert isinstance(after, SavePlan)
    assert not shelf.moves.complete_save(before, ok=True)
    assert shelf.moves.running(after)
    assert shelf.moves.complete_save(after, ok=True)
    assert shelf.books.lookup(content("u")) == Hit(0, 0, 8, 8, 8)
    assert shelf.full()


def test_a_save_whose_source_has_left_meanwhile_is_good_all_the_same() -> None:
    shelf = Shelf()
    plan = shelf.moves.prepare_save(shelf.put("u"), 100)
    assert isinstance(plan, SavePlan)
    shelf.drop("u")
    assert shelf.moves.complete_save(plan, ok=True)
    assert shelf.books.lookup(content("u")) == Hit(0, 0, 0, 8, 8)
    assert shelf.full()


def test_a_fetch_of_what_has_come_meanwhile_is_dropped() -> None:
    shelf = Shelf()
    shelf.put("u")
    shelf.save("u")
    shelf.drop("u")
    plan = shelf.fetch("u")
    mine = shelf.put("u")
    assert not shelf.moves.complete_fetch(plan, ok=True)
    assert shelf.host.get(next(iter(shelf.host.keys_of(T, UserId("u"))))) is mine
    assert shelf.full()


def test_refusals() -> None:
    shelf = Shelf()
    assert shelf.moves.prepare_fetch(content("nobody")) == Refused(Reason.NOT_RESIDENT)
    entry = shelf.put("u")
    assert shelf.moves.prepare_save(entry, 16_001) == Refused(Reason.TOO_LARGE)
    assert (shelf.moves.next_dirty(), shelf.moves.refused) == (None, 1)
    shelf.drop("u")
    assert shelf.moves.prepare_save(entry, 10) == Refused(Reason.NOT_RESIDENT)
    shelf.put("u")
    shelf.save("u")
    shelf.drop("u")
    pinned = shelf.put("big", CHUNKS * CHUNK)
    shelf.host.pin(pinned)
    assert shelf.moves.prepare_fetch(content("u")) == Refused(Reason.PINNED)
    shelf.host.unpin(pinned)
    plan = shelf.fetch("u")
    shelf.moves.complete_fetch(plan, ok=False)
    assert shelf.full()


def test_m17_entries_are_safe_when_the_disk_has_them_and_not_when_it_has_lost_them() -> None:
    shelf = Shelf()
    for name in ("a", "b", "c", "d", "e"):
        shelf.put(name, 16)
    assert shelf.host.free_chunks == 0
    assert shelf.moves.short_of(0.4)
    order = []
    while shelf.moves.short_of(0.4):
        entry = shelf.moves.next_dirty()
        assert entry is not None
        order.append(entry.ref.user)
        shelf.save(entry.ref.user)
    assert order == ["a", "b"], "those that came first leave first"
    assert shelf.moves.clean_chunks == 4
    assert shelf.disk.get(next(iter(shelf.disk.keys_of(T, UserId("a"))))) is not None
    shelf.disk.remove(1)
    shelf.books.audit()
    assert shelf.moves.clean_chunks == 0
    assert shelf.moves.short_of(0.4)
    entry = shelf.moves.next_dirty()
    assert entry is not None
    assert entry.ref.user == "c"
    shelf.put("f", 16)  # room is made for it: the oldest has left
    assert shelf.moves.short_of(0.4)
    shelf.books.audit()


def test_a_disk_that_is_smaller_than_what_is_to_be_safe_is_not_written_for_ever() -> None:
    shelf = Shelf(disk_bytes=160)
    users = [f"u{number}" for number in range(8)]
    for user in users:
        shelf.put(user)
    saves = 0
    while shelf.moves.short_of(1.0):
        entry = shelf.moves.next_dirty()
        assert entry is not None
        assert shelf.save(entry.ref.user)
        saves += 1
        assert saves <= len(users)
    assert (saves, len(shelf.disk)) == (8, 1)
    assert shelf.moves.clean_chunks == 1


def test_only_a_whole_copy_makes_an_entry_safe() -> None:
    shelf = Shelf()
    shelf.put("u", 8)
    shelf.save("u")
    shelf.drop("u")
    shelf.put("u", 12)
    assert (shelf.moves.clean_chunks, shelf.moves.next_dirty() is not None) == (0, True)
    shelf.save("u")
    assert shelf.moves.clean_chunks == 2
    assert shelf.books.lookup(content("u", 12)) == Hit(0, 0, 12, 12, 12)


def test_m20_a_touch_reaches_the_disk() -> None:
    shelf = Shelf(disk_bytes=1600)
    for number in range(16):
        shelf.put(f"u{number}")
        shelf.save(f"u{number}")
    shelf.books.touch(content("u0"), Touch.HIT)
    shelf.put("new")
    shelf.save("new")
    assert shelf.disk.match(content("u0")) == 8
    assert shelf.disk.match(content("u1")) == 0


def test_without_a_host_there_is_nothing_below() -> None:
    books = TieredBooks(8, PAGE, 64, 1.0)
    assert isinstance(books, DeviceBooks)
    assert books.put_below(DiskBooks(1000, 1 << 20, LAYOUT)) is None
    assert books.lookup(content("u")) == Miss()
    assert books.stats().disk is None
    assert content("u").model_fp == FP
