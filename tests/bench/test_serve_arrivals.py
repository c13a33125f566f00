"""Arrivals: the right rate, the trace's own shape, and clear words about bad files."""

from __future__ import annotations

import gzip
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from relaygr.bench.serve_arrivals import arrivals, trace_gaps
from relaygr.bench.serve_spec import LoadSpec
from relaygr.core.errors import ConfigError, DataError

URL = "http://127.0.0.1:1"


def first(spec: LoadSpec, count: int) -> list[float]:
    return list(itertools.islice(arrivals(spec), count))


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


def test_poisson_has_its_rate_and_spread() -> None:
    found = gaps(first(LoadSpec(url=URL, rate=50), 20_000))
    assert min(found) > 0
    assert statistics.mean(found) == pytest.approx(1 / 50, rel=0.05)
    # Exponential gaps spread as much as their mean; even ones would not spread at all.
    assert statistics.stdev(found) == pytest.approx(1 / 50, rel=0.05)


def test_a_seed_is_the_same_arrivals() -> None:
    one, again, other = (first(LoadSpec(url=URL, seed=seed), 50) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def write(path: Path, *rows: str) -> Path:
    path.write_text("\r\n".join(["TIMESTAMP,ContextTokens", *rows]) + "\r\n")
    return path


@pytest.mark.parametrize("form", ["dates", "seconds"])
def test_a_trace_is_scaled_and_goes_round(tmp_path: Path, form: str) -> None:
    seconds = (0, 1, 3, 6)
    dates = [f"2023-11-16 18:15:0{second}.0000000,5" for second in seconds]
    file = write(tmp_path / "t.csv", *(dates if form == "dates" else [f"{s}.0,5" for s in seconds]))
    assert trace_gaps(file) == [1, 2, 3]
    found = gaps(first(LoadSpec(url=URL, rate=1, arrivals=str(file)), 6))
    assert sum(found) == pytest.approx(6)
    assert sorted(found) == pytest.approx([0.5, 0.5, 1, 1, 1.5, 1.5])
    assert found[:3] == pytest.approx(found[3:])


def test_gzip_is_read(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.csv", "1,0", "2,0")
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert trace_gaps(packed) == [1.0]


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        (["1,0", "soon,0"], DataError, r"t\.csv:3: column 'TIMESTAMP': 'soon' is no time"),
        (["5,0", "4,0"], DataError, "is before the row in front of it"),
        (["5,0"], ConfigError, "fewer than two different times"),
        (["5,0", "5,0"], ConfigError, "fewer than two different times"),
        ([], ConfigError, "fewer than two different times"),
    ],
)
def test_bad_traces(tmp_path: Path, rows: list[str], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        trace_gaps(write(tmp_path / "t.csv", *rows))


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("time\n1\n")
    with pytest.raises(DataError, match="is missing among"):
        trace_gaps(file)
    file.write_bytes(b"\x1f\x8b\x08broken")
    with pytest.raises(ConfigError, match="cannot be read"):
        trace_gaps(file)
    file.write_bytes(b"TIMESTAMP\n\xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        trace_gaps(file)


def test_a_published_trace_keeps_its_bursts(shared_data: Callable[[str], Path]) -> None:
    file = shared_data("azure-llm-2023/AzureLLMInferenceTrace_code.csv.gz")
    found = trace_gaps(file)
    assert len(found) == 8818
    assert sum(found) == pytest.approx(3436, abs=1)
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(13.2, abs=0.1)
    scaled = gaps(first(LoadSpec(url=URL, rate=100, arrivals=str(file)), len(found)))
    assert statistics.mean(scaled) == pytest.approx(1 / 100)
    assert statistics.stdev(scaled) / statistics.mean(scaled) == pytest.approx(13.2, abs=0.1)
