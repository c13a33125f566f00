"""Slots: urgent work waits for the end of a step and never longer; what was cut goes on where it stopped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.sim.machine import CHUNK, RANK, SPILL, Machine, Run
from relaygr.sim.timeline import Timeline

STEP_S = 1.0


class Job:
    def __init__(self, shop: Shop, urgency: int, steps: int, step_s: float) -> None:
        self.shop, self.urgency, self.left, self.step_s = shop, urgency, steps, step_s
        self.came_s = shop.timeline.now_s
        self.began_s: float | None = None
        self.ended_s = 0.0

    def stopped(self, steps: int) -> None:
        self.left -= steps
        if self.left:
            self.shop.queue.append(self)
        else:
            self.ended_s = self.shop.timeline.now_s


class Shop:
    """A desk with one queue."""

    def __init__(self, slots: int = 1) -> None:
        self.timeline = Timeline()
        self.machine = Machine(self.timeline, slots, self)
        self.queue: list[Job] = []
        self.jobs: list[Job] = []

    def come(self, urgency: int, steps: int = 1, step_s: float = STEP_S) -> None:
        job = Job(self, urgency, steps, step_s)
        self.jobs.append(job)
        self.queue.append(job)
        self.machine.poke(urgency)

    def next_run(self) -> Run | None:
        if not self.queue:
            return None
        job = min(self.queue, key=lambda one: (one.urgency, one.came_s))
        self.queue.remove(job)
        if job.began_s is None:
            job.began_s = self.timeline.now_s
        ends = tuple(job.step_s * (step + 1) for step in range(job.left))
        return Run(job.urgency, ends, job)


def test_a_run_is_cut_at_the_end_of_the_step_that_runs() -> None:
    shop = Shop()
    shop.timeline.at(0.0, shop.come, CHUNK, 10)
    shop.timeline.at(2.5, shop.come, RANK)
    shop.timeline.run()
    chunk, rank = shop.jobs
    assert (rank.began_s, rank.ended_s) == (3.0, 4.0)
    assert chunk.ended_s == 11.0
    assert shop.machine.busy_s == 11.0


def test_at_the_end_of_a_step_nobody_waits() -> None:
    shop = Shop()
    shop.timeline.at(0.0, shop.come, CHUNK, 10)
    shop.timeline.at(3.0, shop.come, RANK)
    shop.timeline.run()
    assert shop.jobs[1].began_s == 3.0


def test_the_last_step_is_not_cut_and_equals_do_not_cut() -> None:
    shop = Shop()
    shop.timeline.at(0.0, shop.come, CHUNK, 2)
    shop.timeline.at(0.5, shop.come, CHUNK, 1)
    shop.timeline.at(1.5, shop.come, RANK)
    shop.timeline.run()
    assert [job.began_s for job in shop.jobs] == [0.0, 3.0, 2.0]


def test_rank_is_never_cut() -> None:
    shop = Shop()
    shop.timeline.at(0.0, shop.come, RANK, 1, 5.0)
    shop.timeline.at(1.0, shop.come, RANK)
    shop.timeline.run()
    assert shop.jobs[1].began_s == 5.0


def test_every_waiting_rank_gets_a_slot_within_a_step() -> None:
    shop = Shop(slots=2)
    for _ in range(2):
        shop.timeline.at(0.0, shop.come, CHUNK, 10)
    shop.timeline.at(0.5, shop.come, RANK, 1, 20.0)
    shop.timeline.at(0.6, shop.come, RANK, 1, 20.0)
    shop.timeline.run()
    assert [job.began_s for job in shop.jobs[2:]] == [1.0, 1.0]


def test_the_least_urgent_makes_room() -> None:
    shop = Shop(slots=2)
    shop.timeline.at(0.0, shop.come, CHUNK, 10)
    shop.timeline.at(0.0, shop.come, SPILL, 10)
    shop.timeline.at(0.5, shop.come, RANK)
    shop.timeline.run()
    assert shop.jobs[0].ended_s == 10.0
    assert shop.jobs[1].ended_s == pytest.approx(11.0)


def test_what_runs_when_a_process_dies_never_ends() -> None:
    shop = Shop()
    shop.timeline.at(0.0, shop.come, RANK)
    shop.timeline.at(0.5, shop.machine.stop)
    shop.timeline.run()
    assert shop.jobs[0].ended_s == 0.0
    assert not shop.machine.running


@settings(max_examples=150, deadline=None)
@given(
    slots=st.integers(1, 3),
    jobs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 6), st.sampled_from([0.5, 1.0, 1.5])),
        max_size=25,
    ),
)
def test_work_is_done_once_and_ranking_waits_for_a_step_at_most(
    slots: int, jobs: list[tuple[int, int, int, float]]
) -> None:
    shop = Shop(slots)
    for time, urgency, steps, step_s in jobs:
        shop.timeline.at(0.7 * time, shop.come, urgency, steps if urgency else 1, step_s)
    shop.timeline.run()
    assert all(job.left == 0 for job in shop.jobs)
    work = sum((steps if urgency else 1) * step_s for _, urgency, steps, step_s in jobs)
    assert shop.machine.busy_s == pytest.approx(work)
    ranks = [job for job in shop.jobs if job.urgency == RANK]
    longest = max((job.step_s for job in shop.jobs if job.urgency != RANK), default=0.0)
    for job in ranks:
        ahead = sum(one.step_s for one in ranks if one is not job and one.ended_s > job.came_s)
        assert job.began_s is not None
        assert job.began_s - job.came_s <= longest + ahead + 1e-9
