"""Who gets the next step of device memory: the side on which a miss costs more."""

import random

import pytest

from relaygr.relay.split import Split

DEVICE, STATIC, LIFE_S = 3200, 1600, 1.0
STEP = 100


def split(refused: int = 0, missed: int = 0, refused_ms: float = 10.0, missed_ms: float = 10.0) -> Split:
    found = Split(DEVICE, STATIC)
    assert found.bound(0.0, STATIC, LIFE_S) == STATIC
    told(found, refused, missed, refused_ms, missed_ms)
    return found


def told(found: Split, refused: int, missed: int, refused_ms: float = 10.0, missed_ms: float = 10.0) -> None:
    for _ in range(refused):
        found.refused(50, refused_ms)
    for _ in range(missed):
        found.missed(missed_ms)


def test_a_step_is_a_part_of_the_device() -> None:
    assert Split(DEVICE, STATIC).step_bytes == STEP


@pytest.mark.parametrize(
    ("refused", "missed", "wanted"),
    [(20, 2, STATIC + STEP), (2, 20, STATIC - STEP), (9, 10, STATIC), (0, 0, STATIC), (5, 2, STATIC)],
)
def test_the_dearer_side_gets_a_step_once_an_interval(refused: int, missed: int, wanted: int) -> None:
    found = split(refused, missed)
    assert found.bound(4.9, STATIC, LIFE_S) == STATIC
    assert found.bound(5.0, STATIC, LIFE_S) == wanted
    assert found.bound(9.9, wanted, LIFE_S) == wanted, "what was counted counts once"


def test_costs_are_compared_not_numbers() -> None:
    assert split(20, 5, refused_ms=1.0, missed_ms=10.0).bound(5.0, STATIC, LIFE_S) == STATIC - STEP
    assert split(5, 20, refused_ms=100.0, missed_ms=1.0).bound(5.0, STATIC, LIFE_S) == STATIC + STEP


def test_a_step_admits_only_so_many_of_the_refused() -> None:
    """Two prefixes of 50 fit in it at a time; over 5 s, ten lives of 1 s: 10 of 1,000 refused."""
    assert split(1000, 11, refused_ms=10.0).bound(5.0, STATIC, LIFE_S) == STATIC
    assert split(1000, 7, refused_ms=10.0).bound(5.0, STATIC, LIFE_S) == STATIC + STEP
    assert split(1000, 13, refused_ms=10.0).bound(5.0, STATIC, LIFE_S) == STATIC - STEP
    assert split(1000, 13, refused_ms=10.0).bound(5.0, STATIC, LIFE_S / 2) == STATIC + STEP


def test_without_misses_the_static_split_comes_back() -> None:
    found, bound = Split(DEVICE, STATIC), STATIC + 250
    seen = [bound := found.bound(5.0 * turn, bound, LIFE_S) for turn in range(5)]
    assert seen == [1850, 1750, 1650, 1600, 1600]


def test_it_stays_within_its_limits() -> None:
    found, bound = Split(DEVICE, STATIC), STATIC
    for turn in range(40):
        bound = found.bound(5.0 * turn, bound, LIFE_S)
        told(found, 50, 0)
    assert bound == 3000
    for turn in range(40, 100):
        bound = found.bound(5.0 * turn, bound, LIFE_S)
        told(found, 0, 50)
    assert bound == 200


def test_a_static_bound_beyond_the_limits_is_not_pushed_further() -> None:
    found = Split(DEVICE, DEVICE)
    found.bound(0.0, DEVICE, LIFE_S)
    told(found, 50, 0)
    assert found.bound(5.0, DEVICE, LIFE_S) == DEVICE
    told(found, 0, 50)
    assert found.bound(10.0, DEVICE, LIFE_S) == DEVICE - STEP


@pytest.mark.parametrize("life_s", [0.0, 1e-9, 1e9])
def test_any_life_and_any_misses_give_a_bound_within_a_step(life_s: float) -> None:
    rng = random.Random(0)
    found, bound = Split(DEVICE, STATIC), STATIC
    for turn in range(200):
        for _ in range(rng.randint(0, 30)):
            found.refused(rng.choice([0, 1, 5000]), rng.choice([0.0, 1e9]))
            found.missed(rng.choice([0.0, 1e9]))
        after = found.bound(7.0 * turn, bound, life_s)
        assert abs(after - bound) <= STEP
        assert 200 <= after <= 3000
        bound = after
