"""Random operations on the device books against the plain model: by rules, and long seeded runs."""

import random
from collections import Counter

import pytest
from books_model import BooksModel
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relaygr.cache.lease import WriteLease


class BooksMachine(RuleBasedStateMachine):
    model: BooksModel | None = None

    @initialize(seed=st.integers(0, 2**32), pages=st.sampled_from([6, 24, 64]))
    def start(self, seed: int, pages: int) -> None:
        self.model = BooksModel(random.Random(seed), pages=pages)

    @rule(times=st.integers(1, 3))
    def edit(self, times: int) -> None:
        for _ in range(times):
            self.model.edit()

    @rule()
    def lookup(self) -> None:
        self.model.lookup()

    @rule()
    def lease(self) -> None:
        self.model.lease()

    @rule()
    def append(self) -> None:
        self.model.append()

    @rule(times=st.integers(1, 6))
    def write(self, times: int) -> None:
        for _ in range(times):
            self.model.step_writer()

    @rule(times=st.integers(1, 4))
    def publish_or_cancel(self, times: int) -> None:
        for _ in range(times):
            self.model.finish_writer()

    @rule()
    def end_read(self) -> None:
        self.model.finish_reader()

    @rule()
    def forget(self) -> None:
        self.model.forget()

    @rule()
    def swap_model(self) -> None:
        self.model.swap_model()

    @rule()
    def sweep(self) -> None:
        self.model.sweep()

    @invariant()
    def holds(self) -> None:
        if self.model is not None:
            self.model.check()

    def teardown(self) -> None:
        if self.model is not None:
            self.model.check_all()
            self.model.drain()


BooksMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBooksMachine = BooksMachine.TestCase


def drive(seed: int, operations: int, pages: int) -> BooksModel:
    model = BooksModel(random.Random(seed), pages=pages)
    for i in range(operations):
        model.step()
        if i % 20 == 0:
            model.check_all()
    model.drain()
    return model


POOLS = (10, 24, 40, 64, 100)


def test_seeded_run() -> None:
    """Short, but it must have been everywhere."""
    seen: Counter[str] = Counter()
    for seed in range(5):
        seen.update(drive(seed, 1500, POOLS[seed % len(POOLS)]).seen)
    assert set(seen) >= {
        "in place", "copy on write", "whole pages", "eviction", "publish", "abort", "cancel in flight",
        "overdue", "clean tail", "unclean tail", "dirty entry", "busy", "pinned", "too_large",
        "already_stored", "stale_model", "not_resident",
    }  # fmt: skip


@pytest.mark.slow
def test_hundred_thousand_operations() -> None:
    operations = sum(drive(seed, 5000, POOLS[seed % len(POOLS)]).operations for seed in range(100, 140))
    assert operations >= 100_000


def cancels(seed: int, count: int) -> None:
    """Every write is cancelled at a random stage, by one of its ways out."""
    model = BooksModel(random.Random(seed), pages=64)
    rng, done = model.rng, 0
    while done < count:
        model.edit()
        model.append()
        model.lease()
        for _ in range(rng.randint(0, 4)):
            model.step_writer()
        if len(model.writers) > 3:
            writer = model.writers.pop(rng.randrange(len(model.writers)))
            cancel(model, writer.lease)
            done += 1
        if len(model.readers) > 3 or rng.random() < 0.2:
            model.finish_reader()
        if rng.random() < 0.01:  # else nothing is ever stored, and no cancel meets a version before it
            while model.writers:
                model.step_writer()
                model.finish_writer()
        if rng.random() < 0.005:
            model.forget()
        model.check()
    model.drain()


def cancel(model: BooksModel, lease: WriteLease) -> None:
    way = model.rng.choice(["abort", "leave", "raise", "late"])
    if way == "abort":
        lease.abort()
    elif way == "leave":
        with lease:
            pass
    elif way == "raise":
        with pytest.raises(RuntimeError), lease:
            raise RuntimeError("the forward failed")
    else:
        model.overdue += not lease.cancelled
        assert lease.publish(lease.expires_s) is False
    assert not lease.live


def test_thousand_cancels_leave_all_pages_free() -> None:
    cancels(seed=0, count=1000)


@pytest.mark.slow
def test_ten_thousand_cancels_leave_all_pages_free() -> None:
    cancels(seed=1, count=10_000)
