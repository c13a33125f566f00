"""The disk tier of an engine: written behind the host, read for the next ranking, right or not at all."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
from engine_models import PAGE_TOKENS
from relay_rig import FULL, PAGE_BYTES, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.cache.interface import Cause, DiskStats
from relaygr.core.errors import BackendError
from relaygr.core.state import Hit
from relaygr.core.units import MIB
from relaygr.engine import disk
from relaygr.engine.disk_copies import Fetching
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import Path
from relaygr.memory.disk import RecordReader, SegmentFiles
from relaygr.memory.disk_forgotten import COPIES, ForgottenLog

ONE = user("one")
TOKEN_BYTES = PAGE_BYTES // PAGE_TOKENS


@contextlib.contextmanager
def disk_rig(folder: FilePath, **host: Any) -> Iterator[Rig]:
    """A host for two full users, of which next to everything is on disk, too; closed in good order."""
    settings = {
        "host_bytes": 12 * PAGE_BYTES,
        "clean_target": 0.9,
        "disk_bytes": 64 * MIB,
        "disk_path": str(folder / "disk"),
    }
    with rig(host={**settings, **host}) as r:
        r.engine.below.attach()
        try:
            yield r
            settle(r)
        finally:
            r.brake.release()
            r.rest()
            r.engine.below.detach(keep=True)


def settle(r: Rig) -> None:
    """Until nobody waits for the disk, either."""
    await_true(lambda: not r.engine.below.waiting and r._at_rest() and not r.engine.below.waiting)


def found(r: Rig, one: UserHistory) -> tuple[int, int, int]:
    """Tokens on the device, in the host, on disk."""
    ref = r.engine.ref(one)
    assert ref is not None
    answer = r.engine._tiers.books.lookup(ref)
    return (answer.device_end, answer.host, answer.disk) if isinstance(answer, Hit) else (0, 0, 0)


def stats(r: Rig) -> DiskStats:
    found = r.engine.cache_stats().disk
    assert found is not None
    return found


def computed(r: Rig) -> int:
    return r.engine.stats().tokens_computed


def on_disk_alone(r: Rig, one: UserHistory = ONE) -> None:
    """The user was ranked, and so many others since that neither device nor host has the prefix."""
    r.rank(one)
    settle(r)
    for number in range(8):
        r.rank(user(f"crowd-{number}"), (1,))
        settle(r)
    assert found(r, one) == (0, 0, len(one))


def test_m1_m15_device_host_disk_host_device_and_the_scores_are_those_of_a_pass(tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        before = computed(r)
        answer = r.prepare(ONE)
        assert answer.flight is not None
        assert (answer.flight.fetched, answer.flight.reloaded, answer.flight.computed) == (True, True, 0)
        assert computed(r) == before
        assert found(r, ONE)[0] == FULL
        assert r.rank(ONE).served.path is Path.HIT  # and `rank` compares with a pass over everything
        assert r.engine.below.copied_bytes[0] == FULL * TOKEN_BYTES
        assert stats(r).fetches == 1


@pytest.mark.parametrize("events", [1, 31, 32, 33, 100])
def test_who_returns_from_disk_costs_the_new_events_alone(events: int, tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r, user("one", events))
        before, one = computed(r), longer(user("one", events), 7)
        r.prepare(one)
        r.rank(one)
        assert computed(r) - before == 7


def test_after_a_restart_the_disk_is_there_and_the_scores_are_right(tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
    with disk_rig(tmp_path) as r:
        assert found(r, ONE) == (0, 0, FULL)
        flight = r.prepare(ONE).flight
        assert flight is not None
        assert (flight.fetched, flight.computed) == (True, 0)
        assert r.rank(ONE).served.path is Path.HIT


def test_ranking_reads_no_disk_byte_and_waits_for_none(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        before = computed(r)

        def read(*_: object) -> None:
            raise AssertionError("ranking read the disk")

        with monkeypatch.context() as patch:
            patch.setattr(RecordReader, "read", read)
            assert r.rank(ONE).served.path is Path.FULL
        assert computed(r) - before == FULL
        # The same while the disk hangs, with a fetch of another user and a save on their way.
        on_disk_alone(r, user("two"))
        go, began, whole = threading.Event(), threading.Event(), SegmentFiles.read

        def hang(files: SegmentFiles, *args: int) -> bytearray:
            began.set()
            assert go.wait(PATIENCE_S)
            return whole(files, *args)

        monkeypatch.setattr(SegmentFiles, "read", hang)
        flight = r.signal(user("two")).flight
        assert flight is not None
        assert began.wait(PATIENCE_S)
        for name in ("three", "four"):
            job = r.ask(user(name))
            r.right(job, job.future.result(PATIENCE_S))
        other = r.signal(user("five")).flight
        assert other is not None
        other.result(PATIENCE_S)  # who waits for the disk stops no other flight
        assert not flight.done()
        go.set()
        flight.result(PATIENCE_S)
        settle(r)
        assert flight.fetched
        for name in ("two", "five"):
            r.rank(user(name))


def test_m25_a_fetch_that_would_be_late_is_not_begun(tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        disk = r.engine._tiers.disk
        assert disk is not None
        disk._bytes_per_s = 1e6  # a third of a second for ONE
        ref = r.engine.ref(ONE)
        assert ref is not None
        now_s = r.clock.now_s()
        assert r.engine.below.fetchable(ref, now_s + 1.0)
        assert not r.engine.below.fetchable(ref, now_s + 0.1)
        flight = r.signal(ONE, deadline_ms=100.0).flight
        assert flight is not None
        flight.result(PATIENCE_S)
        assert (flight.fetched, flight.computed, stats(r).fetches) == (False, FULL, 0)
        r.rank(ONE)


@pytest.mark.parametrize("part", ["header", "meta", "keys", "values"])
def test_m16_damaged_bytes_are_computed_anew_and_counted(part: str, tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        ref = r.engine.ref(ONE)
        disk = r.engine._tiers.disk
        assert ref is not None
        assert disk is not None
        entry = next(one for one in disk._books._entries.values() if one.ref.user == "one")
        at = {"header": 9, "meta": 60, "keys": -FULL * TOKEN_BYTES, "values": -100}[part]
        flip(tmp_path, entry.place.segment, entry.place.offset + (at if at > 0 else entry.place.nbytes + at))
        flight = r.prepare(ONE).flight
        assert flight is not None
        if part == "meta":  # only who reads all of the file looks at it: what it says is in memory
            assert (flight.computed, stats(r).damaged) == (0, 0)
        else:
            assert (flight.fetched, flight.computed) == (False, FULL)
            assert (stats(r).damaged, found(r, ONE)) == (1, (FULL, 0, 0))
        r.rank(ONE)


def test_a_header_that_was_damaged_is_not_there_after_a_restart(tmp_path: FilePath) -> None:
    for part in (9, 60):
        folder = tmp_path / str(part)
        with disk_rig(folder) as r:
            on_disk_alone(r)
            disk = r.engine._tiers.disk
            assert disk is not None
            place = next(one.place for one in disk._books._entries.values() if one.ref.user == "one")
            others = stats(r).entries - 1
        flip(folder, place.segment, place.offset + part)
        with disk_rig(folder) as r:
            assert found(r, ONE) == (0, 0, 0)
            assert (stats(r).entries, stats(r).damaged) == (others, 1)
            r.rank(ONE)


def flip(folder: FilePath, segment: int, at: int) -> None:
    (path,) = (folder / "disk").glob(f"*/{segment:012}.seg")
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_m26_a_disk_that_takes_nothing_more_turns_the_tier_off_and_no_request_fails(
    code: int, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)

        def refuse(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(SegmentFiles, "write", refuse)
        with caplog.at_level(logging.WARNING):
            for number in range(6):
                r.rank(user(f"more-{number}"))
                settle(r)
        assert (stats(r).off, stats(r).failures) == (f"[Errno {code}] {os.strerror(code)}", 3)
        assert caplog.text.count("a state could not be written to disk") == 1
        assert caplog.text.count("nothing is written to disk any more") == 1
        # What is there is still read.
        flight = r.prepare(ONE).flight
        assert flight is not None
        assert (flight.fetched, flight.computed) == (True, 0)
        r.rank(ONE)


def test_m26_a_disk_that_is_full_once_makes_room_by_itself(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk_rig(tmp_path, disk_bytes=64 * MIB) as r:
        on_disk_alone(r)
        whole, failed = SegmentFiles.write, []

        def once(files: SegmentFiles, *args: Any) -> None:
            if not failed:
                failed.append(1)
                raise OSError(errno.ENOSPC, "full")
            whole(files, *args)

        before = stats(r)
        monkeypatch.setattr(SegmentFiles, "write", once)
        for number in range(24):
            r.rank(user(f"more-{number}"), (1,))
            settle(r)
        after = stats(r)
        assert (after.off, after.failures) == ("", 1)
        assert after.saves > before.saves
        assert after.used_bytes <= after.total_bytes < before.total_bytes
        r.rank(ONE)


def test_m26_unreadable_is_a_miss(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, "bad sector")

        with monkeypatch.context() as patch:
            patch.setattr(SegmentFiles, "read", refuse)
            flight = r.prepare(ONE).flight
        assert flight is not None
        assert (flight.fetched, flight.computed) == (False, FULL)
        assert (stats(r).failures, stats(r).fetches) == (1, 0)
        r.rank(ONE)


@pytest.mark.parametrize("why", ["file", "locked"])
def test_without_its_folder_the_tier_is_off_and_says_why(
    why: str, tmp_path: FilePath, caplog: pytest.LogCaptureFixture
) -> None:
    if why == "file":
        (tmp_path / "disk").write_text("")
        with caplog.at_level(logging.WARNING), disk_rig(tmp_path) as r:
            assert r.engine.cache_stats().disk is None
            r.rank(ONE)
    else:
        with disk_rig(tmp_path) as r, caplog.at_level(logging.WARNING), disk_rig(tmp_path) as other:
            assert other.engine.cache_stats().disk is None
            assert stats(r).entries == 0
            other.rank(ONE)
    assert caplog.text.count("no disk tier") == 1


def test_m8_forgotten_on_disk_and_after_a_restart(tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        on_disk_alone(r, user("two"))
        assert r.scheduler.forget("default", "one") == 1
        assert found(r, ONE) == (0, 0, 0)
        (state,) = [path for path in (tmp_path / "disk").iterdir() if path.is_dir()]
        assert all(b"one" not in (state / name).read_bytes() for name in COPIES), "a name stays behind"
    for keep in COPIES:  # one copy is enough
        (state / keep).rename(state / "kept")
        for name in COPIES:
            (state / name).unlink(missing_ok=True)
        (state / "kept").rename(state / keep)
        with disk_rig(tmp_path) as r:
            assert found(r, ONE) == (0, 0, 0)
            assert found(r, user("two"))[2] == FULL
            assert r.scheduler.forget("default", "two" if keep == COPIES[1] else "nobody") == (
                keep == COPIES[1]
            )
        (state / COPIES[1]).write_bytes((state / keep).read_bytes())
    with disk_rig(tmp_path) as r:
        assert (found(r, ONE), found(r, user("two"))) == ((0, 0, 0), (0, 0, 0))
        r.rank(ONE)  # who returns is a new user, and stays after the next restart
        r.rank(user("two"))
        on_disk_alone(r)
    with disk_rig(tmp_path) as r:
        assert found(r, ONE)[2] == FULL


@pytest.mark.parametrize("during", ["save", "fetch"])
def test_m8_forgotten_during_a_transfer(
    during: str, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Event()

    def hanging(name: str) -> None:
        whole = getattr(SegmentFiles, name)

        def hang(*args: Any) -> Any:
            began.set()
            assert go.wait(PATIENCE_S)
            return whole(*args)

        monkeypatch.setattr(SegmentFiles, name, hang)

    with disk_rig(tmp_path) as r:
        if during == "fetch":
            on_disk_alone(r)
            hanging("read")
            r.signal(ONE)
        else:
            hanging("write")
            for name in ("two", "one", "two"):
                r.rank(user(name))
        assert began.wait(PATIENCE_S)
        tiers = r.engine._tiers
        moving = "one" if during == "fetch" else tiers.disk._saving.plan.ref.user  # type: ignore[union-attr]
        gone = threading.Thread(target=r.scheduler.forget, args=("default", moving))
        gone.start()
        await_true(lambda: found(r, user(moving)) == (0, 0, 0))
        go.set()
        gone.join(PATIENCE_S)
        assert not gone.is_alive()
        settle(r)
        assert found(r, user(moving)) == (0, 0, 0)
        assert stats(r).moving == 0
        r.engine._tiers.books.audit()
        monkeypatch.undo()
    with disk_rig(tmp_path) as r:
        assert found(r, user(moving)) == (0, 0, 0)


def test_m8_if_nobody_can_write_down_who_was_forgotten_their_files_go(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(ForgottenLog, "_append", refuse)
        others = stats(r).entries - 1
        assert others > 0
        assert r.scheduler.forget("default", "one") == 1
        monkeypatch.undo()
        settle(r)
        disk = stats(r)
        assert (disk.entries, disk.live_bytes, disk.segments) == (0, 0, 0), "what is not there is not claimed"
        assert dict(disk.departures)[Cause.FORGOTTEN] == others + 1
        r.engine._tiers.books.audit()
        r.rank(user("two"))
    with disk_rig(tmp_path) as r:
        assert found(r, ONE) == (0, 0, 0)
        r.rank(ONE)


def test_m8_that_their_files_went_must_be_on_disk_before_a_deletion_is_answered(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(ForgottenLog, "_append", refuse)
        monkeypatch.setattr(SegmentFiles, "sync_folder", refuse)
        with pytest.raises(BackendError, match="a later process may find their state"):
            r.scheduler.forget("default", "one")
        monkeypatch.undo()
        settle(r)
        assert (stats(r).entries, stats(r).segments) == (0, 0), "what is not there is not claimed"
        assert stats(r).off != ""


@pytest.mark.parametrize("way", ["cancel", "deadline", "rank", "swap"])
def test_a_fetch_is_interrupted(way: str, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        steps: list[int] = []
        whole = Fetching.step

        def one_page(copy: Fetching, _: int) -> bool:
            steps.append(1)
            if len(steps) == 3:
                threads = threading.Thread(target=interrupt, args=(r, way))
                threads.start()
                if way != "rank":  # its answer comes after this step
                    threads.join(PATIENCE_S)
            return whole(copy, 1)

        monkeypatch.setattr(Fetching, "step", one_page)
        flight = r.signal(ONE).flight
        assert flight is not None
        await_true(flight.done)
        settle(r)
        monkeypatch.undo()
        r.advance(60.0)  # what nobody goes on with ends by its deadline
        settle(r)
        if way != "swap":
            assert stats(r).moving == 0
        r.rank(ONE)
        r.engine._tiers.books.audit()


def interrupt(r: Rig, way: str) -> None:
    if way == "cancel":
        for job in r.scheduler._unanswered():
            job.cancel()
    elif way == "deadline":
        r.advance(11.0)
    elif way == "rank":
        r.ask(ONE).future.result(PATIENCE_S)
    else:
        before = r.engine
        r.swap(1)
        threading.Thread(target=before.below.detach, kwargs={"keep": False}).start()
        r.engine.below.attach(fresh=True)


def test_m7_of_another_model_nothing_is_found_and_its_files_go(tmp_path: FilePath) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        r.engine.below.detach(keep=False)
        r.swap(1)
        r.engine.below.attach(fresh=True)
        assert found(r, ONE) == (0, 0, 0)
        assert not list((tmp_path / "disk").glob("*/*.seg"))
        r.rank(ONE)
        on_disk_alone(r)
    with disk_rig(tmp_path) as r:  # the first model again
        assert found(r, ONE) == (0, 0, 0)
        assert not list((tmp_path / "disk").glob("*/*.seg"))


def test_m17_what_leaves_the_host_next_is_on_disk_before(tmp_path: FilePath) -> None:
    with disk_rig(tmp_path, clean_target=0.5) as r:
        for number in range(12):
            r.rank(user(f"u{number}"), (1,))
            settle(r)
            tiers = r.engine._tiers
            host, moves = tiers.books.host, tiers.books._disk_moves
            assert host is not None
            assert moves is not None
            assert host.free_chunks + moves.clean_chunks >= 0.5 * host.total_chunks or not moves._dirty
        for number in range(8):
            assert max(found(r, user(f"u{number}"))) == FULL, "lost, though there was time to write it"


@pytest.mark.parametrize("direction", ["save", "fetch"])
def test_an_error_that_nobody_foresaw_ends_the_transfer(
    direction: str, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with disk_rig(tmp_path) as r:
        if direction == "fetch":
            on_disk_alone(r)

        def fail(*_: object) -> None:
            raise MemoryError("no more")

        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(SegmentFiles, "read" if direction == "fetch" else "write", fail)
            r.prepare(ONE)
            r.rank(user("two"))
            settle(r)
        assert "no more" in caplog.text
        assert stats(r).moving == 0
        r.engine._tiers.books.audit()
        r.rank(ONE)


def test_the_speed_of_the_disk_is_that_of_large_reads(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        tier = r.engine._tiers.disk
        assert tier is not None
        monkeypatch.setattr(disk, "MEASURABLE_BYTES", FULL * TOKEN_BYTES + 1)
        r.prepare(ONE)
        r.rank(ONE)
        assert tier._bytes_per_s == disk.FETCHED_BYTES_PER_S
        monkeypatch.setattr(disk, "MEASURABLE_BYTES", FULL * TOKEN_BYTES)
        on_disk_alone(r)
        before, whole = tier._bytes_per_s, Fetching.step

        def slow(copy: Fetching, budget: int) -> bool:
            done = whole(copy, budget)
            copy.measured_s = 1.0
            return done

        monkeypatch.setattr(Fetching, "step", slow)
        r.prepare(ONE)
        assert tier._bytes_per_s == pytest.approx(before + 0.2 * (FULL * TOKEN_BYTES - before))
        r.rank(ONE)


def test_m8_a_deletion_waits_for_the_disk_and_ranking_does_not(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk_rig(tmp_path) as r:
        on_disk_alone(r)
        go, began, whole = threading.Event(), threading.Event(), ForgottenLog._append

        def hang(log: ForgottenLog, *args: Any) -> None:
            began.set()
            assert go.wait(PATIENCE_S)
            whole(log, *args)

        monkeypatch.setattr(ForgottenLog, "_append", hang)
        deletion = threading.Thread(target=r.scheduler.forget, args=("default", "one"))
        deletion.start()
        assert began.wait(PATIENCE_S)
        assert found(r, ONE) == (0, 0, 0)
        job = r.ask(user("two"))
        r.right(job, job.future.result(PATIENCE_S))
        assert deletion.is_alive(), "it was answered before it was done"
        go.set()
        deletion.join(PATIENCE_S)
        assert not deletion.is_alive()
