"""The search for the highest passing rate, on servers with a known one."""

from __future__ import annotations

import asyncio

import pytest

from relaygr.bench.serve_report import LoadResult, Search
from relaygr.bench.serve_slo import find_slo, passes
from relaygr.bench.serve_spec import LoadSpec, SloSpec
from relaygr.bench.serve_tally import Histogram, Tally
from relaygr.core.errors import ConfigError


def result(rate: float, good: int, visits: int = 1000) -> LoadResult:
    tally = Tally(50.0)
    for number in range(visits):
        tally.due()
        if number < good:
            tally.done("rank", "hit", 0.001)
        else:
            tally.failed("rank", "missed")
    return tally.result(rate, 1.0)


def search(capacity: float, start: float, slo: SloSpec, lucky: frozenset[int] = frozenset()) -> Search:
    """Rates above `capacity` fail, except in the probes numbered in `lucky`."""

    async def probe(rate: float, seed: int) -> LoadResult:
        return result(rate, 1000 if rate <= capacity or seed in lucky else 500)

    return asyncio.run(find_slo(probe, start, slo))


@pytest.mark.parametrize("start", [1.0, 37.0, 70.0, 5000.0])
def test_the_highest_rate_is_found(start: float) -> None:
    found = search(70.0, start, SloSpec(resolution=0.02, most=60))
    assert found.best_rps is not None
    assert 70 / 1.02 <= found.best_rps <= 70
    tried = [probe.rate for probe in found.probes]
    assert tried.count(found.best_rps) == 2  # confirmed
    assert min(rate for rate in tried if rate > 70) <= found.best_rps * 1.02


def test_it_doubles_first() -> None:
    assert [probe.rate for probe in search(70.0, 10.0, SloSpec()).probes][:4] == [10, 20, 40, 80]


def test_a_lucky_probe_is_not_believed() -> None:
    # The fourth probe, at 80, passes once by luck.
    found = search(70.0, 10.0, SloSpec(resolution=0.02, most=60), lucky=frozenset({3}))
    assert found.best_rps is not None
    assert found.best_rps <= 70


def test_nothing_passes() -> None:
    found = search(0.0, 10.0, SloSpec())
    assert found.best_rps is None
    assert found.ended == "0.1/s fails"


def test_probes_are_bounded_and_an_unconfirmed_rate_is_none() -> None:
    found = search(70.0, 10.0, SloSpec(most=3))
    assert (found.best_rps, len(found.probes), found.ended) == (None, 3, "3 probes are made")


def test_a_server_that_is_faster_than_the_client() -> None:
    found = search(1e9, 60_000.0, SloSpec())
    assert found.best_rps == 100_000
    assert "makes no more" in found.ended


def test_what_passes() -> None:
    slo = SloSpec(share=0.99)
    assert passes(result(1, 990), slo)
    assert not passes(result(1, 989), slo)
    assert not passes(result(1, 0, visits=0), slo)


def test_a_tally_counts_late_and_shortened_answers_as_no_good() -> None:
    tally = Tally(deadline_ms=10.0)
    for path, seconds in (("hit", 0.009), ("hit", 0.011), ("truncated", 0.001), ("full", 0.0100)):
        tally.due()
        tally.sent(0.0)
        tally.done("rank", path, seconds)
    tally.due()
    tally.sent(0.006)
    tally.failed("rank", "503")
    tally.due()
    tally.failed("rank", "missed")
    tally.done("prefix", "admitted", 0.5)
    found = tally.result(2.0, 3.0)
    assert (found.visits, found.good, found.missed, found.errors) == (6, 2, 1, 2)
    assert (found.good_share, found.goodput_rps, found.done_rps) == (2 / 6, 2 / 3, 4 / 3)
    assert found.late_sends == 1
    assert [(row.stage, row.path, row.count) for row in found.latencies] == [
        ("rank", "all", 4),
        ("rank", "full", 1),
        ("rank", "hit", 2),
        ("rank", "truncated", 1),
        ("prefix", "all", 1),
        ("prefix", "admitted", 1),
    ]


def test_percentiles_are_of_the_ranks() -> None:
    times = Histogram()
    for number in range(1, 1001):
        times.add(number / 1000)
    assert (times.ms(50), times.ms(90)) == (pytest.approx(500, rel=2e-3), pytest.approx(900, rel=2e-3))
    assert (times.ms(99), times.ms(99.9)) == (pytest.approx(990, rel=2e-3), pytest.approx(999, rel=2e-3))
    assert (times.max_ms, times.mean_ms) == (pytest.approx(1000, rel=2e-3), pytest.approx(500.5, rel=2e-3))
    for strange in (0.0, -1.0, 1e9):
        times.add(strange)
    assert len(times) == 1003


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0}, "--rate: 0 is outside"),
        ({"rate": float("nan")}, "--rate: nan is outside"),
        ({"url": "server"}, "URL: 'server' must be http"),
        ({"url": "http://h:99999"}, "URL: 'http://h:99999'"),
        ({"arrivals": "nowhere.csv"}, "--arrivals: 'nowhere.csv' is neither 'poisson' nor a file"),
        ({"users": 0}, "--users: 0 is outside"),
        ({"tenant": "a\nb"}, "--tenant: must be printable"),
        ({"deadline_ms": 0.5}, "--deadline-ms: 0.5 is outside"),
    ],
)
def test_bad_loads(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoadSpec(**{"url": "http://h", **options})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_bad_targets() -> None:
    with pytest.raises(ConfigError, match=r"--slo-share: 1\.1 is outside"):
        SloSpec(share=1.1)
