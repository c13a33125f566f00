"""What the scheduler adds: how stretches of waiting are counted, and one small run."""

from __future__ import annotations

from relaygr.bench.beam_stays import Limits, Stay, longest_free_s
from relaygr.bench.beam_waits import WaitsSpec, bench_waits

ALONE, TOGETHER = Limits(10, 100, alone=True), Limits(10, 100, alone=False)


def stay(
    queued: float, started: float, prefilled: float, done: float, rows: int = 4, tokens: int = 10
) -> Stay:
    return Stay(queued, started, prefilled, done, rows, tokens)


def test_waiting_for_a_group_is_no_free_wait_unless_others_may_join() -> None:
    stays = [stay(0, 0, 2, 5), stay(1, 6, 7, 8)]
    assert longest_free_s(stays, ALONE) == 1
    assert longest_free_s(stays, TOGETHER) == 5
    assert longest_free_s([], ALONE) == 0


def test_rows_count_until_the_end_and_tokens_until_the_prompt_is_there() -> None:
    full = stay(0, 0, 2, 5, rows=8)
    assert longest_free_s([full, stay(1, 5.5, 7, 8)], TOGETHER) == 0.5
    long = stay(0, 0, 2, 5, tokens=95)
    assert longest_free_s([long, stay(1, 5, 7, 8)], TOGETHER) == 3


def test_only_what_is_at_a_stretch_counts() -> None:
    stays = [stay(0, 1, 1, 3), stay(0, 4, 4, 6), stay(0, 8, 8, 9)]
    assert longest_free_s(stays, ALONE) == 2


def test_a_small_run_adds_up() -> None:
    spec = WaitsSpec(8, 32, 500, runs=3, loads=(1.0,), load_requests=6, idle_s=0.1, dtype="fp32", threads=1)
    report = bench_waits(spec)
    for lone in (report.direct, report.scheduled):
        assert 0 < lone.wait_ms.p50 < lone.total_ms.p99
        assert 0 < lone.outside_ms.p50 <= lone.total_ms.p50
    assert [cell.scheduling for cell in report.loaded] == ["fixed", "continuous"]
    for cell in report.loaded:
        assert (cell.point.sent, cell.point.failed) == (6, 0)
        assert cell.longest_ms >= 0
    assert 0 < report.closed_wait_ms.p50 <= report.closed_wait_ms.p99
    assert report.idle_share >= 0
