"""The arithmetic of throughput by the number of replicas."""

from __future__ import annotations

import pytest

from relaygr.bench.cluster_scale_tally import Window, limit_note, points, threads_of, too_large
from relaygr.bench.cluster_spec import ScaleSpec
from relaygr.bench.cluster_tally import Visit
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB


def window(answered: int, failed: int = 0, split: int = 0) -> Window:
    """Of two seconds."""
    whole = [
        Visit(user="u", at_s=0, took_ms=number, first="r0", second="r0", path="hit")
        for number in range(answered - split)
    ]
    parts = [Visit(user="u", at_s=0, took_ms=1, first="r0", second="r1", path="full") for _ in range(split)]
    lost = [Visit(user="u", at_s=0, took_ms=9999, error="UnavailableError") for _ in range(failed)]
    return Window([*whole, *parts, *lost], 2.0)


def test_a_failure_is_no_throughput() -> None:
    assert window(20, failed=6).rps == 10.0


def test_points_are_medians_relative_to_the_fewest_replicas() -> None:
    windows = {
        4: [window(60), window(52), window(8)],
        1: [window(20, failed=1), window(2), window(22)],
        2: [window(34, split=17), window(36), window(200)],
    }
    engines = {1: [12.5, 10, 99], 2: [20, 22, 1], 4: [20, 20, 20]}
    one, two, four = points(windows, engines)
    assert (one.replicas, one.rps, one.speed_up, one.efficiency, one.of_machine) == (1, 10, 1, 1, 0.8)
    assert (two.rps, two.engines_rps, two.speed_up, two.efficiency, two.of_machine) == (18, 20, 1.8, 0.9, 0.9)
    assert (four.rps, four.speed_up, four.efficiency, four.of_machine) == (26, 2.6, 0.65, 1.3)
    assert (one.failed, two.failed) == (1, 0)
    assert two.affinity_share == pytest.approx(1 - 17 / 270)
    assert one.rounds_rps == [10, 1, 11]


def test_without_one_replica_the_fewest_are_the_measure() -> None:
    two, eight = points({2: [window(20)], 8: [window(60)]}, {2: [10], 8: [40]})
    assert (two.efficiency, eight.speed_up, eight.efficiency) == (1.0, 3.0, 0.75)


def test_nothing_answered_is_nothing_and_no_division_by_it() -> None:
    [one] = points({1: [window(0, failed=3)]}, {1: [0.0]})
    assert (one.rps, one.speed_up, one.of_machine, one.failed, one.affinity_share) == (0, 0, 0, 3, None)


def test_threads_are_what_the_most_replicas_leave_each() -> None:
    assert [threads_of(cores, 4) for cores in (1, 2, 4, 7, 8, 64)] == [1, 1, 1, 1, 2, 16]


def test_what_does_not_fit_is_said_with_both_sizes() -> None:
    assert too_large(4, GIB, 4 * GIB) == ""
    assert too_large(4, GIB, 3 * GIB) == "4 replicas need 4 GiB of memory, 3 GiB are available"
    assert too_large(4, None, 1) == too_large(4, GIB, None) == ""


def test_counts_beyond_the_cores_are_named() -> None:
    assert limit_note(4, 1, [1, 2, 4]) == ""
    assert "2 cores are as many as 2 replicas of 1 thread use: 4 cannot" in limit_note(2, 1, [1, 2, 4])
    assert "4 replicas of 2 threads use: 8 and 16 cannot" in limit_note(8, 2, [1, 8, 16])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"counts": ()}, "--scale: "),
        ({"counts": (2, 1)}, r"--scale: \(2, 1\) must ascend"),
        ({"counts": (0, 1)}, "--scale: 0 is outside"),
        ({"counts": (1, 65)}, "--scale: 65 is outside"),
        ({"rounds": 0}, "--scale-rounds: 0 is outside"),
        ({"window_s": 0.1}, "--scale-window-s: 0.1 is outside"),
        ({"preset": "huge"}, "--scale-preset: 'huge' is none of"),
        ({"events": 0}, "--scale-events: 0 is outside"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ScaleSpec(**options)  # type: ignore[arg-type]
