"""Random calls on policies and on their plainest forms: always the same victims."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from policy_reference import REFERENCES, Reference

from relaygr.cache.policies import make
from relaygr.cache.policy import Policy, Weight

CAPACITY = 4096
# Powers of two, so that values per MiB are whole numbers and equal keys are equal in both.
SIZES = (64, 128, 256, 512, 1024)
COSTS = (0.0, 0.5, 1.0, 2.0, 8.0)


class PolicyMachine(RuleBasedStateMachine):
    name = "lru"
    policy: Policy[Any]
    plain: Reference

    @initialize()
    def start(self) -> None:
        self.policy, self.plain = make(self.name, CAPACITY), REFERENCES[self.name](CAPACITY)

    @rule(key=st.integers(0, 11), size=st.sampled_from(SIZES), cost=st.sampled_from(COSTS))
    def visit(self, key: int, size: int, cost: float) -> None:
        """As a tier does it: count, make room, take in."""
        self.touch(key)
        if f"u{key}" not in self.plain.rows:
            while sum(row.weight.nbytes for row in self.plain.rows.values()) + size > CAPACITY:
                if not self.evict_one():
                    return
            self.insert(key, size, cost)

    @rule(key=st.integers(0, 11), size=st.sampled_from(SIZES), cost=st.sampled_from(COSTS))
    def insert(self, key: int, size: int, cost: float) -> None:
        for one in (self.policy, self.plain):
            one.insert(f"u{key}", Weight(size, size, cost, 0.5))

    @rule(key=st.integers(0, 11))
    def touch(self, key: int) -> None:
        self.policy.touch(f"u{key}")
        self.plain.touch(f"u{key}")

    @rule(key=st.integers(0, 11), parked=st.booleans())
    def park(self, key: int, parked: bool) -> None:
        if f"u{key}" in self.plain.rows:
            (self.policy.park if parked else self.policy.unpark)(f"u{key}")
            self.plain.rows[f"u{key}"].parked = parked

    @rule(key=st.integers(0, 11))
    def remove(self, key: int) -> None:
        if f"u{key}" in self.plain.rows:
            self.policy.remove(f"u{key}")
            self.plain.remove(f"u{key}")

    @rule(key=st.integers(0, 11))
    def forget(self, key: int) -> None:
        self.policy.forget(f"u{key}")
        self.plain.forget(f"u{key}")

    @rule()
    def evict(self) -> None:
        self.evict_one()

    def evict_one(self) -> bool:
        victim = self.policy.evict()
        assert victim == self.plain.evict()
        return victim is not None

    @invariant()
    def same_entries(self) -> None:
        if hasattr(self, "policy"):
            assert len(self.policy) == len(self.plain.rows)
            assert all((f"u{key}" in self.policy) == (f"u{key}" in self.plain.rows) for key in range(12))

    def long_run(self, rng: random.Random, steps: int) -> None:
        """As many calls as a state machine would take minutes for, mostly visits, at the end all leave."""
        self.start()
        for _ in range(steps):
            key, size, cost = rng.randrange(12), rng.choice(SIZES), rng.choice(COSTS)
            draw = rng.random()
            if draw < 0.6:
                self.visit(key, size, cost)
            elif draw < 0.7:
                self.insert(key, size, cost)
            elif draw < 0.85:
                self.park(key, rng.random() < 0.4)
            elif draw < 0.9:
                self.evict()
            else:
                (self.remove if draw < 0.96 else self.forget)(key)
            self.same_entries()
        for key in range(12):
            self.park(key, False)
        while self.evict_one():
            self.same_entries()


@pytest.fixture(params=sorted(REFERENCES))
def machine(request: pytest.FixtureRequest) -> type[PolicyMachine]:
    return type("Machine", (PolicyMachine,), {"name": request.param})


def test_same_victims_by_rules(machine: type[PolicyMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_same_victims_in_a_long_run(machine: type[PolicyMachine]) -> None:
    machine().long_run(random.Random(0), 2500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_same_victims_in_many_long_runs(machine: type[PolicyMachine], seed: int) -> None:
    machine().long_run(random.Random(seed), 15_000)
