"""The anchoring rule: published values, and that a window never slides."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.models.window import anchor, anchor_stride


@pytest.mark.parametrize(("events", "start"), [(0, 0), (8192, 0), (8193, 2048), (10240, 2048), (10241, 4096)])
def test_published_values(events: int, start: int) -> None:
    assert anchor_stride(8192, 0.25) == 2048
    assert anchor(events, 8192, 2048) == start


def test_stride_is_whole_pages_and_fits() -> None:
    assert anchor_stride(4032, 0.25) == 1024  # 1008 is 31.5 pages
    assert anchor_stride(1000, 0.001) == 32
    assert anchor_stride(10, 0.25) == 10


@pytest.mark.parametrize(("limit", "share"), [(0, 0.5), (10, 0.0), (10, 1.5)])
def test_bad_arguments_are_named(limit: int, share: float) -> None:
    with pytest.raises(ValueError, match="limit" if limit < 1 else "share"):
        anchor_stride(limit, share)


@given(st.integers(1, 500), st.floats(0.01, 1.0), st.integers(0, 5000))
def test_window_is_never_too_long_and_moves_in_strides(limit: int, share: float, events: int) -> None:
    stride = anchor_stride(limit, share)
    start, later = anchor(events, limit, stride), anchor(events + 1, limit, stride)
    assert later in (start, start + stride)
    assert 0 <= events - start <= limit
    if events > limit:
        assert events - start > limit - stride


@given(st.integers(1, 20_000), st.floats(0.01, 1.0), st.integers(1, 60))
def test_m6_no_more_passes_over_everything_than_the_share_allows(
    limit: int, share: float, growth: int
) -> None:
    """Visits that each bring `growth` events: one in stride / growth moves the window, or fewer."""
    stride, visits = anchor_stride(limit, share), 2000
    starts = [anchor(limit + growth * visit, limit, stride) for visit in range(visits + 1)]
    moved = sum(one != other for one, other in pairwise(starts))
    assert stride >= min(share * limit, limit) * (1 - 1e-6)
    assert moved <= visits * min(1.0, growth / (share * limit)) * (1 + 1e-6) + 1
