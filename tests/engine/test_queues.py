"""Order and bounds of what waits, and deadlines that fire by themselves."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fakes import await_true, request, user

from relaygr.core.clock import ManualClock, MonotonicClock
from relaygr.core.errors import BackendError, CancelledError, DeadlineError, RequestError
from relaygr.engine.deadlines import DeadlineTimer, deadline_ms
from relaygr.engine.jobs import Flight, Job, RankJob
from relaygr.engine.queues import DeadlineQueue, FlightQueue, RankQueue


def job(deadline_s: float, tokens: int = 0, queued_s: float = 0.0) -> RankJob:
    return RankJob(request("u"), deadline_s, queued_s, tokens)


def test_earliest_deadline_first_and_arrival_for_ties() -> None:
    queue: DeadlineQueue[RankJob] = DeadlineQueue(10)
    jobs = [job(deadline) for deadline in (3, 1, 2, 1, 3)]
    assert all(queue.put(one) for one in jobs)
    taken = [queue.take() for _ in jobs]
    assert taken == [jobs[i] for i in (1, 3, 2, 0, 4)]
    assert queue.take() is None


def test_a_job_put_back_keeps_its_place_among_equals() -> None:
    queue: DeadlineQueue[RankJob] = DeadlineQueue(2)
    first, second = job(1), job(1)
    assert queue.put(first)
    assert queue.put(second)
    assert queue.take() is first
    queue.back(first)
    assert queue.take() is first
    assert queue.take() is second


def test_the_limit_counts_only_who_waits() -> None:
    queue: DeadlineQueue[RankJob] = DeadlineQueue(3)
    jobs = [job(i) for i in range(3)]
    assert all(queue.put(one) for one in jobs)
    assert not queue.put(job(0))
    jobs[1].cancel()
    assert (len(queue), list(queue)) == (2, [jobs[0], jobs[2]])
    late = job(-1)
    assert queue.put(late)
    assert not queue.put(job(0))
    assert queue.head() is late
    assert len(queue._heap) == 3
    for one in (late, *jobs):
        one.cancel()
    assert queue.head() is None
    assert not queue._heap


def test_a_queue_without_room_takes_nothing() -> None:
    assert not FlightQueue(0).put(Flight(user("u", 5), 1, 0))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["put", "take", "cancel", "back"]), st.integers(0, 5)), max_size=60)
)
def test_any_history_of_a_queue_equals_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    queue: DeadlineQueue[RankJob] = DeadlineQueue(8)
    waiting: list[RankJob] = []
    taken: list[RankJob] = []
    for step, number in steps:
        if step == "put":
            one = job(number)
            fits = len(waiting) < 8
            assert queue.put(one) is fits
            waiting += [one] if fits else []
        elif step == "take":
            want = min(waiting, key=lambda one: (one.deadline_s, one.arrival), default=None)
            assert queue.take() is want
            if want is not None:
                waiting.remove(want)
                taken.append(want)
        elif step == "cancel" and waiting:
            waiting.pop(number % len(waiting)).cancel()
        elif step == "back" and taken and len(waiting) < 8:
            waiting.append(taken.pop())
            queue.back(waiting[-1])
        assert len(queue) == len(waiting)


def test_batches_are_limited_by_count_and_tokens() -> None:
    queue = RankQueue(100)
    jobs = [job(i, tokens) for i, tokens in enumerate((500, 40, 50, 20, 0, 0))]
    assert all(queue.put(one) for one in jobs)
    assert queue.batch(16, 100) == jobs[:1]  # too large for a batch, alone all right
    assert queue.batch(16, 100) == jobs[1:3]
    assert queue.batch(2, 100) == jobs[3:5]
    assert queue.batch(2, 100) == jobs[5:]
    assert queue.batch(2, 100) == []


def test_the_job_that_closes_a_batch_keeps_its_place() -> None:
    queue = RankQueue(100)
    jobs = [job(1, tokens) for tokens in (60, 60, 10)]
    assert all(queue.put(one) for one in jobs)
    assert [queue.batch(16, 100) for _ in range(2)] == [jobs[:1], jobs[1:]]


def test_waiting_for_batch_mates_ends_with_the_oldest_or_half_way_to_a_deadline() -> None:
    queue = RankQueue(100)
    assert queue.spare_s(4, 1.0, 0.0) <= 0
    queue.put(job(100, queued_s=10))
    assert queue.spare_s(4, 1.0, 10.5) == pytest.approx(0.5)
    queue.put(job(11, queued_s=10.4))
    assert queue.spare_s(4, 1.0, 10.5) == pytest.approx(0.2)
    assert queue.spare_s(4, 0.0, 10.5) <= 0
    assert queue.spare_s(2, 1.0, 10.5) <= 0  # a whole batch


def test_signals_join_the_flight_of_their_user() -> None:
    queue = FlightQueue(2)
    first = Flight(user("u", 20), 5, 0)
    assert queue.join(first) is None
    assert queue.put(first)
    assert queue.join(Flight(user("u", 20, tenant_name="other"), 5, 0)) is None
    longer, shorter = user("u", 30), user("u", 10)
    assert queue.join(Flight(longer, 3, 0)) is first
    assert (first.history, first.deadline_s, first.urgent_s) == (longer, 5, 3)
    assert queue.join(Flight(shorter, 9, 0)) is first
    assert (first.history, first.deadline_s, first.urgent_s) == (longer, 9, 3)
    assert queue.take() is first
    assert queue.join(Flight(longer, 3, 0)) is first  # while a step of it runs
    first.cancel()
    assert queue.join(Flight(longer, 3, 0)) is None
    second = Flight(longer, 3, 0)
    assert queue.put(second)
    queue.land(first)  # late
    assert queue.join(Flight(longer, 3, 0)) is second
    queue.land(second)
    assert queue.join(Flight(longer, 3, 0)) is None


def test_a_more_urgent_signal_moves_its_flight_forward() -> None:
    queue = FlightQueue(9)
    flights = [Flight(user(name, 20), 5, 0) for name in "abc"]
    assert all(queue.put(one) for one in flights)
    assert queue.join(Flight(user("c", 20), 4, 0)) is flights[2]
    assert queue.join(Flight(user("a", 20), 6, 0)) is flights[0]
    flights[1].cancel()
    assert [queue.take() for _ in range(3)] == [flights[2], flights[0], None]
    queue.back(flights[0])
    queue.back(flights[2])
    assert queue.take() is flights[2]


def test_a_job_has_one_answer() -> None:
    one = job(1)
    heard: list[Future[object]] = []
    one.future.add_done_callback(heard.append)
    assert one.waiting
    assert one.expire()
    assert not one.waiting
    assert not one.cancel()
    assert not one.resolve(BackendError("late"))
    assert heard == [one]
    with pytest.raises(DeadlineError, match="1000 ms"):
        one.future.result(0)


def test_answers_race_and_one_wins() -> None:
    for _ in range(200):
        one = job(1)
        start = threading.Barrier(3)
        wins: list[bool] = []

        def end(one: RankJob = one, start: threading.Barrier = start, wins: list[bool] = wins) -> None:
            start.wait()
            wins.append(one.cancel())

        threads = [threading.Thread(target=end) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        wins.append(one.future.cancel())
        for thread in threads:
            thread.join()
        assert sorted(wins) == [False, False, True]
        assert isinstance(one.future.exception(0), CancelledError)


def test_a_job_is_awaited_and_cancelled_through_asyncio() -> None:
    async def cancelled() -> None:
        one = job(1)
        waiter = asyncio.wrap_future(one.future)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await asyncio.sleep(0)
        assert isinstance(one.future.exception(0), CancelledError)

    async def awaited() -> None:
        one = job(1)
        threading.Timer(0.01, one.expire).start()
        with pytest.raises(DeadlineError):
            await asyncio.wrap_future(one.future)

    asyncio.run(cancelled())
    asyncio.run(awaited())


def test_an_answered_job_is_freed_without_the_collector() -> None:
    timer = DeadlineTimer(MonotonicClock())
    gc.disable()
    try:
        one = job(1e9)
        timer.watch(one)
        one.add_done_callback(lambda _: None)
        seen = weakref.ref(one)
        one.cancel()
        del one
        assert seen() is None
    finally:
        gc.enable()
        timer.close()


def test_deadlines_fire_in_time_and_in_order() -> None:
    clock = MonotonicClock()
    timer = DeadlineTimer(clock)
    now = clock.now_s()
    order: list[Future[object]] = []
    jobs = [job(now + after) for after in (0.3, 0.1, 0.2, 100)]
    for one in jobs:
        one.add_done_callback(order.append)
        timer.watch(one)
    jobs[2].cancel()
    await_true(lambda: len(order) == 3)
    assert order == [jobs[2], jobs[1], jobs[0]]
    assert jobs[3].waiting
    timer.close()
    timer.close()


def test_a_deadline_that_moved_back_fires_at_the_later_time() -> None:
    clock = ManualClock()
    timer = DeadlineTimer(clock)
    one: Job[object] = Job(1.0, 0.0)
    timer.watch(one)
    one.deadline_s = 3.0
    timer.watch(one)
    clock.advance(2)
    timer.fire()
    assert one.waiting
    clock.advance(1)
    timer.fire()
    assert isinstance(one.exception(0), DeadlineError)
    timer.close()


def test_watches_of_ended_jobs_do_not_pile_up() -> None:
    timer = DeadlineTimer(ManualClock())
    kept = [job(1e9) for _ in range(10)]
    for one in kept:
        timer.watch(one)
    for _ in range(20_000):
        one = job(1e9)
        timer.watch(one)
        one.cancel()
    moving = job(1.0)
    for later in range(5_000):
        moving.deadline_s += later
        timer.watch(moving)
    assert len(timer) < 3_000
    timer.close()


@pytest.mark.parametrize("asked", [0, 0.99, -5, float("nan"), float("inf"), 60_001])
def test_deadlines_out_of_range_are_refused(asked: float) -> None:
    with pytest.raises(RequestError, match=r"deadline_ms: .* must be from 1 to 60000"):
        deadline_ms(asked, 100, 60_000)


def test_deadlines_within_range_and_none() -> None:
    assert deadline_ms(None, 100, 50) == 100
    assert [deadline_ms(asked, 100, 50) for asked in (1, 50)] == [1, 50]


def _tenth(one: RankJob) -> float:
    """A tenth of a millisecond a token, and one for the rest."""
    return 1 + one.tokens / 10


def test_batch_mates_do_not_make_the_most_urgent_late() -> None:
    queue = RankQueue(10)
    jobs = [job(0.1), *(job(5.0, 400) for _ in range(3))]
    assert all(queue.put(one) for one in jobs)
    # 1 + 41 + 41 ms end in time, a third mate would not.
    assert queue.batch(16, 10_000, 0.0, _tenth) == jobs[:3]
    assert queue.batch(16, 10_000, 0.0, _tenth) == jobs[3:]


def test_who_is_late_alone_is_taken_alone() -> None:
    queue = RankQueue(10)
    jobs = [job(0.01, 400), job(5.0)]
    assert all(queue.put(one) for one in jobs)
    assert queue.batch(16, 10_000, 0.0, _tenth) == jobs[:1]


def test_everybody_who_fits_may_take_all_the_time() -> None:
    queue = RankQueue(10)
    assert queue.share_ms(0.0, _tenth) == float("inf")
    assert all(queue.put(one) for one in (job(0.1, 400), job(0.2, 400)))
    assert queue.share_ms(0.0, _tenth) == float("inf")


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 2000)), min_size=1, max_size=30),
    st.integers(0, 100),
)
@settings(max_examples=200, deadline=None)
def test_shares_serve_everybody_in_time(sizes: list[tuple[int, int]], now_ms: int) -> None:
    """Taken one by one, each for no longer than its share or its own time, jobs end by their deadlines."""
    queue = RankQueue(100)
    for deadline_ms_, tokens in sizes:
        assert queue.put(job((now_ms + deadline_ms_) / 1000, tokens))
    now = now_ms / 1000
    while (one := queue.head()) is not None:
        share = queue.share_ms(now, _tenth)
        if one.deadline_s <= now:
            queue.take()
            continue
        assert share > 0
        now += min(share, _tenth(one)) / 1000
        assert now <= one.deadline_s + 1e-9
        queue.take()
