"""Shadow scoring: which hits are sampled, what is summed up, and that a breach is for good."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.shadow import Epsilon, ShadowBook


@pytest.mark.parametrize(("rate", "hits", "picked"), [(0.01, 10_000, 100), (0.2, 999, 199), (0.3, 1000, 300)])
def test_r32_a_share_of_the_hits_is_sampled(rate: float, hits: int, picked: int) -> None:
    book, again = ShadowBook(rate, 1e-5), ShadowBook(rate, 1.0)
    found = [book.sampled() for _ in range(hits)]
    assert found == [again.sampled() for _ in range(hits)]
    assert sum(found) == picked
    # Evenly: no stretch goes without one for longer than it must.
    places = [i for i, one in enumerate(found) if one]
    gaps = [b - a for a, b in zip([-1, *places], places, strict=False)]
    assert max(gaps) <= math.ceil(1 / rate)


def test_none_and_all() -> None:
    none, every = ShadowBook(0.0, 1e-5), ShadowBook(1.0, 1e-5)
    assert not any(none.sampled() for _ in range(1000))
    assert all(every.sampled() for _ in range(1000))


def test_r32_a_breach_is_told_once_and_is_for_good() -> None:
    book = ShadowBook(0.01, 1e-5)
    assert not book.observe("a", 1e-5)
    assert not book.observe("b", 2e-6)
    assert book.observe("a", 1.1e-5)
    assert not book.observe("a", 0.0)
    assert not book.observe("a", 1.0)
    assert book.epsilon("a") == Epsilon(4, pytest.approx(1.0 + 2.1e-5), 1.0, True)
    assert book.epsilon("b") == Epsilon(1, 2e-6, 2e-6, False)
    assert book.epsilon("unknown") == Epsilon(0, 0.0, 0.0, False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_is_a_breach(value: float) -> None:
    book = ShadowBook(0.01, 1e6)
    assert book.observe("a", value)
    found = book.epsilon("a")
    assert (found.count, found.breached) == (1, True)
    assert not math.isfinite(found.largest)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1), st.floats(1e-9, 1))
def test_summaries(values: list[float], limit: float) -> None:
    book = ShadowBook(1.0, limit)
    breaches = [book.observe("a", value) for value in values]
    found = book.epsilon("a")
    assert (found.count, found.largest) == (len(values), max(values))
    assert found.total == pytest.approx(sum(values))
    assert found.breached is (max(values) > limit)
    assert sum(breaches) == found.breached
    if found.breached:
        assert breaches.index(True) == next(i for i, value in enumerate(values) if value > limit)


@pytest.mark.parametrize(
    ("rate", "limit"), [(-0.1, 1.0), (1.1, 1.0), (math.nan, 1.0), (0.1, 0.0), (0.1, -1.0)]
)
def test_impossible_settings(rate: float, limit: float) -> None:
    with pytest.raises(ValueError, match=r"rate|limit"):
        ShadowBook(rate, limit)
