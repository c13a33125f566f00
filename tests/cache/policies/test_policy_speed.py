"""M29: an operation costs about as much at many entries as at few."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from policy_speed import full, operate, report

from relaygr.cache.policies import POLICIES

OPERATIONS = 2000


def calls(work: Callable[[], None]) -> tuple[int, int]:
    """Calls of functions, and of those that look at all of a container."""
    seen = [0, 0]

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            seen[0] += 1
            name = getattr(arg, "__name__", "") if event == "c_call" else ""
            seen[1] += name in ("sort", "sorted", heapq.heapify.__name__)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen[0], seen[1]


@pytest.mark.parametrize("name", POLICIES)
def test_m29_no_operation_looks_at_all_entries(name: str) -> None:
    few, many = full(name, 200), full(name, 6400)
    calls_few, _ = calls(lambda: operate(few, OPERATIONS, 200))
    calls_many, whole = calls(lambda: operate(many, OPERATIONS, 6400))
    assert (
        calls_many < 1.5 * calls_few + 2 * 6400
    )  # and a share of a pass over all, as when marks are cleared
    assert whole <= 2 * OPERATIONS // 6400 + 2, "a heap is made anew when half of it is stale"


def test_the_report_names_all() -> None:
    lines: list[str] = []
    report(200, 400, lines.append)
    assert [line.split()[0] for line in lines] == list(POLICIES)
    assert all(float(line.split()[1]) >= 0 for line in lines)
