"""How likely users come back: the published example, the counts, the bounds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.returns import Returns


def known(followed: int, not_followed: int, d_ttl_s: float = 10.0) -> tuple[Returns[str], float]:
    """So many visits of strangers that were followed in time and that were not; and a later time."""
    returns: Returns[str] = Returns(d_ttl_s)
    for number in range(followed):
        returns.visit(f"f{number}", 0.0)
    for number in range(followed):
        returns.visit(f"f{number}", 1.0)
        returns.forget(f"f{number}")
    for number in range(not_followed):
        returns.visit(f"n{number}", 2.0)
    return returns, 100.0


def test_one_visit_and_no_return() -> None:
    returns, now = known(3, 2)
    assert returns.p0(now) == 0.6
    assert returns.p_return("stranger", now) == 0.6
    returns.visit("u", now)
    assert returns.p_return("u", now) == pytest.approx(0.4)


def test_a_visit_counts_for_all_when_it_is_known_whether_it_was_followed() -> None:
    returns: Returns[str] = Returns(10.0)
    assert returns.p0(0.0) == 1.0
    for number in range(50):
        returns.visit(f"u{number}", 0.0)
    assert returns.p0(10.0) == 1.0
    returns.visit("u0", 10.0)
    assert returns.p0(10.0) == 1.0
    assert returns.p0(10.1) == 1 / 50
    assert returns.p0(30.0) == 1 / 51


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_against_all_visits(seed: int) -> None:
    rng = random.Random(seed)
    returns: Returns[int] = Returns(5.0)
    visits: list[tuple[float, int]] = []
    now = 0.0
    for _ in range(80):
        now += rng.choice([0.0, 1.0, 5.0, 9.0]) * rng.random()
        user = rng.randrange(5)
        returns.visit(user, now)
        visits.append((now, user))
        followed = {
            at: any(later == one[1] and 0 <= when - one[0] <= 5.0 for when, later in visits[at + 1 :])
            for at, one in enumerate(visits)
        }
        decided = [at for at, one in enumerate(visits) if followed[at] or now - one[0] > 5.0
                   or any(later == one[1] for _, later in visits[at + 1 :])]  # fmt: skip
        p0 = sum(followed[at] for at in decided) / len(decided) if decided else 1.0
        assert returns.p0(now) == pytest.approx(p0)
        mine = [at for at, one in enumerate(visits) if one[1] == user]
        want = (sum(followed[at] for at in mine) + 2 * p0) / (len(mine) + 2)
        assert returns.p_return(user, now) == pytest.approx(want)


def test_bounded_and_forgetful() -> None:
    returns: Returns[int] = Returns(10.0, users_max=100)
    for user in range(1000):
        returns.visit(user, float(user))
    assert len(returns) == 100
    assert len(returns._open) <= 100
    returns.visit(999, 1000.0)
    before = returns.p_return(999, 1000.0)
    returns.forget(999)
    assert len(returns) == 99
    assert returns.p_return(999, 1000.0) == returns.p0(1000.0) != before


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="d_ttl_s"):
        Returns(-1.0)
    with pytest.raises(ValueError, match="users_max"):
        Returns(1.0, users_max=0)
