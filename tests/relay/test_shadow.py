"""Shadow scoring: which hits are sampled, what is summed up, and that a breach is for good."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.relay.shadow import ShadowBook, Summary, _mix


def test_the_mixer_is_the_published_one() -> None:
    """First outputs of SplitMix64 with seed 0."""
    assert [_mix(i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
def test_r32_a_share_of_the_hits_is_sampled_without_a_period(rate: float) -> None:
    book, again = ShadowBook(rate, 1e-5), ShadowBook(rate, 1.0)
    picked = [i for i in range(100_000) if book.sampled(i)]
    assert picked == [i for i in range(100_000) if again.sampled(i)]
    slack = 5 * math.sqrt(rate * (1 - rate) / 100_000)
    assert abs(len(picked) / 100_000 - rate) < slack
    # Every tenth user in turn is sampled as often.
    for phase in range(10):
        share = sum(i % 10 == phase for i in picked) / 10_000
        assert abs(share - rate) < slack * math.sqrt(10)


def test_none_and_all() -> None:
    assert not any(ShadowBook(0.0, 1e-5).sampled(i) for i in range(1000))
    assert all(ShadowBook(1.0, 1e-5).sampled(i) for i in range(1000))


def test_r32_a_breach_switches_the_build_off_for_good() -> None:
    book = ShadowBook(0.01, 1e-5)
    assert not book.observe("a", 1e-5)
    assert not book.observe("b", 2e-6)
    assert book.observe("a", 1.1e-5)
    assert (book.enabled("a"), book.enabled("b"), book.disabled) == (False, True, frozenset("a"))
    assert not book.observe("a", 0.0)
    assert not book.observe("a", 1.0)
    book.set_limit("a", 10.0)
    assert not book.enabled("a")
    assert book.summary("a") == Summary(1.0, pytest.approx(1.0 + 2.1e-5), 4)
    assert book.summary("unknown") == Summary(0.0, 0.0, 0)


def test_a_build_may_have_a_limit_of_its_own() -> None:
    book = ShadowBook(0.01, 1e-5)
    book.set_limit("bf16", 0.02)
    assert not book.observe("bf16", 0.02)
    assert book.observe("bf16", -0.03)
    assert book.observe("fp32", 0.02)


def test_what_is_not_a_number_is_a_breach() -> None:
    for value in (math.nan, math.inf):
        book = ShadowBook(0.01, 1e6)
        assert book.observe("a", value)
        assert book.summary("a") == Summary(math.inf, math.inf, 1)


@given(st.lists(st.floats(-1, 1), min_size=1), st.floats(0, 1))
def test_summaries(values: list[float], limit: float) -> None:
    book = ShadowBook(1.0, limit)
    breaches = [book.observe("a", value) for value in values]
    sizes = [abs(value) for value in values]
    assert book.summary("a") == Summary(max(sizes), pytest.approx(sum(sizes)), len(sizes))
    assert sum(breaches) == (max(sizes) > limit) == (not book.enabled("a"))
    if any(breaches):
        assert breaches.index(True) == next(i for i, size in enumerate(sizes) if size > limit)
