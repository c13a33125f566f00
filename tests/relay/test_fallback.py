"""The ladder of a ranking without its prefix: the worked examples, and the best step that is in time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.fallback import Choice, Step, choose
from relaygr.relay.latency import Coefficients, LatencyModel

EXAMPLE = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=0.3)
WHOLE = 8192 + 128


def ladder(
    left_ms: float,
    cached: int = 0,
    tokens: int = WHOLE,
    candidates: int = 256,
    latency: LatencyModel | None = None,
    bucket: int = 128,
) -> Choice:
    return choose(
        latency or LatencyModel(EXAMPLE),
        tokens=tokens,
        cached=cached,
        candidates=candidates,
        left_ms=left_ms,
        guard_ms=3.0,
        bucket_tokens=bucket,
    )


@pytest.mark.parametrize(
    ("left", "choice"),
    [
        (77.1, Choice(Step.FULL, WHOLE)),
        (77.0, Choice(Step.TRUNCATED, 8192)),
        (40.0, Choice(Step.TRUNCATED, 4864)),
        (20.0, Choice(Step.TRUNCATED, 2304)),
        # Less than a bucket, less than the candidates alone, nothing.
        (7.5, Choice(Step.DEGRADED, 0)),
        (7.0, Choice(Step.DEGRADED, 0)),
        (0.0, Choice(Step.DEGRADED, 0)),
        (-5.0, Choice(Step.DEGRADED, 0)),
    ],
)
def test_steps_of_the_example(left: float, choice: Choice) -> None:
    assert ladder(left) == choice


def test_pages_that_are_there_are_resumed() -> None:
    """The rest, 4,224 tokens behind 4,096, and the guard."""
    rest = EXAMPLE.hit_ms(4096, WHOLE - 4096, 256)
    assert ladder(rest + 3.001, 4096) == Choice(Step.RESUME, WHOLE)
    assert ladder(rest + 2.999, 4096).step is Step.TRUNCATED


def test_a_whole_hit_is_read_however_little_is_left() -> None:
    assert ladder(-1.0, WHOLE) == Choice(Step.RESUME, WHOLE)
    assert ladder(-1.0, 0, 0) == Choice(Step.FULL, 0)


def test_a_history_of_less_than_a_bucket_is_read_or_not() -> None:
    assert ladder(50.0, tokens=1) == Choice(Step.FULL, 1)
    # It costs hardly more than no history.
    assert ladder(5.0, tokens=1) == Choice(Step.FULL, 1)
    assert ladder(5.0, tokens=2_000) == Choice(Step.DEGRADED, 0)


def test_a_rest_that_costs_hardly_more_than_no_history_is_read_however_little_is_left() -> None:
    """3 ms and 1 ms for the candidates alone; a few more tokens behind a cached prefix are less than that."""
    assert ladder(0.0, 2_000, 2_010) == Choice(Step.RESUME, 2_010)
    assert ladder(0.0, 2_000, 4_000).step is Step.DEGRADED


def test_a_whole_history_is_tried_at_its_usual_time_and_a_shorter_one_chosen_at_p99() -> None:
    """One pass in twenty takes three times as long as predicted."""
    uneven = LatencyModel(EXAMPLE, [1.0] * 95 + [3.0] * 5)
    assert (uneven.k50, uneven.k99) == (1.0, 3.0)
    assert ladder(77.1, latency=uneven) == Choice(Step.FULL, WHOLE)
    longest = EXAMPLE.longest(74.0 / 3, 256, WHOLE)
    assert longest is not None
    assert ladder(77.0, latency=uneven) == Choice(Step.TRUNCATED, longest // 128 * 128)


@settings(deadline=None)
@given(
    st.integers(0, 12_000),
    st.floats(0, 1),
    st.integers(0, 1024),
    st.floats(-5, 120),
    st.sampled_from([1, 32, 128, 500]),
    st.floats(0.5, 2),
)
def test_the_best_step_that_is_in_time(
    tokens: int, share: float, candidates: int, left: float, bucket: int, k: float
) -> None:
    cached, latency = int(share * tokens), LatencyModel(EXAMPLE, [k])
    found, usable = ladder(left, cached, tokens, candidates, latency, bucket), left - 3.0
    resumed = k * EXAMPLE.pass_ms(tokens - cached, cached, candidates)
    little = resumed <= 2 * k * EXAMPLE.pass_ms(0, 0, candidates)
    if resumed <= usable or cached == tokens or little:
        assert found == Choice(Step.RESUME if cached else Step.FULL, tokens)
        return
    # Computing what is cached as well takes longer still.
    assert latency.full_p99_ms(tokens, 0, candidates) > usable
    if found.step is Step.TRUNCATED:
        assert 0 < found.tokens <= tokens
        assert found.tokens % bucket == 0
        assert latency.full_p99_ms(found.tokens, 0, candidates) <= usable
    else:
        assert found == Choice(Step.DEGRADED, 0)
    more = found.tokens + bucket
    assert more > tokens or latency.full_p99_ms(more, 0, candidates) > usable
