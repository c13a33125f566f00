"""The log of served lists: what is remembered, what is written, what is given up and counted."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from slate_metric_cases import POOL, made, result

from patience import await_true
from relaygr.config.slate import SlateConfig
from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError, ConfigError, RequestError
from relaygr.listwise.log_files import LogFiles, log_files
from relaygr.listwise.pool import Head, Shown
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.result import Exploration
from relaygr.listwise.slate_log import Drawn, SlateRecord, read_records
from relaygr.serving.slate.inflation import ListName
from relaygr.serving.slate.log_metrics import Fate, LogMetrics
from relaygr.serving.slate.log_writer import SlateLogWriter
from relaygr.serving.slate.observed import Seen
from relaygr.serving.slate.waiting_lists import ServedList, WaitingLists

HEADS = POOL.heads
SEEN = Seen(2, ((1.0,), (None,)), more=False)
DRAWN = Drawn(temperature=0.1, top=30)


class Log:
    """A writer and what it counts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.clock = folder, ManualClock(100.0)
        self._registry = CollectorRegistry()
        self.metrics = LogMetrics(self._registry, lambda: "m")
        config = SlateConfig(value="v", log=str(folder), **settings)
        self.writer = SlateLogWriter(config, HEADS, self.metrics, self.clock)

    def serve(self, name: str, tenant: str = "shop", **more: Any) -> ListName:
        named = ListName(tenant, name)
        self.writer.served(served(named, **more))
        return named

    def count(self, fate: Fate) -> float:
        labels = {"model": "m", "fate": fate.value}
        return self._registry.get_sample_value("relaygr_slate_log_lists_total", labels) or 0.0

    def lost(self, number: int) -> bool:
        return self.count(Fate.FAILED) == number

    def gauge(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"relaygr_slate_log_{name}", {"model": "m"})

    def records(self) -> list[SlateRecord]:
        return list(read_records(self.folder))


def served(name: ListName, user: str = "ann", explored: bool = False, **ask: Any) -> ServedList:
    one = result()
    if explored:
        one = result(exploration=Exploration.DRAWN, log_propensities=(-1.0, -0.5, -0.25))
    asked = SlateAsk(request_id="seed 3", length=3, **ask)
    return ServedList.of(name, user, asked, made(one), "3", DRAWN)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    one = Log(tmp_path / "log")
    yield one
    one.writer.close(5.0)


def test_a_list_and_its_outcome_are_one_line(log: Log) -> None:
    shown = Shown(ids=np.array([8, 9]), watch=np.array([1.0, 2.0]), page=2)
    first = log.serve("r1", shown=shown, consumed=5, slots=(0, 1, 0))
    second = log.serve("r2", tenant="default", explored=True)
    assert log.gauge("waiting") == 2
    assert log.writer.settle(first, SEEN)
    assert log.writer.settle(second, Seen(3, ((1.0,), (0.0,), (1.0,)), more=True))
    assert not log.writer.settle(first, SEEN)  # once
    assert log.writer.close(5.0)
    one, other = log.records()
    assert (one.tenant, one.user, one.request, one.seed) == ("shop", "ann", "r1", "3")
    assert (one.items, one.asked, one.consumed, one.more) == ((0, 1, 3), 3, 2, False)
    assert one.labels == ((1.0,), (None,))
    assert one.outputs == ((0.0,),) * 3
    assert one.candidates is not None
    assert one.candidates.items == (0, 1, 2, 3)
    assert (one.earlier, one.earlier_watch, one.page, one.session) == ((8, 9), 3.0, 2, 5)
    assert (one.slots, one.generator, one.versions[:2]) == ((0, 1, 0), "greedy", ("v", "r"))
    assert (one.log_propensity, one.drawn) == ((), None)
    assert (other.tenant, other.more) == ("", True)
    assert (other.log_propensity, other.drawn) == ((-1.0, -0.5, -0.25), DRAWN)
    assert (log.count(Fate.WRITTEN), log.gauge("waiting"), log.gauge("queued")) == (2, 0, 0)


def test_outcomes_are_of_the_tenant_that_was_served(log: Log) -> None:
    name = log.serve("r1")
    assert not log.writer.settle(ListName("other", "r1"), SEEN)
    assert not log.writer.settle(ListName("shop", "r2"), SEEN)
    assert log.writer.settle(name, SEEN)


def test_more_than_was_shown_is_refused_and_the_list_waits_on(log: Log) -> None:
    name = log.serve("r1")
    for seen, field, part in (
        (Seen(4, ((1.0,),) * 4, more=False), "outcomes[0].labels", "4 positions, 3 were shown"),
        (Seen(2, ((1.0,),) * 2, more=True), "outcomes[0].more", "left after 2"),
    ):
        with pytest.raises(RequestError, match=part) as found:
            log.writer.check(name, seen, "outcomes[0]", "labels")
        assert found.value.field == field
    log.writer.check(ListName("other", "r1"), Seen(9, (), more=False), "outcomes[0]", "labels")
    log.writer.check(name, None, "outcomes[0]", "utility")
    assert log.writer.settle(name, SEEN)


def test_an_outcome_without_positions_settles_a_list_that_has_no_line(log: Log) -> None:
    assert log.writer.settle(log.serve("r1"), None)
    assert log.writer.close(5.0)
    assert log.records() == []
    assert log.count(Fate.UNOBSERVED) == 1


def test_a_list_waits_for_a_time(log: Log) -> None:
    early = log.serve("r1")
    log.clock.advance(3599.0)
    late = log.serve("r2")
    log.clock.advance(1.0)
    await_true(lambda: log.count(Fate.TIMEOUT) == 1)
    assert not log.writer.settle(early, SEEN)
    assert log.writer.settle(late, SEEN)


def test_lists_wait_within_a_number_and_a_memory() -> None:
    registry = CollectorRegistry()
    metrics = LogMetrics(registry, lambda: "m")

    def forgotten() -> float | None:
        labels = {"model": "m", "fate": "forgotten"}
        return registry.get_sample_value("relaygr_slate_log_lists_total", labels)

    few = WaitingLists(60.0, 2, 1 << 30, metrics)
    names = [ListName("shop", f"r{at}") for at in range(4)]
    for name in names:
        few.add(served(name), 0.0)
    assert [few.length(name) for name in names] == [None, None, 3, 3]
    assert forgotten() == 2
    small = WaitingLists(60.0, 100, 3 * served(names[0]).nbytes, metrics)
    for name in names:
        small.add(served(name), 0.0)
    assert [small.take(name) is not None for name in names] == [False, True, True, True]
    assert (len(small), forgotten()) == (0, 3)
    small.add(served(names[0]), 0.0)
    small.add(served(names[0]), 0.0)  # served again
    assert len(small) == 1


def test_what_waits_keeps_neither_batches_nor_vectors() -> None:
    batch = np.zeros((500, 1), np.float32)
    whole = made(result(pool=()))
    one = replace(whole, pool=replace(whole.pool, outputs=batch[:4]))
    kept = ServedList.of(ListName("shop", "r"), "ann", SlateAsk(request_id="r", length=3), one, "", None)
    assert kept.pool.outputs.base is None
    assert kept.pool.vectors is None
    assert not kept.pool.attributes
    assert kept.result.explanation is None


class Slow(LogFiles):
    """A disk that answers when it is told to, or not at all."""

    def __init__(self) -> None:
        self.go, self.entered, self.written = threading.Event(), threading.Event(), 0

    def append(self, lines: Sequence[bytes]) -> None:
        self.entered.set()
        assert self.go.wait(30)
        self.written += len(lines)


def test_a_slow_disk_holds_up_nobody_and_what_is_too_much_is_dropped(tmp_path: Path) -> None:
    log, disk = Log(tmp_path, log_queue=3), Slow()
    log.writer._files = disk
    try:
        assert log.writer.settle(log.serve("first"), SEEN)
        assert disk.entered.wait(30)
        names = [log.serve(f"r{at}") for at in range(10)]
        assert all(log.writer.settle(name, SEEN) for name in names)
        assert log.count(Fate.OVERFLOW) == 7
        assert log.gauge("queued") == 3
        assert not log.writer.close(0.1)
    finally:
        disk.go.set()
    await_true(lambda: disk.written == 4)
    assert log.writer.close(10.0)
    assert log.count(Fate.WRITTEN) == 4


def test_lists_without_outcome_are_given_up_at_the_end(log: Log) -> None:
    log.serve("r1")
    assert log.writer.close(5.0)
    assert (log.count(Fate.STOPPED), log.gauge("waiting")) == (1, 0)


def test_a_full_disk_is_counted_told_once_and_over_when_it_is(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Part of a line may get to a full disk: it is taken back."""
    log.writer.settle(log.serve("before"), SEEN)
    await_true(lambda: log.count(Fate.WRITTEN) == 1)
    whole, opened = log_files(log.folder)[0].stat().st_size, Path.open

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def tell(self) -> int:
            return int(self._file.tell())

        def writelines(self, lines: Sequence[bytes]) -> None:
            self._file.write(lines[0][:20])
            self._file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path: Path, mode: str = "r", *rest: Any) -> Any:
        file = opened(path, mode, *rest)
        return Full(file) if mode == "ab" else file

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "relaygr.serving"):
        patch.setattr(Path, "open", full)
        for at in range(3):
            assert log.writer.settle(log.serve(f"lost-{at}"), SEEN)
            await_true(partial(log.lost, at + 1))
        assert log_files(log.folder)[0].stat().st_size == whole
        assert [line.message for line in caplog.records if "No space left" in line.message] != []
        assert len([line for line in caplog.records if "is not written" in line.message]) == 1
        log.clock.advance(61.0)
        log.writer.settle(log.serve("lost-3"), SEEN)
        await_true(partial(log.lost, 4))
    assert len([line for line in caplog.records if "is not written" in line.message]) == 2
    log.writer.settle(log.serve("after"), SEEN)
    assert log.writer.close(5.0)
    assert [one.request for one in log.records()] == ["before", "after"]


def test_what_no_reader_takes_is_not_written(log: Log) -> None:
    endless = Shown(ids=np.array([8, 9]), watch=np.array([1.7e308, 1.7e308]))
    log.writer.settle(log.serve("r1", shown=endless), SEEN)
    await_true(lambda: log.count(Fate.FAILED) == 1)
    log.writer.settle(log.serve("r2"), SEEN)
    assert log.writer.close(5.0)
    assert [one.request for one in log.records()] == ["r2"]


def test_a_folder_that_cannot_be_written_or_is_of_other_heads_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"slate\.log: cannot write .*file"):
        Log(tmp_path / "file")
    LogFiles(tmp_path / "log", 1024, 4096)
    first = Log(tmp_path / "log")
    first.writer.close(5.0)
    config = SlateConfig(value="v", log=str(tmp_path / "log"))
    with pytest.raises(ConfigError, match=r"slate\.log: .*is a log of the heads"):
        SlateLogWriter(config, (Head("other"),), first.metrics)


def test_files_are_full_and_old_ones_go(tmp_path: Path) -> None:
    files, line = LogFiles(tmp_path, 1000, 3000), b"x" * 99 + b"\n"
    for at in range(100):
        files.append([line])
        sizes = [path.stat().st_size for path in log_files(tmp_path)]
        assert sum(sizes) <= 3000
        assert max(sizes) <= 1000
        assert sum(sizes) >= min(2000, 100 * (at + 1))
    # Small files of many starts are old ones by their size, and not by their number.
    for _ in range(5):
        LogFiles(tmp_path, 1000, 3000).append([line])
    assert len(log_files(tmp_path)) >= 6


def test_processes_share_a_folder_and_no_file(tmp_path: Path) -> None:
    one, other = (LogFiles(tmp_path, 1 << 20, 4 << 20) for _ in range(2))
    for at in range(20):
        one.append([b"one %d\n" % at])
        other.append([b"other %d\n" % at])
    texts = [path.read_bytes().split() for path in log_files(tmp_path)]
    assert [set(words[::2]) for words in texts] == [{b"one"}, {b"other"}]
    # A file that was moved away begins anew.
    log_files(tmp_path)[0].rename(tmp_path / "taken")
    one.append([b"one 20\n"])
    assert log_files(tmp_path)[0].read_bytes() == b"one 20\n"


def test_a_folder_that_was_deleted_and_made_again_can_be_read(log: Log) -> None:
    """Lists are lost while it is not there; behind that it has all that readers need."""
    log.writer.settle(log.serve("before"), SEEN)
    await_true(lambda: log.count(Fate.WRITTEN) == 1)
    shutil.rmtree(log.folder)
    log.writer.settle(log.serve("between"), SEEN)
    await_true(partial(log.lost, 1))
    log.folder.mkdir()
    log.writer.settle(log.serve("after"), SEEN)
    await_true(lambda: log.count(Fate.WRITTEN) == 2)
    assert [one.request for one in log.records()] == ["after"]
    (log.folder / "log.json").unlink()  # moved away with full files, by a rotation
    log.writer.settle(log.serve("later"), SEEN)
    assert log.writer.close(5.0)
    assert [one.request for one in log.records()] == ["after", "later"]


def test_a_file_whose_end_cannot_be_taken_back_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LogFiles(tmp_path, 1 << 20, 4 << 20)
    files.append([b"whole\n"])

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("relaygr.listwise.log_files.os.fsync", refuse)
        patch.setattr("relaygr.listwise.log_files.os.truncate", refuse)
        patch.setattr(files, "_file_bytes", 1)
        with pytest.raises(BackendError, match="Input/output"):
            files.append([b"torn\n"])
    files.append([b"next\n"])
    assert [path.read_bytes() for path in log_files(tmp_path)] == [b"whole\ntorn\n", b"next\n"]


def test_a_log_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.writer.close(5.0)
    line = {"user": "u", "items": [1], "outputs": [[0.5]], "asked": 1, "consumed": 1, "labels": [[1.0]]}
    (tmp_path / "lists-1.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    (record,) = log.records()
    assert (record.tenant, record.drawn) == ("", None)
