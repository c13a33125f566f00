"""The searches find the edge of what passes, with no more probes than halving needs."""

from collections.abc import Callable

import pytest

from relaygr.sim.protocol import (
    RESOLUTION,
    Outcome,
    Share,
    find_length,
    find_lengths,
    find_rate,
    find_rates,
)


def outcome(good: float = 1.0, valid: float = 1.0, seeds: int = 1, bad: int = 0) -> Outcome:
    def share(seed: int, part: float) -> Share:
        return Share(seed=seed, requests=1000, good=part, valid=valid, p99_ms=1.0, served=1.0)

    shares = tuple(share(seed, 0.5 if seed < bad else good) for seed in range(seeds))
    return Outcome(variant="any", rate=1.0, length=1, planned=seeds, shares=shares)


def edge(limit: Callable[[str, float, int], bool]) -> Callable[[str, float, int], Outcome]:
    return lambda variant, rate, length: outcome(1.0 if limit(variant, rate, length) else 0.98)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (outcome(0.99, 0.999), True),
        (outcome(0.9899), False),
        (outcome(1.0, 0.9989), False),
        (outcome(seeds=5, bad=1), True),
        (outcome(seeds=5, bad=2), False),
        (outcome(seeds=1, bad=1), False),
        (outcome(seeds=0), False),
    ],
)
def test_what_passes(found: Outcome, passes: bool) -> None:
    assert found.passes is passes


def test_a_probe_may_stop_when_too_many_seeds_failed() -> None:
    begun = outcome(seeds=5, bad=2)
    assert Outcome(variant="", rate=1, length=1, planned=5, shares=begun.shares[:2]).hopeless
    assert not Outcome(variant="", rate=1, length=1, planned=5, shares=begun.shares[1:2]).hopeless


@pytest.mark.parametrize("limit", [0.013, 0.9, 1.0, 7.77, 300.0])
def test_rate_is_bisected_to_two_percent(limit: float) -> None:
    found = find_rate(edge(lambda _, rate, __: rate <= limit), "any", 2048, 1.0, 0.001)
    assert found.best is not None
    assert found.best <= limit < found.best * (1 + 2 * RESOLUTION)
    assert len(found.probes) < 25


def test_a_rate_that_never_passes_is_none() -> None:
    found = find_rate(edge(lambda *_: False), "any", 2048, 1.0, 0.01)
    assert found.best is None
    assert len(found.probes) < 10


@pytest.mark.parametrize("limit", [0, 127, 128, 2047, 2048, 2300, 5000, 8192, 90_000])
def test_length_is_found_to_a_step(limit: int) -> None:
    found = find_length(edge(lambda _, __, length: length <= limit), "any", 1.0, 8192)
    assert found.best == (min(limit, 8192) // 128 * 128 or None)
    assert len({probe.length for probe in found.probes}) == 1  # the stub names no length


def test_lengths_and_rates_put_together() -> None:
    """A relay that reads one and a half times the history, and serves four times the requests."""

    def limit(variant: str, rate: float, length: int) -> bool:
        much = (4.0, 1.5) if variant == "relay_full" else (1.0, 1.0)
        return rate <= 2.0 * much[0] * min(2048 * much[1] / length, 1.0) and length <= 2048 * much[1]

    lengths = find_lengths(edge(limit), tau_s=0.1)
    assert lengths.q0 == pytest.approx(1.0, rel=0.03)
    assert lengths.ratio == 1.5
    rates = find_rates(edge(limit), 2048, lengths.q0 or 0.0)
    assert rates.ratio == pytest.approx(4.0, rel=0.04)


def test_a_baseline_that_never_passes_gives_no_ratio() -> None:
    lengths = find_lengths(edge(lambda variant, *_: variant == "relay_full"), tau_s=0.1)
    assert lengths.q0 is None
    assert lengths.ratio is None
    rates = find_rates(edge(lambda variant, rate, _: variant == "relay_full" and rate < 3), 2048, 1.0)
    assert rates.ratio is None
    assert rates.relay.best is not None


def test_a_baseline_that_never_passes_with_2048_tokens_is_asked_for_fewer() -> None:
    def limit(variant: str, rate: float, length: int) -> bool:
        return length <= (3000 if variant == "relay_full" else 1600) and rate <= 8.0

    lengths = find_lengths(edge(limit), tau_s=0.1)
    assert lengths.base_length == 1536
    assert (lengths.q0, lengths.inline and lengths.inline.best) == (pytest.approx(4.0, rel=0.02), 1536)
    assert lengths.ratio == 2944 / 1536
