"""How states lie in host memory after a day of coming, growing and leaving, under each policy."""

from __future__ import annotations

import pytest
from churn_day import BOOKS, Day, day

from relaygr.cache.policies import POLICIES

EVERYONE = [(mode, policy) for mode in BOOKS for policy in POLICIES]


def check(found: Day) -> None:
    assert found.runs <= 1.25, found
    assert found.free < 0.2, "more is kept free than few runs are worth"
    assert found.loads > 100, found
    assert found.evictions > 100, found


@pytest.mark.parametrize(("mode", "policy"), EVERYONE)
def test_m14_few_runs_an_entry_after_a_day_of_the_books(mode: str, policy: str) -> None:
    check(day(mode, policy, users=100, page_tokens=256, device=0.05, host=0.3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("mode", "policy"), EVERYONE)
def test_m14_few_runs_an_entry_after_a_day_of_many(mode: str, policy: str, seed: int) -> None:
    check(day(mode, policy, users=1200, page_tokens=32, device=0.04, host=0.1, seed=seed))
