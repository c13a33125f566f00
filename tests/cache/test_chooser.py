"""Load or recompute: the published cases, a grid against every page end, deadlines, and what is learnt."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.cache.chooser import Chooser, Found, Way, pick, time_of
from relaygr.cache.speeds import Compute, CopyCost, Link, MeasuredCompute, MeasuredLink, Part
from relaygr.core.units import GIB, KIB, MIB

LAYERS = 8
L4096 = Found(tokens=4096, device=0, host=4096, candidates=256, token_bytes=32 * KIB, page_tokens=32)
LINK = Link(25 * GIB)
A, C = Compute(0.002, 5e-7), Compute(0.0004, 1e-7)


def brute_ms(found: Found, link: CopyCost, compute: Compute, queue_ms: float, layers: int) -> float:
    """The least over what the device has, every page end behind it and all that the host has."""
    size = found.page_tokens
    ends = [x for x in range(0, found.host, size) if x > found.device]
    return min(
        time_of(x, found, link, compute, queue_ms, layers).total_ms
        for x in (found.device, *ends, max(found.host, found.device))
    )


@pytest.mark.parametrize(
    ("compute", "queue_ms", "recompute", "load", "way", "tokens", "best"),
    [
        (A, 0.0, 13.42, 5.13, Way.SPLIT, 3328, 4.56),
        (A, 10.0, 13.42, 15.13, Way.RECOMPUTE, 0, 13.42),
        (C, 0.0, 2.68, 5.03, Way.SPLIT, 1568, 2.17),
    ],
    ids=["idle", "queued", "quick"],
)
def test_the_published_cases(
    compute: Compute, queue_ms: float, recompute: float, load: float, way: Way, tokens: int, best: float
) -> None:
    ends = [time_of(x, L4096, LINK, compute, queue_ms, LAYERS).total_ms for x in (0, 4096)]
    assert ends == [pytest.approx(recompute, abs=0.005), pytest.approx(load, abs=0.006)]
    choice = pick(L4096, LINK, compute, queue_ms=queue_ms, layers=LAYERS)
    assert (choice.way, choice.tokens) == (way, tokens)
    assert choice.total_ms == pytest.approx(best, abs=0.005)


class SteppedLink:
    """Small copies go slower, in steps of sizes, as measured links do."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s

    def copy_ms(self, nbytes: int, runs: int) -> float:
        slower = 1 + 4 / max(nbytes / (256 * KIB), 1).__ceil__()
        return 0.02 + 0.01 * runs + 1000 * nbytes * slower / self._bytes_per_s


@pytest.mark.parametrize("layers", [1, 8])
@pytest.mark.parametrize("compute", [A, C, Compute(0.4, 1e-4, 1.0)], ids=["a", "c", "cpu"])
def test_m22_never_much_slower_than_the_better_end(compute: Compute, layers: int) -> None:
    lengths, queues = (1, 31, 32, 33, 100, 512, 2048, 4096, 8192), (0.0, 0.1, 1.0, 10.0, 100.0)
    speeds, heads = (1e8, 1e9, 5e9, 25 * GIB, 2e11), (0.0, 0.5, 0.97)
    for length, queue, speed, head in itertools.product(lengths, queues, speeds, heads):
        for host in (length, length // 2):
            found = Found(length, int(head * length), host, 128, 6 * KIB, 32)
            flat, stepped = Link(speed, 0.02, 0.01), SteppedLink(speed)
            choice = pick(found, flat, compute, queue_ms=queue, layers=layers)
            # Runs come in whole ones: that is all that bends the straight line of a copy.
            least = brute_ms(found, flat, compute, queue, layers)
            assert least - 1e-9 <= choice.total_ms <= least * 1.01 + 0.02, (found, queue, speed)
            rough = pick(found, stepped, compute, queue_ms=queue, layers=layers)
            ends = [
                time_of(x, found, stepped, compute, queue, layers).total_ms
                for x in (found.device, max(host, found.device))
            ]
            assert rough.total_ms <= 1.15 * min(ends)
            assert rough.total_ms <= 1.15 * brute_ms(found, stepped, compute, queue, layers)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 9000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 50),
    st.floats(1e7, 1e12),
    st.sampled_from([A, C]),
    st.sampled_from([1, 2, 8]),
)
def test_the_choice_is_the_least_of_all_page_ends(
    tokens: int, device: float, host: float, queue_ms: float, speed: float, compute: Compute, layers: int
) -> None:
    found = Found(tokens, int(device * tokens), int(host * tokens), 64, 8 * KIB, 32)
    choice = pick(found, Link(speed), compute, queue_ms=queue_ms, layers=layers)
    assert choice.total_ms == pytest.approx(brute_ms(found, Link(speed), compute, queue_ms, layers))
    if choice.way is Way.SPLIT:
        assert choice.tokens % 32 == 0
        assert found.device < choice.tokens < found.host
    else:
        assert choice.tokens == (found.host if choice.way is Way.LOAD else found.device)


def test_m25_a_copy_past_the_deadline_is_not_made() -> None:
    assert pick(L4096, LINK, A, layers=LAYERS, queue_ms=1.0, deadline_ms=6.1).way is Way.SPLIT
    some = pick(L4096, LINK, A, layers=LAYERS, queue_ms=1.0, deadline_ms=4.0)
    assert some.way is Way.RECOMPUTE  # the split, 4.06 ms behind 1 ms, comes too late as well
    for queue_ms, deadline_ms in itertools.product((0.0, 1.0, 4.0), (0.5, 2.0, 4.5, 8.0)):
        choice = pick(L4096, LINK, A, layers=LAYERS, queue_ms=queue_ms, deadline_ms=deadline_ms)
        assert choice.way is Way.RECOMPUTE or queue_ms + choice.load_ms <= deadline_ms


def test_nothing_is_loaded_that_the_device_has() -> None:
    found = Found(4096, 4096, 4096, 256, 32 * KIB, 32)
    choice = pick(found, LINK, A, queue_ms=1e6, layers=LAYERS)
    assert (choice.way, choice.tokens, choice.load_ms) == (Way.DEVICE, 4096, 0.0)
    assert choice.total_ms == pytest.approx(A.pass_ms(0, 4096, 256))  # no queue is waited for


def test_only_what_the_device_lacks_is_copied() -> None:
    found = Found(4096, 3072, 4096, 0, 32 * KIB, 32, runs=4)
    assert found.copied(4096) == (1024 * 32 * KIB, 4)
    assert found.copied(3328) == (256 * 32 * KIB, 1)
    assert found.copied(3072) == found.copied(100) == (0, 0)


def test_less_than_one_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="layers: 0 must be at least 1"):
        pick(L4096, LINK, A, layers=0)


def chooser(t1_ms: float = 0.01, bytes_per_s: float = 2e9) -> Chooser:
    return Chooser(MeasuredLink(Link(bytes_per_s)), MeasuredCompute(Compute(t1_ms, t1_ms / 4096)))


def copied(one: Chooser, seconds_per_mib: float, times: int) -> None:
    nbytes = L4096.copied(4096)[0]
    for _ in range(times):
        one.link.observe(nbytes, 1, 1000 * seconds_per_mib * nbytes / MIB)


def test_everything_is_loaded_until_a_pass_was_measured() -> None:
    one = chooser()
    copied(one, 1.0, 5)
    assert one.choose(L4096).way is Way.LOAD
    assert one.choose(L4096, queue_ms=1e9, deadline_ms=1.0).way is Way.RECOMPUTE
    one.compute.observe([Part(4096, 0, 0)], 20.0)
    assert one.choose(L4096).way is Way.RECOMPUTE
    assert one.decisions == {Way.DEVICE: 0, Way.LOAD: 1, Way.SPLIT: 0, Way.RECOMPUTE: 2}


def test_decisions_follow_what_copies_and_passes_take() -> None:
    one = chooser()
    for _ in range(5):
        one.compute.observe([Part(4096, 0, 0)], 400.0)
    copied(one, 0.0001, 5)  # 10 GiB/s
    assert one.choose(L4096).way is Way.LOAD
    copied(one, 0.1, 30)  # a cold file: 12.8 s
    assert one.choose(L4096).way is Way.RECOMPUTE
    copied(one, 0.0001, 30)
    assert one.choose(L4096).way is Way.LOAD


def test_one_outlier_does_not_turn_a_decision() -> None:
    one = chooser()
    for _ in range(10):
        one.compute.observe([Part(4096, 0, 0)], 400.0)
    copied(one, 0.001, 10)  # 128 ms
    before = one.link.copy_ms(128 * MIB, 1)
    copied(one, 100.0, 1)  # the machine slept
    assert one.link.copy_ms(128 * MIB, 1) < 1.4 * before
    assert one.choose(L4096).way is Way.LOAD


def test_a_link_believed_slow_is_tried_again() -> None:
    one = chooser()
    one.compute.observe([Part(4096, 0, 0)], 400.0)
    copied(one, 1.0, 1)
    ways = [one.choose(L4096).way for _ in range(400)]
    assert ways[0] is Way.RECOMPUTE
    assert Way.LOAD in ways


def test_sizes_are_learnt_apart_and_unknown_ones_go_by_the_nearest() -> None:
    link = MeasuredLink(Link(1e9))
    for _ in range(20):
        link.observe(64 * KIB, 1, 1000 * 64 * KIB / 1e8)  # ten times slower than expected
        link.observe(64 * MIB, 1, 1000 * 64 * MIB / 4e9)
    assert link.bytes_per_s(64 * KIB) == pytest.approx(1e8, rel=0.01)
    assert link.bytes_per_s(64 * MIB) == pytest.approx(4e9, rel=0.03)
    assert link.bytes_per_s(1024) == pytest.approx(1e8, rel=0.01)
    assert link.bytes_per_s(GIB) == pytest.approx(4e9, rel=0.03)


def test_beliefs_are_bounded_and_nonsense_is_ignored() -> None:
    link = MeasuredLink(Link(1e9))
    for ms in (0.0, -1.0, math.inf, math.nan):
        link.observe(MIB, 1, ms)
    assert link.bytes_per_s(MIB) == pytest.approx(1e9)
    for _ in range(200):
        link.observe(MIB, 1, 1e30)
    assert link.copy_ms(MIB, 1) == pytest.approx(1e4 * 1000 * MIB / 1e9)
