"""Random operations on two tiers against the plain model: by rules, and long seeded runs."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from inclusive_model import InclusiveModel
from test_books_machine import BooksMachine
from tiered_model import TieredModel, drive


class TieredMachine(BooksMachine):
    KIND: type[TieredModel] = TieredModel
    model: TieredModel | None = None

    @initialize(
        seed=st.integers(0, 2**32), pages=st.sampled_from([6, 24, 64]), chunks=st.sampled_from([2, 9, 30])
    )
    def start(self, seed: int, pages: int, chunks: int) -> None:
        self.model = self.KIND(random.Random(seed), pages=pages, chunks=chunks)

    @rule()
    def load(self) -> None:
        self.model.load()

    @rule()
    def store(self) -> None:
        self.model.store()

    @rule(times=st.integers(1, 6))
    def copy(self, times: int) -> None:
        for _ in range(times):
            self.model.step_flight()

    @rule(times=st.integers(1, 4))
    def complete_or_cancel(self, times: int) -> None:
        for _ in range(times):
            self.model.finish_flight()

    @rule()
    def settle(self) -> None:
        for _ in range(12):
            self.model.step_writer()
            self.model.finish_writer()
            self.model.step_flight()
            self.model.finish_flight()

    @rule(which=st.integers(0, 9))
    def forget(self, which: int) -> None:
        if which == 0:
            self.model.forget()

    @rule(which=st.integers(0, 9))
    def swap_model(self, which: int) -> None:
        if which == 0:
            self.model.swap_model()

    @rule()
    def spill_candidates(self) -> None:
        self.model.spill_candidates()


TieredMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestTieredMachine = TieredMachine.TestCase


class InclusiveMachine(TieredMachine):
    KIND = InclusiveModel


InclusiveMachine.TestCase.settings = settings(TieredMachine.TestCase.settings, max_examples=60)
TestInclusiveMachine = InclusiveMachine.TestCase

SIZES = ((10, 6), (24, 12), (40, 3), (64, 24), (100, 40))


def test_m12_seeded_run() -> None:
    """Short, but it must have been everywhere."""
    seen: Counter[str] = Counter()
    for seed in range(5):
        seen.update(drive(seed, 1500, *SIZES[seed]).seen)
    missing = {
        "load", "store", "loaded", "moved", "stored and leased", "store dropped", "load failed",
        "store failed", "load cancelled", "damaged", "overdue transfer", "cancel in transfer",
        "host eviction", "unneeded copy", "several runs", "one run", "candidates", "load busy", "store busy",
        "load not_resident", "store not_resident", "load already_stored", "store already_stored",
        "load pinned", "store pinned", "store too_large", "eviction", "in place", "copy on write",
    } - set(seen)  # fmt: skip
    assert not missing


def test_m12_seeded_run_of_inclusive_books() -> None:
    seen: Counter[str] = Counter()
    for seed in range(5):
        seen.update(drive(seed, 1500, *SIZES[seed], InclusiveModel).seen)
    missing = {
        "load", "store", "loaded", "delta", "whole", "grown", "store dropped",
        "load failed", "store failed", "load cancelled", "damaged", "overdue transfer", "cancel in transfer",
        "host eviction", "departed, dropped", "departed, shortened", "clean eviction", "lost", "candidates",
        "store already_stored", "store pinned", "store too_large", "in place", "copy on write",
    } - set(seen)  # fmt: skip
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TieredModel, InclusiveModel])
def test_m12_hundred_thousand_operations(kind: type[TieredModel]) -> None:
    runs = [drive(seed, 5000, *SIZES[seed % len(SIZES)], kind) for seed in range(100, 120)]
    operations = sum(run.operations for run in runs)
    assert operations >= 100_000


def cancels(seed: int, count: int) -> None:
    """Every transfer is cancelled at a random stage, by one of its ways out."""
    model = TieredModel(random.Random(seed), pages=40, chunks=16)
    rng, done, rounds = model.rng, 0, 0
    while done < count:
        rounds += 1
        model.edit()
        model.append()
        while model.writers:
            model.step_writer()
            model.finish_writer()
        while model.flights and rounds % 40 == 0:  # else nothing would be in the host to load
            model.step_flight()
            model.finish_flight()
        rng.choice([model.store, model.store, model.load, model.load, model.lease])()
        for _ in range(rng.randint(0, 3)):
            model.step_flight()
        if len(model.flights) > 2:
            before = len(model.flights)
            rng.choice([model.cancel_flight] * 20 + [model.sweep, model.forget])()
            done += before - len(model.flights)
        if len(model.readers) > 3:
            model.finish_reader()
        if rounds % 10 == 0:
            model.check()
    model.drain()


def test_m19_five_hundred_cancels_leave_all_pools_full() -> None:
    cancels(seed=0, count=500)


@pytest.mark.slow
def test_m19_ten_thousand_cancels_leave_all_pools_full() -> None:
    cancels(seed=1, count=10_000)
