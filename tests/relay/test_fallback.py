"""The ladder of a ranking without its prefix: the worked examples, and the best step that is in time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.relay.fallback import Choice, Step, choose
from relaygr.relay.latency import Coefficients, LatencyModel

EXAMPLE = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=0.3)
LATENCY = LatencyModel(EXAMPLE)
WHOLE = 8192 + 128


def ladder(remaining_ms: float, cached: int = 0, whole: int = WHOLE, candidates: int = 256) -> Choice:
    return choose(whole - cached, cached, candidates, remaining_ms, LATENCY, 3.0, 128)


@pytest.mark.parametrize(
    ("remaining", "choice"),
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
def test_steps_of_the_example(remaining: float, choice: Choice) -> None:
    assert ladder(remaining) == choice


def test_pages_that_are_there_are_resumed() -> None:
    """The rest, 4,224 tokens behind 4,096, and the guard."""
    rest = EXAMPLE.hit_ms(4096, WHOLE - 4096, 256)
    assert ladder(rest + 3.001, 4096) == Choice(Step.RESUME, WHOLE)
    assert ladder(rest + 2.999, 4096).step is Step.TRUNCATED
    assert ladder(7.8 + 3.0, 8192) == Choice(Step.RESUME, WHOLE)


def test_a_history_of_nothing_or_less_than_a_bucket() -> None:
    assert ladder(50.0, whole=0) == Choice(Step.FULL, 0)
    assert ladder(50.0, whole=1) == Choice(Step.FULL, 1)
    assert ladder(5.0, whole=1) == Choice(Step.DEGRADED, 0)
    assert ladder(50.0, 0, 0, 0) == Choice(Step.FULL, 0)


def test_without_a_latency_model_or_a_ladder_everything_is_read() -> None:
    assert choose(100, 20, 10, -1.0, None, 3.0, 128) == Choice(Step.RESUME, 120)
    assert choose(120, 0, 10, -1.0, LATENCY, 3.0, 128, shorten=False) == Choice(Step.FULL, 120)


def test_slower_passes_than_predicted_shorten_more() -> None:
    slow = LatencyModel(EXAMPLE, [2.0])
    found = choose(WHOLE, 0, 256, 40.0, slow, 3.0, 128)
    longest = EXAMPLE.longest(37.0 / 2, 256, WHOLE)
    assert longest is not None
    assert found == Choice(Step.TRUNCATED, longest // 128 * 128)


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
    whole: int, share: float, candidates: int, remaining: float, bucket: int, k99: float
) -> None:
    cached, latency = int(share * whole), LatencyModel(EXAMPLE, [k99])
    found = choose(whole - cached, cached, candidates, remaining, latency, 3.0, bucket)
    budget = remaining - 3.0
    resumed = latency.hit_p99_ms(cached, whole - cached, candidates)
    if resumed <= budget:
        assert found == Choice(Step.RESUME if cached else Step.FULL, whole)
        return
    # Reading everything without what is there takes longer still.
    assert latency.full_p99_ms(whole, 0, candidates) > budget
    if found.step is Step.TRUNCATED:
        assert 0 < found.tokens < whole
        assert found.tokens % bucket == 0
        assert latency.full_p99_ms(found.tokens, 0, candidates) <= budget
    else:
        assert found == Choice(Step.DEGRADED, 0)
    more = found.tokens + bucket
    assert more > whole or latency.full_p99_ms(more, 0, candidates) > budget
