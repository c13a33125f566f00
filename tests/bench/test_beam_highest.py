"""The highest rate at a P99, on servers of known capacity in virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fake_door import FakeServer, highest_of_one_lane

from relaygr.bench.beam_case import make_decoder
from relaygr.bench.beam_highest import Effort, RateFound, highest_rate, likely_share
from relaygr.bench.beam_load import RatePoint, alone, play
from relaygr.bench.beam_rates import VARIANTS, RatesSpec, measure_rates
from relaygr.cli.bench_beam_rates import rates_table
from relaygr.core.errors import ConfigError

LONG = Effort(1e6, requests=1000)


def search(server: FakeServer, target_ms: float, effort: Effort, seed: int = 0) -> RateFound:
    alone_ms = alone(server.door, 3, 0, server)
    return highest_rate("any", 1, server.door, target_ms, alone_ms, effort, seed, 3, server)


@pytest.mark.parametrize(("service_s", "target_s"), [(0.3, 4.0), (1.5, 3.75), (0.01, 0.1)])
def test_the_rate_of_a_known_server_lies_in_the_bracket(service_s: float, target_s: float) -> None:
    found = search(FakeServer(service_s), 1000 * target_s, LONG)
    truth = highest_of_one_lane(service_s, target_s)
    assert found.settled
    assert found.keeps_per_s is not None
    assert found.fails_per_s == pytest.approx(1.1 * found.keeps_per_s)
    # The P99 of 1,000 requests is not that of all: the bracket may lie a step beside it, or two.
    others = [search(FakeServer(service_s), 1000 * target_s, LONG, seed) for seed in range(1, 5)]
    keeps = float(np.median([one.keeps_per_s for one in (found, *others)]))
    assert keeps / 1.1 <= truth <= keeps * 1.1**2
    assert found.saturated_per_s == pytest.approx(1 / service_s, rel=1e-6)
    assert found.alone_ms == pytest.approx(1000 * service_s)
    assert found.requests[0] >= 1000
    assert found.requests[1] > 0


def test_loads_are_long_enough_for_their_target() -> None:
    found = search(FakeServer(0.3), 4000.0, Effort(1e6))
    for point in found.points:
        assert point.planned >= 200
        assert point.planned / point.rate_per_s >= 5 * 4.0
    assert found.settled
    counts = [point.sent for point in found.points]
    assert min(counts) < 200  # those that cannot keep it any more end there
    assert all(point.sent == point.planned for point in found.points if point.passes)


def test_time_bounds_a_search_and_what_it_tells() -> None:
    server = FakeServer(0.3)
    found = search(server, 4000.0, Effort(240.0))
    assert server.now_s() < 240 + 2 * 4 + 10
    assert not found.settled
    # A quarter of the time holds fewer than 200 requests.
    for point in found.points:
        assert min(60, 200 / point.rate_per_s) <= point.planned / point.rate_per_s <= 61
    assert found.told.startswith(">=") or found.told.endswith("?")


def test_without_time_for_a_load_there_is_a_bound_only() -> None:
    found = search(FakeServer(1.5), 3750.0, Effort(20.0))
    assert (found.points, found.keeps_per_s, found.fails_per_s, found.settled) == ((), None, None, False)
    assert found.told == "< 0.67"


def test_a_server_slower_than_the_target_keeps_no_rate() -> None:
    found = search(FakeServer(2.0), 1900.0, Effort(1e6))
    assert (found.keeps_per_s, found.told[0]) == (None, "<")
    assert found.fails_per_s is not None
    assert found.below_per_s == found.fails_per_s < 0.5
    assert not any(point.passes for point in found.points)


def test_a_server_faster_than_any_load_has_a_lower_bound() -> None:
    found = search(FakeServer(0.1, lanes=10_000), 200.0, Effort(1e5, requests=20))
    assert (found.fails_per_s, found.settled) == (None, True)
    assert found.told.startswith(">=")


def test_loads_that_others_disturbed_are_played_again() -> None:
    calm = search(FakeServer(0.3), 4000.0, Effort(1e6))
    loud = search(FakeServer(0.3, disturbed=(90.0, 130.0)), 4000.0, Effort(1e6))
    disturbed = [point for point in loud.points if point.others_cores > 0.1]
    assert disturbed
    assert not any(point.passes for point in disturbed)
    assert calm.keeps_per_s is not None
    assert loud.keeps_per_s == pytest.approx(calm.keeps_per_s, rel=0.11)
    assert loud.settled


def test_no_number_is_sent_twice_and_nothing_runs_after_a_load() -> None:
    server = FakeServer(0.1)
    point = play(server.door, 30.0, 400, (0, 0), 7, 800.0, 400.0, server)
    assert point.far
    assert point.sent < 160
    assert server.busy == 0
    assert server.numbers == [*range(7, 7 + point.sent), 407]
    search(server, 400.0, Effort(2000.0))
    later = server.numbers[point.sent + 1 + 3 :]  # three of them are those of `alone`
    assert len(later) == len(set(later))


@pytest.mark.parametrize(("slow", "passes"), [(2, True), (3, False)])
def test_of_two_hundred_two_may_be_late(slow: int, passes: bool) -> None:
    server = FakeServer(0.001, lanes=1000)
    door = server.door

    def send(number: int):  # type: ignore[no-untyped-def]
        server.service_s = 1.0 if number % 60 == 5 and number < 60 * slow else 0.001
        return door.send(number)

    point = play(type(door)(send, 1), 100.0, 200, (1, 1), 0, 5000.0, 500.0, server)
    assert point.passes is passes
    assert point.failed == 0
    if passes:
        assert point.p50_ms == pytest.approx(1.0, abs=0.2)
        assert point.p99_ms == pytest.approx(1.0, abs=0.2)
    else:
        assert point.p99_ms == pytest.approx(1000.0, abs=1) or math.isinf(point.p99_ms)


def test_refused_and_unanswered_requests_have_failed() -> None:
    refusing = play(FakeServer(1.0, room=1).door, 10.0, 50, (0, 0), 0, 1000.0, watch=FakeServer(1.0))
    assert refusing.failed >= 49
    server = FakeServer(100.0)
    late = play(server.door, 10.0, 20, (0, 0), 0, 1000.0, watch=server)
    assert (late.sent, late.failed, late.passes) == (20, 20, False)


def test_the_start_grows_with_the_time_there_is_to_wait() -> None:
    shares = [likely_share(slack) for slack in (-1.0, 0.0, 0.5, 1.5, 3.0, 10.0, 100.0, 1e6)]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] == 0.05
    assert 0.4 < shares[3] < 0.5
    assert 0.94 < shares[-1] <= 0.95


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The products are tiny; threads would only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_all_variants_answer_and_are_tabled() -> None:
    """Without time for a load, so that all have upper bounds."""
    decoder = make_decoder("fp32", 0)
    spec = RatesSpec(width=4, prompt=8, sids=(300,), limit_s=0.01)
    told: list[str] = []
    rates = measure_rates(spec, decoder, 0, told.append)
    assert [(one.name, one.sids) for one in rates] == [(name, 300) for name in VARIANTS]
    assert len({one.target_ms for one in rates}) == 1
    assert decoder.mode == "auto"
    for one in rates:
        assert one.alone_ms > 0
        assert one.saturated_per_s > 0
        assert one.told == f"< {one.saturated_per_s:.2f}"
    assert rates_table(tuple(rates)).row_count == 6


def test_what_is_kept_is_compared_with_what_the_baseline_does_not_keep() -> None:
    def found(name: str, keeps: float | None, fails: float | None) -> RateFound:
        point = RatePoint(
            rate_per_s=1.0,
            planned=1,
            sent=1,
            failed=0,
            sent_late=0,
            target_ms=1.0,
            seconds=1.0,
            others_cores=0.25,
            p50_ms=1.0,
            p95_ms=1.0,
            p99_ms=1.0,
        )
        return RateFound(
            name=name,
            sids=1,
            target_ms=1.0,
            alone_ms=1.0,
            saturated_per_s=8.0,
            keeps_per_s=keeps,
            fails_per_s=fails,
            settled=False,
            requests=(200, 100),
            points=(point,),
        )

    table = rates_table(
        (found("naive", 1.0, 1.5), found("full system", 6.0, None), found("full sort", None, 4.0))
    )
    columns = {str(column.header): list(column.cells) for column in table.columns}
    assert columns["rate, 1/s"] == ["1.00 - 1.50 ?", ">= 6.00", "< 4.00"]
    assert columns["of naive"] == ["", ">= 4.0x", ""]


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("--load-s: -1", {"limit_s": -1.0}),
        ("--target-ms: 0", {"target_ms": 0.0}),
        (r"--ids: \(0,\)", {"sids": (0,)}),
        ("--variants: 'fast'", {"variants": ("naive", "fast")}),
    ],
)
def test_options_are_checked(option: str, fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=option):
        RatesSpec(**fields)  # type: ignore[arg-type]
