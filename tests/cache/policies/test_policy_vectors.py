"""Keys of the GreedyDual policies, by hand."""

import pytest

from relaygr.cache.policies import make
from relaygr.cache.policies.greedy import Greedy
from relaygr.cache.policy import Victim, Weight
from relaygr.core.units import MIB


def weight(tokens: int, load_ms: float = 0.0) -> Weight:
    """A MiB a token, so that keys are per token."""
    return Weight(tokens * MIB, tokens, tokens + tokens**2 / 8192, load_ms)


def greedy(name: str) -> Greedy[str]:
    policy = make(name, 1)
    assert isinstance(policy, Greedy)
    return policy


def test_the_default_s_keys() -> None:
    policy = greedy("gd_cost")
    policy.touch("a")
    policy.insert("a", weight(1000))
    assert policy.key_of("a") == pytest.approx(0.561, abs=5e-4)
    policy.touch("a")
    assert policy.key_of("a") == pytest.approx(2.244, abs=5e-4)
    policy.touch("b")
    policy.insert("b", weight(8192))
    assert policy.key_of("b") == pytest.approx(1.0, abs=5e-4)


def test_the_age_is_the_key_of_the_last_that_left() -> None:
    policy = greedy("gd_cost")
    policy.touch("a")
    policy.insert("a", weight(1000))
    assert policy.evict() == Victim("a")
    assert policy.age == pytest.approx(0.561, abs=5e-4)
    policy.touch("c")
    policy.insert("c", weight(1000))
    assert policy.key_of("c") == pytest.approx(1.122, abs=5e-4)
