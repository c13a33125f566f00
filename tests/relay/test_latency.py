"""The latency model: the worked examples, exact inverses and chunks, the window, the fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relaygr.core.errors import ConfigError
from relaygr.relay.fit import Sample, fit
from relaygr.relay.latency import Chunks, Coefficients, LatencyModel, Pass, pairs
from relaygr.relay.ratios import WINDOW, RatioWindow

EXAMPLE = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=0.3)
GUARD_MS = 3.0


def coefficients(least: float = 0.0) -> st.SearchStrategy[Coefficients]:
    return st.builds(
        Coefficients,
        t0_ms=st.floats(max(least, 0.0), 20),
        t1_ms=st.floats(least * 1e-3, 0.1),
        t2_ms=st.floats(least * 1e-7, 1e-5),
        t_launch_ms=st.floats(least, 5),
    )


@pytest.mark.parametrize(
    ("prefix", "suffix", "candidates", "full", "hit", "pre"),
    [
        (8192, 128, 256, 74.050, 7.723, 69.327),
        (4096, 128, 256, 30.925, 6.150, 27.775),
        (8192, 2048, 2048, 125.559, 59.233, 69.327),
    ],
)
def test_worked_examples(
    prefix: int, suffix: int, candidates: int, full: float, hit: float, pre: float
) -> None:
    assert EXAMPLE.full_ms(prefix, suffix, candidates) == pytest.approx(full, abs=6e-4)
    assert EXAMPLE.hit_ms(prefix, suffix, candidates) == pytest.approx(hit, abs=6e-4)
    assert EXAMPLE.pre_ms(prefix) == pytest.approx(pre, abs=6e-4)


def test_a_longer_prefix() -> None:
    assert EXAMPLE.hit_ms(16384, 128, 256) == pytest.approx(10.869, abs=6e-4)
    assert EXAMPLE.pre_ms(16384) == pytest.approx(202.762, abs=6e-4)


def test_chunks_of_the_example() -> None:
    chunks = Chunks(EXAMPLE, 4.0, 32)
    assert [chunks.tokens(ctx, 1 << 20) for ctx in (0, 2048, 4096, 8192)] == [832, 576, 416, 288]
    assert [Chunks(EXAMPLE, 4.0, 1).tokens(ctx, 1 << 20) for ctx in (0, 2048, 4096, 8192)] == [
        837,
        583,
        444,
        299,
    ]
    assert chunks.count(8192) == 19
    assert EXAMPLE.pre_ms(8192, 19) == pytest.approx(72.027, abs=6e-4)


def test_the_longest_history_of_the_ladder() -> None:
    """40 ms remain: 4,912 tokens; 20 ms: 2,381; both before rounding down to a bucket of 128."""
    for remaining, tokens, rounded in ((40.0, 4912, 4864), (20.0, 2381, 2304)):
        found = EXAMPLE.longest(remaining - GUARD_MS, 256, 1 << 20)
        assert found == tokens
        assert found // 128 * 128 == rounded


def test_the_longest_history_gives_the_thresholds_of_the_risk_test() -> None:
    suffix = 128
    safe = EXAMPLE.longest(50 - GUARD_MS, 256, 1 << 20)
    surely_safe = EXAMPLE.longest(0.95 * 50 - GUARD_MS, 256, 1 << 20)
    assert safe is not None
    assert surely_safe is not None
    assert (safe - suffix + 1, surely_safe - suffix) == (5817, 5568)


@given(coefficients(), st.floats(0.1, 500), st.integers(0, 4096), st.integers(0, 20_000), st.floats(0.2, 5))
def test_the_longest_history_is_exact(
    found: Coefficients, budget: float, candidates: int, limit: int, k99: float
) -> None:
    longest = found.longest(budget, candidates, limit, k99)
    if longest is None:
        assert k99 * found.pass_ms(0, 0, candidates) > budget
        return
    assert 0 <= longest <= limit
    assert k99 * found.pass_ms(longest, 0, candidates) <= budget
    assert longest == limit or k99 * found.pass_ms(longest + 1, 0, candidates) > budget


@given(
    coefficients(),
    st.floats(0.01, 50),
    st.sampled_from([8, 32, 256]),
    st.integers(0, 20_000),
    st.integers(1, 20_000),
)
def test_a_chunk_is_whole_pages_and_as_long_as_fits(
    found: Coefficients, chunk_ms: float, page: int, cached: int, limit: int
) -> None:
    step = Chunks(found, chunk_ms, page).tokens(cached, limit)
    assert 1 <= step <= limit
    assert step % page == 0 or step == limit
    whole = -(-step // page)
    assert whole == 1 or found.chunk_pass_ms(whole * page, cached) <= chunk_ms
    assert step == limit or found.chunk_pass_ms((whole + 1) * page, cached) > chunk_ms


@given(coefficients(), st.floats(0.05, 20), st.sampled_from([8, 32, 256]), st.integers(0, 3000))
def test_counted_chunks_are_those_that_are_cut_and_none_exceeds_the_bound(
    found: Coefficients, chunk_ms: float, page: int, tokens: int
) -> None:
    chunks = Chunks(found, chunk_ms, page)
    done, steps = 0, []
    while done < tokens:
        steps.append(chunks.step(done, tokens - done))
        assert found.chunk_pass_ms(steps[-1], done) <= chunks.bound_ms(-(-tokens // page) * page)
        done += steps[-1]
    assert chunks.count(tokens) == len(steps)
    spent = sum(found.chunk_pass_ms(step, sum(steps[:i])) for i, step in enumerate(steps))
    assert spent == pytest.approx(found.pre_ms(tokens, len(steps)), rel=1e-9, abs=1e-9)


def test_one_page_that_takes_longer_is_reported() -> None:
    slow = Coefficients(t0_ms=0.0, t1_ms=0.1, t2_ms=1e-4, t_launch_ms=1.0)
    chunks = Chunks(slow, 2.0, 32)
    assert chunks.tokens(4064, 4096) == 32
    assert chunks.bound_ms(4096) == slow.chunk_pass_ms(32, 4064) > 2.0
    assert Chunks(EXAMPLE, 4.0, 32).bound_ms(4096) == 5.0
    assert chunks.page_ms(4096) == chunks.bound_ms(4096)
    assert chunks.page_ms(16) == slow.chunk_pass_ms(32, 0)


def test_the_last_chunk_may_take_a_quarter_more() -> None:
    chunks = Chunks(EXAMPLE, 4.0, 32)
    most = max(left for left in range(2000) if EXAMPLE.chunk_pass_ms(left, 2048) <= 5.0)
    assert most > 576
    assert [chunks.step(2048, left) for left in (32, 576, most, most + 1)] == [32, 576, most, 576]
    assert [chunks.count(left, 2048) for left in (576, most, most + 1)] == [1, 1, 2]
    # Of a rest that is longer, the chunks before are as they would be.
    assert chunks.step(2048, 1 << 20) == chunks.tokens(2048, 1 << 20)


def test_many_chunks_of_a_page_are_counted_without_cutting_them() -> None:
    slow = Coefficients(t0_ms=0.0, t1_ms=0.1, t2_ms=1e-6, t_launch_ms=1.0)
    chunks = Chunks(slow, 4.3, 32)
    assert chunks.count(1 << 31) == (1 << 31) // 32
    done, steps = 0, 0
    while done < 1000:
        done, steps = done + chunks.step(done, 1000 - done), steps + 1
    assert chunks.count(1000) == chunks.single_pages(0, 1000) == steps == 31


def test_pairs() -> None:
    assert pairs(3, 10) == 3 * 10 + 1 + 2 + 3
    one = Pass(new_tokens=3, cached_tokens=10, candidates=2)
    assert (one.history_pairs, one.candidate_pairs) == (36, 2 * 14)
    assert EXAMPLE.batch_ms([one]) == EXAMPLE.pass_ms(3, 10, 2)


def test_a_batch_pays_for_its_launch_once() -> None:
    rank, chunk = Pass(new_tokens=5, candidates=7), Pass(new_tokens=64, chunk=True)
    assert EXAMPLE.batch_ms([]) == 0
    assert EXAMPLE.batch_ms([chunk]) == EXAMPLE.chunk_pass_ms(64, 0)
    both = EXAMPLE.batch_ms([rank]) - EXAMPLE.t0_ms + EXAMPLE.batch_ms([chunk]) - EXAMPLE.t_launch_ms
    assert EXAMPLE.batch_ms([chunk, rank]) == pytest.approx(EXAMPLE.t0_ms + both)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e10])
def test_impossible_coefficients_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"latency\.t1_ms: .* is outside \[0, 1e\+09\]"):
        Coefficients(t0_ms=1, t1_ms=value, t2_ms=0, t_launch_ms=0)


@pytest.mark.parametrize("value", [-1, (1 << 31) + 1])
def test_impossible_passes_are_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=rf"pass\.candidates: {value} is outside"):
        Pass(new_tokens=1, candidates=value)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.lists(st.floats(0.01, 100), max_size=200), st.integers(0, 80))
def test_the_window_is_the_last_ratios(limit: int, ratios: list[float], seeded: int) -> None:
    window = RatioWindow(ratios[:seeded], limit)
    assert window.p99 == 1.0 or len(window)
    for ratio in ratios[seeded:]:
        window.add(ratio)
    kept = ratios[-limit:]
    assert len(window) == len(kept)
    if kept:
        error = window.error()
        assert window.p99 == error.p99 == pytest.approx(float(np.percentile(kept, 99)), rel=1e-12)
        assert error.median == pytest.approx(float(np.percentile(kept, 50)), rel=1e-12)
        assert error.mean_error == pytest.approx(float(np.abs(np.array(kept) - 1).mean()), rel=1e-9)
        assert error.samples == len(kept)


def test_an_empty_window() -> None:
    error = RatioWindow().error()
    assert (error.samples, error.median, error.p99, error.mean_error) == (0, 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="limit: 0"):
        RatioWindow(limit=0)


def test_k99_follows_what_is_measured_and_raises_predictions() -> None:
    model = LatencyModel(EXAMPLE)
    shape = Pass(new_tokens=1000, candidates=128)
    exact = EXAMPLE.pass_ms(1000, 0, 128)
    assert (model.k99, model.full_p99_ms(900, 100, 128)) == (1.0, exact)
    rng = np.random.default_rng(0)
    factors = rng.lognormal(0, 0.3, 3 * WINDOW)
    for factor in factors:
        model.observe([shape], factor * exact)
    k99 = float(np.percentile(factors[-WINDOW:], 99))
    assert model.k99 == pytest.approx(k99)
    assert model.error().samples == WINDOW
    assert model.hit_p99_ms(900, 100, 128) == pytest.approx(k99 * EXAMPLE.hit_ms(900, 100, 128))
    assert model.pre_ms(900, 3) == pytest.approx(model.k50 * EXAMPLE.pre_ms(900, 3))
    assert model.longest_p99(40, 128, 8192) == EXAMPLE.longest(40, 128, 8192, model.k99)
    assert model.chunks(4.0, 32) == Chunks(EXAMPLE, 4.0, 32)


def test_hits_that_take_longer_than_fitted_do_not_make_long_passes_late() -> None:
    """As under load: what surrounds a pass is a good part of a hit, and a small one of a long pass."""
    model = LatencyModel(EXAMPLE)
    hit, long, chunk = (
        Pass(new_tokens=10, cached_tokens=4000, candidates=128),
        Pass(new_tokens=3000, cached_tokens=1000, candidates=128),
        Pass(new_tokens=500, cached_tokens=2000, chunk=True),
    )
    for _ in range(300):
        model.observe([hit], 1.4 * EXAMPLE.batch_ms([hit]))
    # Long passes are as all passes are, until some were measured.
    assert model.usual_ms(3000, 1000, 128) == pytest.approx(1.4 * EXAMPLE.pass_ms(3000, 1000, 128))
    for _ in range(15):
        model.observe([long], 1.1 * EXAMPLE.batch_ms([long]))
        model.observe([chunk], 1.1 * EXAMPLE.batch_ms([chunk]))
    assert model.usual_ms(3000, 1000, 128) == pytest.approx(1.1 * EXAMPLE.pass_ms(3000, 1000, 128))
    assert model.full_p99_ms(4000, 0, 128) == pytest.approx(1.1 * EXAMPLE.full_ms(4000, 0, 128))
    assert model.hit_p99_ms(4000, 10, 128) == pytest.approx(1.4 * EXAMPLE.hit_ms(4000, 10, 128))
    assert model.pre_ms(4000, 3) == pytest.approx(1.1 * EXAMPLE.pre_ms(4000, 3))
    assert model.longest_p99(40, 128, 8192) == EXAMPLE.longest(40, 128, 8192, 1.1)
    assert model.k50 == pytest.approx(1.4)
    # A batch counts as what most of its time goes to.
    for _ in range(100):
        model.observe([hit, long], 2.0 * EXAMPLE.batch_ms([hit, long]))
    assert model.usual_ms(3000, 1000, 128) == pytest.approx(2.0 * EXAMPLE.pass_ms(3000, 1000, 128))
    assert model.usual_ms(10, 4000, 128) == pytest.approx(1.4 * EXAMPLE.pass_ms(10, 4000, 128))


def test_it_starts_from_single_timed_passes() -> None:
    hit, long = Pass(new_tokens=0, cached_tokens=4000, candidates=128), Pass(new_tokens=4000)
    timed = [(hit, 3.0 * EXAMPLE.batch_ms([hit]))] * 30 + [(long, EXAMPLE.batch_ms([long]))] * 30
    model = LatencyModel(EXAMPLE, timed=timed)
    assert model.usual_ms(0, 4000, 128) == pytest.approx(3.0 * EXAMPLE.pass_ms(0, 4000, 128))
    assert model.usual_ms(4000, 0, 0) == pytest.approx(EXAMPLE.pass_ms(4000, 0, 0))
    assert model.error().samples == 60


def test_a_reload_forgets_ratios_to_the_old_coefficients() -> None:
    model = LatencyModel(EXAMPLE, [3.0] * 10)
    assert model.k99 == 3.0
    other = EXAMPLE.scaled(2.0)
    model.reload(other, [1.5, 1.5])
    assert (model.coefficients, model.k99, model.error().samples) == (other, 1.5, 2)
    assert model.full_p99_ms(100, 0, 10) == 1.5 * other.full_ms(100, 0, 10)
    model.reload(EXAMPLE)
    assert model.k99 == 1.0


@pytest.mark.parametrize("ms", [-1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(ms: float) -> None:
    model = LatencyModel(EXAMPLE)
    with pytest.raises(ValueError, match="measured_ms"):
        model.observe([Pass(new_tokens=1)], ms)
    with pytest.raises(ValueError, match="must be positive"):
        fit([Sample(Pass(new_tokens=1), ms)])
    assert model.error().samples == 0


def test_a_prediction_of_nothing_does_not_divide_by_zero() -> None:
    model = LatencyModel(Coefficients(t0_ms=0, t1_ms=1, t2_ms=0, t_launch_ms=0))
    model.observe([Pass(new_tokens=0)], 0.5)
    model.observe([], 100.0)
    assert (model.k99, model.error().samples) == (500.0, 1)


GRID = [
    Pass(new_tokens=q, cached_tokens=ctx, candidates=c, chunk=not c)
    for q, ctx in ((256, 0), (1024, 0), (4096, 0), (64, 256), (64, 4096), (256, 2048))
    for c in (0, 32, 512)
]


def timed(found: Coefficients, shapes: list[Pass], noise: list[float] | None = None) -> list[Sample]:
    factors = noise or [1.0] * len(shapes)
    return [Sample(s, found.batch_ms([s]) * f) for s, f in zip(shapes, factors, strict=True)]


def values(found: Coefficients) -> np.ndarray:
    return np.array([found.t0_ms, found.t1_ms, found.t2_ms, found.t_launch_ms])


@settings(max_examples=60, deadline=None)
@given(coefficients(least=0.05))
def test_the_fit_finds_what_made_the_times(found: Coefficients) -> None:
    np.testing.assert_allclose(values(fit(timed(found, GRID))), values(found), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(coefficients())
def test_the_fit_predicts_exact_times_even_where_a_coefficient_is_nothing(found: Coefficients) -> None:
    samples = timed(found, GRID)
    assume(min(sample.ms for sample in samples) > 1e-6)
    again = fit(samples)
    assert values(again).min() >= 0
    got = [again.batch_ms([sample.shape]) for sample in samples]
    np.testing.assert_allclose(got, [sample.ms for sample in samples], rtol=1e-9)


def relative_error(found: Coefficients, samples: list[Sample]) -> float:
    return sum((found.batch_ms([sample.shape]) / sample.ms - 1) ** 2 for sample in samples)


@settings(max_examples=40, deadline=None)
@given(
    coefficients(least=0.05),
    st.lists(st.floats(0.5, 2), min_size=len(GRID), max_size=len(GRID)),
    st.lists(st.floats(-0.05, 0.05), min_size=4, max_size=4),
)
def test_no_other_coefficients_are_nearer(
    found: Coefficients, noise: list[float], change: list[float]
) -> None:
    samples = timed(found, GRID, noise)
    best = fit(samples)
    t0, t1, t2, launch = np.maximum(values(best) + np.array(change) * values(found), 0).tolist()
    other = Coefficients(t0_ms=t0, t1_ms=t1, t2_ms=t2, t_launch_ms=launch)
    assert relative_error(best, samples) <= relative_error(other, samples) * (1 + 1e-9) + 1e-12


def test_short_passes_count_like_long_ones() -> None:
    """Off by a tenth of the longest time, not weighted, would bury the shortest passes."""
    rng = np.random.default_rng(1)
    found = Coefficients(t0_ms=1.0, t1_ms=0.01, t2_ms=1e-5, t_launch_ms=0.5)
    again = fit(timed(found, GRID, rng.uniform(0.9, 1.1, len(GRID)).tolist()))
    for shape in GRID:
        assert again.batch_ms([shape]) == pytest.approx(found.batch_ms([shape]), rel=0.1)


def test_kinds_that_were_not_timed_borrow_the_fixed_part() -> None:
    ranks = [shape for shape in GRID if not shape.chunk]
    chunks = [shape for shape in GRID if shape.chunk]
    assert fit(timed(EXAMPLE, ranks)).t_launch_ms == pytest.approx(EXAMPLE.t0_ms)
    assert fit(timed(EXAMPLE, chunks)).t0_ms == pytest.approx(EXAMPLE.t_launch_ms)
    with pytest.raises(ValueError, match="none"):
        fit([])


def test_one_sample_is_reproduced() -> None:
    sample = Sample(Pass(new_tokens=100, candidates=10), 7.0)
    assert fit([sample]).batch_ms([sample.shape]) == pytest.approx(7.0)
