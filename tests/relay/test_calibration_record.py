"""The file of a calibration: whole, bound to its build, and refused when it is anything else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.relay.calibration import (
    MAX_FILE_BYTES,
    Build,
    Calibration,
    Point,
    load_calibration,
    save_calibration,
)
from relaygr.relay.fit import Sample, fit
from relaygr.relay.latency import Coefficients, Pass

BUILD = Build(model="ab" * 16, dtype="fp32", kernel="cpu aten torch 2", threads=1, machine="some, 2 cores")
TRUE = Coefficients(t0_ms=2.0, t1_ms=0.01, t2_ms=4e-6, t_launch_ms=0.5)
SHAPES = [
    Pass(new_tokens=q, cached_tokens=ctx, candidates=c, chunk=not c)
    for q, ctx in ((256, 0), (1024, 0), (4096, 0), (64, 256), (64, 4096))
    for c in (0, 128)
]


def points(factors: tuple[float, ...] = (1.0,)) -> tuple[Point, ...]:
    return tuple(Point(shape=s, times_ms=tuple(f * TRUE.batch_ms([s]) for f in factors)) for s in SHAPES)


def calibration() -> Calibration:
    return Calibration.of(BUILD, points())


def test_exact_times_give_exact_coefficients() -> None:
    found = calibration()
    assert (found.coefficients.t1c_ms, found.coefficients.t2c_ms) == (None, None)
    for name in ("t0_ms", "t1_ms", "t2_ms", "t_launch_ms"):
        assert getattr(found.coefficients, name) == pytest.approx(getattr(TRUE, name), rel=1e-9)
    assert max(abs(found.error(point)) for point in found.points) < 1e-9


def test_candidates_get_coefficients_of_their_own_where_they_cost_something_else() -> None:
    apart = msgspec.structs.replace(TRUE, t1c_ms=0.03, t2c_ms=1e-5)
    shapes = [
        Pass(new_tokens=q, cached_tokens=ctx, candidates=c, chunk=not c)
        for q, ctx in ((256, 0), (1024, 0), (4096, 0), (64, 256), (64, 4096))
        for c in (0, 32, 128, 512)
    ]
    found = fit([Sample(s, apart.batch_ms([s])) for s in shapes])
    for name in apart.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(apart, name), rel=1e-6)
    # Two numbers of candidates cannot tell them from the rest of a pass.
    few = fit([Sample(s, apart.batch_ms([s])) for s in shapes if s.candidates in (0, 128)])
    assert (few.t1c_ms, few.t2c_ms) == (None, None)


def test_the_level_is_that_of_the_medians_and_k99_that_of_all_times() -> None:
    found = Calibration.of(BUILD, points((1.0, 1.2, 3.0)))
    assert found.coefficients.t1_ms == pytest.approx(1.2 * TRUE.t1_ms, rel=1e-9)
    ratios = [
        ms / found.coefficients.batch_ms([point.shape]) for point in found.points for ms in point.times_ms
    ]
    assert len(ratios) == 3 * len(SHAPES)
    assert found.model().k99 == pytest.approx(float(np.percentile(ratios, 99)))
    assert found.model().k99 == pytest.approx(3.0 / 1.2)
    assert found.model().error().median == pytest.approx(1.0)


def test_a_busy_neighbour_does_not_bend_the_shape() -> None:
    """A time slice of 4 ms lost in most passes, as a neighbour on the same core takes it."""
    rng = np.random.default_rng(0)
    times = {s: TRUE.batch_ms([s]) + 4.0 * (rng.random(9) < 0.7) for s in SHAPES}
    for ms in times.values():
        ms[0] = min(ms)
    disturbed = tuple(Point(shape=s, times_ms=tuple(ms.tolist())) for s, ms in times.items())
    assert sum(point.median_ms > TRUE.batch_ms([point.shape]) + 3.9 for point in disturbed) >= 7
    found = Calibration.of(BUILD, disturbed).coefficients
    assert found.t2_ms / found.t1_ms == pytest.approx(TRUE.t2_ms / TRUE.t1_ms, rel=0.05)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "new" / "calibration.json"
    save_calibration(file, calibration())
    assert load_calibration(file) == calibration()
    assert [path.name for path in file.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "cd"), ("dtype", "bf16"), ("kernel", "reference"), ("threads", 2), ("machine", "other")],
)
def test_another_build_is_named(field: str, value: object) -> None:
    calibration().check(BUILD)
    other = msgspec.structs.replace(BUILD, **{field: value})
    message = rf"calibration\.build\.{field}: .* was measured, {re.escape(repr(value))} is here"
    with pytest.raises(ConfigError, match=message):
        calibration().check(other)


def text(**changes: object) -> bytes:
    raw = msgspec.to_builtins(calibration())
    return msgspec.json.encode(raw | changes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b"\xff", "invalid"),
        (text(format=2), "has format 2, not 1"),
        (text(other=1), "unknown field `other`"),
        (text(points=[{"shape": {"new_tokens": 1}, "times_ms": []}]), "points.times_ms: needs at least one"),
        (text(points=[{"shape": {"new_tokens": 1}, "times_ms": [-1.0]}]), "-1.0 must be positive"),
        (text(points=[{"shape": {"new_tokens": -1}, "times_ms": [1.0]}]), "pass.new_tokens: -1 is outside"),
        (
            text(coefficients={"t0_ms": -1.0, "t1_ms": 0.0, "t2_ms": 0.0, "t_launch_ms": 0.0}),
            "latency.t0_ms: -1.0 is outside",
        ),
        (b" " * (MAX_FILE_BYTES + 1), f"more than {MAX_FILE_BYTES} bytes"),
    ],
)
def test_files_that_are_no_calibration(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "calibration.json"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_calibration(file)


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"calibration: .* cannot be read: No such file"):
        load_calibration(tmp_path / "missing.json")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_calibration(tmp_path / "file" / "calibration.json", calibration())
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        save_calibration(tmp_path / "folder", calibration())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
