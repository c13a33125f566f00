"""Random faults of the disk: whatever happens, nothing wrong is found, and nobody who was forgotten."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from disk_state import LAYOUT, PAGE, USERS, DiskState
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from relaygr.engine import disk
from relaygr.memory.disk_forgotten import COPIES

users = st.sampled_from(USERS)
budgets = st.sampled_from([1, 3 * LAYOUT.page_bytes, 1 << 20])
pumps = st.integers(0, 3)


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.state = DiskState(self.root)

    @rule(user=users, tokens=st.integers(1, 40))
    def put(self, user: str, tokens: int) -> None:
        self.state.put(user, tokens)

    @rule(user=users)
    def drop_from_host(self, user: str) -> None:
        self.state.drop_from_host(user)

    @rule(budget=budgets, pump=pumps, times=st.integers(1, 12))
    def step(self, budget: int, pump: int, times: int) -> None:
        for _ in range(times):
            self.state.step(budget, pump)

    @rule(user=users, budget=budgets, pump=pumps, times=st.integers(1, 12))
    def fetch(self, user: str, budget: int, pump: int, times: int) -> None:
        for _ in range(times):
            self.state.fetch(user, budget, pump)

    @rule(user=users)
    def abandon(self, user: str) -> None:
        self.state.tier.abandon(("t", user))  # type: ignore[arg-type]

    @rule(user=users)
    def forget(self, user: str) -> None:
        self.state.forget(user)

    @rule(kind=st.sampled_from(["read", "write", "log"]), count=st.integers(1, 2))
    def refuse(self, kind: str, count: int) -> None:
        self.state.faults.armed[kind] = count

    @rule(place=st.integers(0, 20), at=st.integers(0, 1 << 16), of_log=st.booleans())
    def flip(self, place: int, at: int, of_log: bool) -> None:
        self.state.flip(place, at, of_log)

    @rule(killed=st.booleans(), cut=st.none() | st.tuples(st.integers(0, 20), st.integers(1, 3000)))
    def reopen(self, killed: bool, cut: tuple[int, int] | None) -> None:
        self.state.faults.armed.clear()
        if killed:
            self.state.kill()
            if cut is not None:
                self.state.cut(*cut)
        else:
            self.state.close()
        self.state.open()

    @invariant()
    def holds(self) -> None:
        self.state.check()

    def teardown(self) -> None:
        self.state.kill()
        shutil.rmtree(self.root)


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True)
def _short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was forgotten is removed from the list soon after that is needed no more."""
    monkeypatch.setattr(disk, "_SLACK_LINES", 2)


def test_the_list_of_who_was_forgotten_stays_short(tmp_path: Path) -> None:
    state = DiskState(tmp_path)
    for number in range(40):
        for _ in range(2):
            state.put(USERS[number % 3], 30)
            for _ in range(40):
                state.step(1 << 20, 3)
        state.forget(USERS[number % 3])
        state.check()
    for _ in range(3):
        state.tier.tell()
        state.lane.pump()
    log = state.folder.path / COPIES[0]
    assert len(log.read_bytes().split()) <= 3 * (2 * len(state.disk.needed()) + 3)
    state.kill()
    state.open()
    state.check()
    state.kill()


@pytest.mark.slow
def test_ten_thousand_random_faults(tmp_path: Path) -> None:
    """Full disk, refused reads, cut files, flipped bits, killed processes."""
    seed = 0
    struck = fetched = saved = opened = 0
    while struck < 10_000:
        size = (60_000, 400_000, 1_000_000)[seed % 3]
        state = run(tmp_path / str(seed), seed, 1000, size)
        struck += state.faults.struck
        fetched, saved, opened = fetched + state.fetched, saved + state.saved, opened + state.opened
        seed += 1
    assert min(fetched, saved, opened) > 1000, "most of it did nothing"


def test_some_random_faults(tmp_path: Path) -> None:
    state = run(tmp_path, seed=1, steps=800, disk_bytes=1_000_000)
    assert state.faults.struck > 50
    assert state.faults.unwritten > 1
    assert min(state.fetched, state.saved, state.opened) > 20


def run(folder: Path, seed: int, steps: int, disk_bytes: int) -> DiskState:
    rng, state = random.Random(seed), DiskState(folder, disk_bytes)
    for number in range(steps):
        user, budget = rng.choice(USERS), rng.choice([1, 3 * PAGE * LAYOUT.token_bytes, 1 << 20])
        kind = rng.random()
        if kind < 0.3:
            state.put(user, rng.randint(1, 40))
        elif kind < 0.6:
            for _ in range(rng.randint(1, 24)):
                state.step(budget, rng.randint(0, 3))
        elif kind < 0.8:
            state.drop_from_host(user)
            for _ in range(rng.randint(1, 24)):
                state.fetch(user, budget, rng.randint(0, 3))
        elif kind < 0.84:
            state.forget(user)
        elif kind < 0.9:
            state.faults.armed[rng.choice(["read", "write"])] = 1
            if rng.random() < 0.4:
                state.faults.armed["log"] = 2  # neither copy
        elif kind < 0.95:
            state.flip(rng.randrange(20), rng.randrange(1 << 16), rng.random() < 0.2)
        else:
            state.faults.armed.clear()
            state.faults.struck += 1
            state.kill()
            if rng.random() < 0.5:
                state.cut(rng.randrange(20), rng.randint(1, 3000))
            state.open()
        if number % 4 == 0:
            state.check()
    state.check()
    state.kill()
    return state
