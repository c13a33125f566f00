"""Lanes: layers are events, the most urgent goes first, and whatever goes wrong ends one haul only."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from patience import PATIENCE_S, await_true
from relaygr.core.clock import ManualClock
from relaygr.core.errors import BackendError
from relaygr.memory.lane import Declined, Lanes, Rush, State, Ticket
from relaygr.memory.lanes import BYTES_PER_S, thread_lanes
from relaygr.memory.virtual import virtual_lanes

FAR = 1e9
# A thread that dies is what some of these are about.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Cargo:
    """Layers that wait at a door, if there is one; notes in `log` what was carried."""

    def __init__(
        self, name: str = "", layers: int = 3, log: list[str] | None = None, nbytes: int = 1 << 20
    ) -> None:
        self.name, self.layers, self.layer_bytes = name, layers, nbytes
        self.log = [] if log is None else log
        self.errors: dict[int, BaseException] = {}
        self.entered, self.door = threading.Semaphore(0), threading.Semaphore(0)
        self.guarded = False

    def carry(self, layer: int) -> None:
        if self.guarded:
            self.entered.release()
            assert self.door.acquire(timeout=PATIENCE_S)
        if layer in self.errors:
            raise self.errors[layer]
        self.log.append(f"{self.name}{layer}")

    def guard(self) -> Cargo:
        self.guarded = True
        return self

    def await_copy(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = thread_lanes(1, ManualClock())
    yield made
    made.close()


def launched(found: Ticket | Declined) -> Ticket:
    assert isinstance(found, Ticket), found
    return found


def test_m21_each_layer_is_an_event(lanes: Lanes) -> None:
    cargo = Cargo().guard()
    ticket = launched(lanes.h2d.launch(cargo, Rush.RANK, FAR))
    for layer in range(3):
        cargo.await_copy()
        assert not ticket.wait(layer, 0.0)
        assert (ticket.ready, ticket.state) == (layer, State.LAUNCHED)
        cargo.door.release()
        assert ticket.wait(layer, PATIENCE_S)
    assert ticket.settle(PATIENCE_S)
    assert (ticket.state, ticket.finished, ticket.ending) == (State.DONE, True, False)
    await_true(lambda: lanes.h2d.stats().bytes_total >= 3 << 20)  # counted once the waiters are told
    stats = lanes.h2d.stats()
    assert (stats.done, stats.waiting, stats.bytes_total) == (1, 0, 3 << 20)


def test_rankings_go_before_prefetches_and_those_before_stores(lanes: Lanes) -> None:
    log: list[str] = []
    first = Cargo("x", 2, log).guard()
    begun = launched(lanes.d2h.launch(first, Rush.STORE, FAR))
    first.await_copy()
    tickets = [
        launched(lanes.d2h.launch(Cargo("s", 2, log), Rush.STORE, FAR)),
        launched(lanes.h2d.launch(Cargo("p", 2, log), Rush.PREFETCH, FAR)),
        launched(lanes.h2d.launch(Cargo("late", 2, log), Rush.RANK, 2e8)),
        launched(lanes.h2d.launch(Cargo("soon", 2, log), Rush.RANK, 1e8)),
    ]
    first.guarded = False
    first.door.release()
    for ticket in [begun, *tickets]:
        assert ticket.settle(PATIENCE_S)
    # Between the layers of a store everything else goes; rankings of one pass go layer by layer.
    assert log == ["x0", "soon0", "late0", "soon1", "late1", "p0", "p1", "x1", "s0", "s1"]


def test_a_prefetch_that_a_ranking_waits_for_overtakes(lanes: Lanes) -> None:
    log: list[str] = []
    door = Cargo("x", 1, log).guard()
    lanes.h2d.launch(door, Rush.RANK, FAR)
    door.await_copy()
    lanes.h2d.launch(Cargo("a", 1, log), Rush.PREFETCH, FAR)
    wanted = launched(lanes.h2d.launch(Cargo("b", 1, log), Rush.PREFETCH, FAR))
    last = launched(lanes.h2d.launch(Cargo("c", 1, log), Rush.PREFETCH, FAR))
    wanted.hurry(Rush.RANK)
    door.door.release()
    assert last.settle(PATIENCE_S)
    assert log == ["x0", "b0", "a0", "c0"]


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("error", [BackendError("damaged"), RuntimeError("no such memory")])
def test_a_failed_copy_ends_its_haul_only(lanes: Lanes, layer: int, error: Exception) -> None:
    bad, good, ends = Cargo(), Cargo(), []
    bad.errors[layer] = error
    ticket = launched(lanes.h2d.launch(bad, Rush.RANK, FAR, lambda: ends.append(1)))
    assert not ticket.wait(2, PATIENCE_S)
    assert ticket.settle(PATIENCE_S)
    assert (ticket.state, ticket.ready) == (State.FAILED, layer)
    assert str(error) in ticket.reason
    assert launched(lanes.h2d.launch(good, Rush.RANK, FAR)).wait(2, PATIENCE_S)
    assert ends == [1]
    assert lanes.h2d.stats().failed == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_a_dead_thread_fails_its_haul_and_is_replaced(threads: int) -> None:
    lanes = thread_lanes(threads, ManualClock())
    bad = Cargo()
    bad.errors[1] = SystemExit()  # ends a thread without a word
    ticket = launched(lanes.h2d.launch(bad, Rush.RANK, FAR))
    assert ticket.settle(PATIENCE_S)
    assert (ticket.state, ticket.reason, ticket.ready) == (State.FAILED, "the copy thread died", 1)
    for _ in range(3):
        assert launched(lanes.d2h.launch(Cargo(), Rush.STORE, FAR)).wait(2, PATIENCE_S)
    await_true(lambda: lanes.h2d.stats().restarts > 0)  # another thread may have carried those
    assert lanes.h2d.stats().restarts == 1
    lanes.close()


@pytest.mark.parametrize("layer", range(3))
def test_m19_cancelled_when_the_running_copy_has_ended(lanes: Lanes, layer: int) -> None:
    cargo, ends = Cargo().guard(), []
    ticket = launched(lanes.h2d.launch(cargo, Rush.RANK, FAR, lambda: ends.append(1)))
    for _ in range(layer):
        cargo.await_copy()
        cargo.door.release()
    cargo.await_copy()
    ticket.cancel()
    ticket.cancel("again")
    assert not ticket.wait(2, PATIENCE_S)  # whoever waits knows at once
    assert (ticket.finished, ticket.settle(0.0), ends) == (False, False, [])
    cargo.door.release()
    assert ticket.settle(PATIENCE_S)
    assert (ticket.state, ticket.reason, ticket.ready) == (State.CANCELLED, "cancelled", layer)
    await_true(lambda: bool(ends))
    assert ends == [1]
    assert len(cargo.log) == layer + 1


def test_what_waits_is_cancelled_at_once_and_never_copied(lanes: Lanes) -> None:
    door, waits = Cargo().guard(), Cargo("w")
    lanes.h2d.launch(door, Rush.RANK, FAR)
    door.await_copy()
    ticket = launched(lanes.h2d.launch(waits, Rush.RANK, FAR))
    ticket.cancel()
    assert (ticket.finished, ticket.state) == (True, State.CANCELLED)
    assert lanes.h2d.stats().cancelled == 1
    door.guarded = False
    door.door.release()
    assert launched(lanes.h2d.launch(Cargo(), Rush.STORE, FAR)).settle(PATIENCE_S)
    assert waits.log == []


def test_a_haul_that_is_not_done_in_time_fails(lanes: Lanes) -> None:
    clock = ManualClock()
    lanes = thread_lanes(1, clock)
    cargo = Cargo().guard()
    ticket = launched(lanes.h2d.launch(cargo, Rush.RANK, 5.0))
    cargo.await_copy()
    clock.advance(5.0)
    cargo.door.release()
    assert ticket.settle(PATIENCE_S)
    assert (ticket.state, ticket.reason, ticket.ready) == (State.FAILED, "it was not done in time", 1)
    lanes.close()


def test_queues_are_bounded_and_full_says_so() -> None:
    lanes = thread_lanes(1, ManualClock(), queue_max=2)
    door = Cargo().guard()
    lanes.h2d.launch(door, Rush.RANK, FAR)
    door.await_copy()
    last = launched(lanes.h2d.launch(Cargo(), Rush.RANK, FAR))
    assert lanes.h2d.launch(Cargo(), Rush.RANK, FAR) is Declined.FULL
    stored = launched(lanes.d2h.launch(Cargo(), Rush.STORE, FAR))  # has a queue of its own
    door.guarded = False
    door.door.release(1)
    assert last.settle(PATIENCE_S)
    assert stored.settle(PATIENCE_S)
    assert dict(lanes.h2d.stats().declined)[Declined.FULL] == 1
    lanes.close()
    assert lanes.h2d.launch(Cargo(), Rush.RANK, FAR) is Declined.CLOSED


def test_m25_what_would_be_late_is_not_begun(lanes: Lanes) -> None:
    one_s = int(BYTES_PER_S)
    door = Cargo(layers=1, nbytes=one_s).guard()
    lanes.h2d.launch(door, Rush.RANK, FAR)
    door.await_copy()
    lanes.d2h.launch(Cargo(layers=5, nbytes=one_s), Rush.STORE, FAR)  # goes behind every load
    assert lanes.h2d.estimate_s(one_s, Rush.RANK) == pytest.approx(2.0)
    assert lanes.h2d.estimate_s(one_s, Rush.STORE) == pytest.approx(7.0)
    assert lanes.h2d.launch(Cargo(layers=2, nbytes=one_s), Rush.RANK, 2.9) is Declined.LATE
    in_time = launched(lanes.h2d.launch(Cargo(layers=2, nbytes=one_s), Rush.RANK, 3.1))
    door.door.release()
    assert in_time.settle(PATIENCE_S)
    assert in_time.state is State.DONE


def test_m25_what_is_passed_by_for_long_is_tried_again(lanes: Lanes) -> None:
    nbytes = int(2 * BYTES_PER_S)
    assert lanes.h2d.estimate_s(nbytes, Rush.RANK) > 1.0
    for _ in range(36):
        lanes.h2d.passed_by()
    assert lanes.h2d.estimate_s(nbytes, Rush.RANK) < 1.0


def test_m23_speed_is_measured() -> None:
    clock = ManualClock()
    lanes = thread_lanes(1, clock)
    cargo = Cargo(layers=2, nbytes=1 << 30).guard()
    ticket = launched(lanes.h2d.launch(cargo, Rush.RANK, FAR))
    for _ in range(2):
        cargo.await_copy()
        clock.advance(0.25)
        cargo.door.release()
    assert ticket.settle(PATIENCE_S)
    assert launched(lanes.h2d.launch(Cargo(layers=1, nbytes=0), Rush.RANK, FAR)).settle(PATIENCE_S)
    assert lanes.h2d.stats().gib_per_s == pytest.approx(4.0)
    assert lanes.h2d.estimate_s(1 << 30, Rush.RANK) < (1 << 30) / BYTES_PER_S
    lanes.close()


def test_closing_cancels_what_waits_and_ends_the_threads(lanes: Lanes) -> None:
    cargo = Cargo().guard()
    ticket = launched(lanes.h2d.launch(cargo, Rush.RANK, FAR))
    waits = launched(lanes.d2h.launch(Cargo(), Rush.STORE, FAR))
    cargo.await_copy()
    lanes.close()
    assert waits.state is State.CANCELLED
    cargo.door.release()
    assert ticket.settle(PATIENCE_S)
    assert ticket.state is State.CANCELLED


def test_lanes_that_nobody_has_any_more_end_their_threads() -> None:
    lanes = thread_lanes(2, ManualClock())
    crew = lanes.h2d._crew  # type: ignore[attr-defined]
    assert launched(lanes.h2d.launch(Cargo(), Rush.RANK, FAR)).settle(PATIENCE_S)
    threads = list(crew._threads)
    assert len(threads) == 2
    gone = weakref.ref(lanes.h2d)
    del lanes
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_many_threads_carry_each_layer_once_and_in_order() -> None:
    lanes = thread_lanes(3, ManualClock(), queue_max=1000)
    cargos = [Cargo("", 5) for _ in range(100)]
    tickets = [launched(lanes.h2d.launch(cargo, Rush(i % 3), FAR)) for i, cargo in enumerate(cargos)]
    for ticket, cargo in zip(tickets, cargos, strict=True):
        assert ticket.settle(PATIENCE_S)
        assert cargo.log == ["0", "1", "2", "3", "4"]
    lanes.close()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="threads"):
        thread_lanes(0, ManualClock())
    for bad in ((0.0, 0.0), (1.0, -1.0)):
        with pytest.raises(ValueError):
            virtual_lanes(ManualClock(), *bad)


def pass_ms(layers: int, compute_ms: float, copy_ms: float) -> float:
    """A pass whose layer i waits for layer i of a load that was launched just before it."""
    clock = ManualClock()
    lanes = virtual_lanes(clock, 1e6)
    cargo = Cargo(layers=layers, nbytes=int(copy_ms * 1e3))
    ticket = launched(lanes.h2d.launch(cargo, Rush.RANK, FAR))
    for layer in range(layers):
        assert ticket.wait(layer, FAR)
        clock.advance(compute_ms / 1e3)
    assert ticket.state is State.DONE
    return clock.now_s() * 1e3


def test_m21_the_vector() -> None:
    assert pass_ms(8, 1.0, 2.0) == pytest.approx(17.0)


@pytest.mark.parametrize("layers", [1, 2, 8, 40])
@pytest.mark.parametrize(("compute", "copy"), [(1, 2), (2, 1), (1, 1), (5, 0.1), (0.1, 5), (3, 4)])
def test_m21_transfer_and_compute_overlap(layers: int, compute: float, copy: float) -> None:
    bound = max(compute, copy) * layers + min(compute, copy)
    assert pass_ms(layers, compute, copy) <= 1.1 * bound
    assert pass_ms(layers, compute, copy) == pytest.approx(bound)


def test_a_virtual_lane_fails_cancels_and_is_late_like_a_real_one() -> None:
    clock = ManualClock()
    lanes, log = virtual_lanes(clock, 1e6, latency_s=0.5), []  # a second and a half a layer
    first = launched(lanes.h2d.launch(Cargo("a", 2, log, 10**6), Rush.PREFETCH, FAR))
    clock.advance(1.0)
    second = launched(lanes.h2d.launch(Cargo("b", 2, log, 10**6), Rush.RANK, FAR))
    store = launched(lanes.d2h.launch(Cargo("s", 1, log, 10**6), Rush.STORE, FAR))
    assert not second.wait(0, 1.9)
    assert clock.now_s() == pytest.approx(2.9)
    assert second.wait(0, 0.1)
    assert store.wait(0, 0.0)  # beside the other direction
    assert log == ["a0", "b0", "s0"]
    second.cancel()
    assert not second.wait(1, FAR)
    assert second.settle()
    assert second.state is State.CANCELLED
    clock.advance(10.0)
    assert lanes.h2d.stats().done == 1
    assert first.state is State.DONE
    bad = Cargo("c", 2, log, 10**6)
    bad.errors[1] = BackendError("damaged")
    failed = launched(lanes.h2d.launch(bad, Rush.RANK, FAR))
    assert not failed.wait(1, FAR)
    assert (failed.state, failed.reason) == (State.FAILED, "damaged")
    assert lanes.h2d.launch(bad, Rush.RANK, clock.now_s() + 1.9) is Declined.LATE
    late = launched(lanes.h2d.launch(Cargo("d", 2, log, 10**6), Rush.RANK, clock.now_s() + 2.1))
    lanes.h2d.launch(Cargo("e", 1, log, 10**6), Rush.RANK, FAR)
    assert not late.wait(1, FAR)
    assert late.reason == "it was not done in time"
    lanes.close()
    assert lanes.h2d.launch(bad, Rush.RANK, FAR) is Declined.CLOSED
