"""Calibration: the shapes that are timed, exact fits of modelled time, noise, and what it leaves alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import CONFIG, FAMILIES, KEPT, PAGE_BYTES, PAGE_TOKENS, history, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.units import MIB
from relaygr.engine import calibrate as module
from relaygr.engine.calibrate import calibrate, calibrated, describe_build, measure
from relaygr.engine.engine import Engine
from relaygr.engine.ladder import ladders
from relaygr.engine.requests import PrefetchResult, RankRequest
from relaygr.models.presets import PRESETS, AnyConfig
from relaygr.relay.calibration import Calibration, Point, load_calibration, save_calibration
from relaygr.relay.fit import Sample, fit
from relaygr.relay.latency import Coefficients, Pass

TRUE = Coefficients(t0_ms=2.0, t1_ms=0.02, t2_ms=1e-4, t_launch_ms=0.5)


class ModelledTime:
    """A timer that moves by what a pass would take by `found`, plus a delay, and not otherwise."""

    def __init__(
        self, engine: Engine, found: Coefficients = TRUE, delay_ms: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.now_s = 0.0
        self._found, self._delay_ms = found, delay_ms
        rank, prefetch = engine.rank, engine.prefetch

        def modelled_rank(request: RankRequest) -> object:
            result = rank(request)
            self._move(result.served, len(request.candidates))
            return result

        def modelled_prefetch(user: object) -> object:
            served = prefetch(user)  # type: ignore[arg-type]
            self._move(served, 0)
            return served

        engine.rank, engine.prefetch = modelled_rank, modelled_prefetch  # type: ignore[method-assign, assignment]

    def __call__(self) -> float:
        return self.now_s

    def _move(self, served: PrefetchResult, candidates: int) -> None:
        new = served.tokens_computed + served.tokens_provisional
        shape = Pass(
            new_tokens=new,
            cached_tokens=served.tokens_cached,
            candidates=candidates,
            chunk=not candidates,
        )
        self.now_s += (self._found.batch_ms([shape]) + self._delay_ms()) / 1e3


def fitted(engine: Engine, points: tuple[Point, ...]) -> Coefficients:
    return Calibration.of(describe_build(engine), points).coefficients


def values(found: Coefficients) -> np.ndarray:
    return np.array([found.t0_ms, found.t1_ms, found.t2_ms, found.t_launch_ms])


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_modelled_time_is_fitted_exactly() -> None:
    engine = make_engine()
    points = measure(engine, 1.0, ModelledTime(engine))
    np.testing.assert_allclose(values(fitted(engine, points)), values(TRUE), rtol=1e-7)
    for point in points:
        assert len(point.times_ms) >= 5
        np.testing.assert_allclose(point.times_ms, TRUE.batch_ms([point.shape]), rtol=1e-9)


@pytest.mark.parametrize("name", KEPT)
def test_every_kind_of_pass_is_timed(name: str) -> None:
    engine = make_engine(KEPT[name])
    shapes = [point.shape for point in measure(engine, 0.5, ModelledTime(engine))]
    provisional = engine.model_config.provisional
    assert any(s.candidates and not s.cached_tokens for s in shapes), "cold"
    assert any(s.candidates and s.cached_tokens and s.new_tokens == provisional for s in shapes), "hit"
    assert any(s.candidates and s.cached_tokens and s.new_tokens > provisional for s in shapes), "suffix"
    assert any(s.chunk and s.cached_tokens for s in shapes), "chunk"
    assert any(s.chunk and not s.cached_tokens for s in shapes), "first chunk"


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - KEPT.keys()))
def test_models_that_keep_nothing_are_timed_by_what_they_compute(name: str) -> None:
    engine = make_engine(FAMILIES[name])
    points = measure(engine, 0.5, ModelledTime(engine))
    assert all(not point.shape.cached_tokens and not point.shape.chunk for point in points)
    found = fitted(engine, points)
    assert found.t_launch_ms == found.t0_ms == pytest.approx(TRUE.t0_ms, rel=1e-6)


def test_a_pool_without_room_is_timed_as_it_serves() -> None:
    engine = make_engine(replace(CONFIG, max_seq_len=8192, position_buckets=8192))
    quick = Coefficients(t0_ms=2.0, t1_ms=0.001, t2_ms=0.0, t_launch_ms=0.5)
    shapes = [point.shape for point in measure(engine, 0.3, ModelledTime(engine, quick))]
    longest = max(shape.new_tokens for shape in shapes)
    # 128 pages of 32 tokens.
    assert longest > 128 * PAGE_TOKENS
    assert not any(shape.cached_tokens > 128 * PAGE_TOKENS for shape in shapes)
    assert any(shape.cached_tokens for shape in shapes)


def test_disturbed_passes_are_timed_again_and_do_not_bend_the_fit() -> None:
    """A neighbour takes a slice of 4 ms from most passes, which short ones feel most."""
    engine, rng = make_engine(), np.random.default_rng(3)
    timer = ModelledTime(engine, delay_ms=lambda: 4.0 * (rng.random() < 0.6))
    points = measure(engine, 3.0, timer)
    # All of the time is used, unlike on a quiet machine.
    assert timer.now_s > 2.8

    def bent(found: Coefficients) -> float:
        """Largest error of the times, at equal time of a token."""
        level = found.t1_ms / TRUE.t1_ms
        shapes = [[point.shape] for point in points]
        return max(abs(found.batch_ms(s) / level / TRUE.batch_ms(s) - 1) for s in shapes)

    assert bent(fitted(engine, points)) < 0.1
    assert bent(fit([Sample(point.shape, point.median_ms) for point in points])) > 0.3


def test_a_quiet_machine_is_believed_early() -> None:
    engine = make_engine()
    timer = ModelledTime(engine)
    measure(engine, 3.0, timer)
    assert 1.8 <= timer.now_s < 2.1


@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_the_time_is_kept_and_what_is_too_long_left_out(seconds: float) -> None:
    slow = Coefficients(t0_ms=1.0, t1_ms=0.05, t2_ms=0.0, t_launch_ms=1.0)
    engine = make_engine()
    timer = ModelledTime(engine, slow)
    points = measure(engine, seconds, timer)
    longest = max(point.shape.new_tokens + point.shape.cached_tokens for point in points)
    # The shortest length is timed whatever it takes, twice.
    assert timer.now_s < 1.15 * seconds + 0.15
    assert (longest > 100) == (seconds == 1.0)


def test_a_clock_that_stands_still_is_an_error() -> None:
    with pytest.raises(BackendError, match="the clock did not move"):
        measure(make_engine(), 1.0, lambda: 7.0)


def test_the_users_are_forgotten_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    measure(engine, 0.2, ModelledTime(engine))
    assert engine.cache_stats().entries == 0
    calls = []

    def failing(request: RankRequest) -> object:
        calls.append(engine.prefetch(request.history))
        raise BackendError("scores are not finite")

    monkeypatch.setattr(engine, "rank", failing)
    with pytest.raises(BackendError):
        measure(engine, 0.2)
    assert calls[-1].resident
    assert engine.cache_stats().entries == 0


def test_calibrating_leaves_the_engine_alone() -> None:
    engine = make_engine()
    user = history("u", 50, 1)
    engine.prefetch(user)
    before = engine.stats(), engine.cache_stats()
    found = calibrate(engine, 0.3)
    assert (engine.stats(), engine.cache_stats()) == before
    assert engine.rank(RankRequest(user, [1, 2])).served.tokens_cached == 50
    assert found.build == describe_build(engine)
    assert found.build.model == engine.model_fp.hex()
    assert len(found.points) > 5
    assert values(found.coefficients).max() > 0
    assert found.model().k99 > 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, 601.0, float("nan")])
def test_impossible_durations_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"seconds: .* is outside \(0, 600\]"):
        calibrate(make_engine(), seconds)


def test_the_engine_aside_never_takes_more_than_the_engine() -> None:
    for pages in (128, 4096):
        engine = make_engine(pages=pages)
        aside = module._aside(engine)
        assert aside.model is engine.model
        assert aside.config.device_bytes <= max(engine.config.device_bytes, MIB)
    assert aside.config.device_bytes == max(2 * 5 * PAGE_BYTES, MIB)


def test_the_build_tells_kernels_dtypes_and_threads_apart(threads: object) -> None:
    base = describe_build(make_engine())
    assert base.kernel.startswith("cpu ")
    assert describe_build(make_engine(bitwise=True)).kernel != base.kernel
    assert describe_build(make_engine(kernel="reference")).kernel.startswith("reference torch ")
    assert describe_build(make_engine(dtype="bf16")).dtype == "bf16"
    torch.set_num_threads(base.threads + 1)
    assert describe_build(make_engine()).threads == base.threads + 1


def test_a_stored_calibration_is_used_and_another_builds_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "relaygr.engine")
    engine, file = make_engine(), tmp_path / "calibration.json"
    first = calibrated(engine, file, 0.1)
    assert load_calibration(file) == first
    with monkeypatch.context() as patch:
        patch.setattr(module, "measure", None)  # not called
        assert calibrated(engine, file, 0.1) == first
    other = replace(first, build=replace(first.build, dtype="bf16"))
    save_calibration(file, other)
    caplog.clear()
    again = calibrated(engine, file, 0.1)
    assert "calibrating again: calibration.build.dtype: 'bf16' was measured, 'fp32' is here" in caplog.text
    assert load_calibration(file) == again != other
    assert calibrated(engine, None, 0.1).build == first.build


def test_a_damaged_file_is_an_error_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"calibration: .* missing required field"):
        calibrated(make_engine(), file, 0.1)
    assert file.read_text() == "{}"


def check_ladders(config: AnyConfig, max_candidates: int, dense: bool) -> None:
    found = ladders(config, max_candidates, dense)
    assert found
    events = [rung[0].events for rung in found]
    assert events == sorted(set(events))
    for ladder in (ladder for rung in found for ladder in rung):
        lengths = [len(request.history) for request in ladder.requests]
        assert lengths[0] == ladder.events >= 1
        assert lengths == sorted(lengths)
        assert lengths[-1] <= config.max_history
        for request in ladder.requests:
            assert len(request.candidates) <= min(max_candidates, config.max_num_candidates)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_ladders_of_every_preset(name: str, dense: bool) -> None:
    check_ladders(PRESETS[name], 16384, dense)
    longest = PRESETS[name].max_history
    assert max(rung[0].events for rung in ladders(PRESETS[name], 16384, dense)) >= longest // 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 600), st.booleans())
def test_ladders_of_any_size_stay_inside_the_window(size: int, candidates: int, dense: bool) -> None:
    check_ladders(replace(CONFIG, max_seq_len=size), candidates, dense)
