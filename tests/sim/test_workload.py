"""Loads are the same for every variant, rate and length, and have the laws they are said to have."""

import dataclasses
import itertools
import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.sim.traffic import Bursts, Traffic
from relaygr.sim.workload import Workload, generate

SESSIONS = Traffic(regime="sessions", requests=20_000, rate=40.0)


def changed(traffic: Traffic, **values: object) -> Traffic:
    return msgspec.structs.replace(traffic, **values)


def test_equal_traffic_gives_equal_requests() -> None:
    for regime, even in itertools.product(("first_touch", "sessions", "popular"), (False, True)):
        traffic = Traffic(regime=regime, users=50, spread=0.5, even=even)
        assert list(generate(traffic)) == list(generate(traffic))
        assert list(generate(traffic)) != list(generate(changed(traffic, seed=1)))


def test_length_moves_nothing_but_lengths() -> None:
    for regime in ("first_touch", "sessions", "popular"):
        users = 50 if regime == "popular" else 0
        short = generate(Traffic(regime=regime, users=users, length=1024))
        long = generate(Traffic(regime=regime, users=users, length=4096))
        for column in dataclasses.fields(Workload):
            one, other = getattr(short, column.name), getattr(long, column.name)
            if column.name == "before":
                assert (one < other).all()
            elif column.name != "new" or regime != "popular":  # popular users stop growing at the length
                assert np.array_equal(one, other), column.name


def test_rate_scales_the_arrivals_and_keeps_users_and_leads() -> None:
    slow, fast = (generate(Traffic(rate=rate)) for rate in (10.0, 40.0))
    assert np.allclose(slow.time_s, 4 * fast.time_s)
    assert np.array_equal(slow.lead_s, fast.lead_s)
    # Spread evenly are the waits until the next ranking is due, each with the same lead.
    slow, fast = (generate(Traffic(rate=rate, even=True)) for rate in (10.0, 40.0))
    assert np.allclose(np.diff(_due(slow)), 4 * np.diff(_due(fast)))
    assert np.array_equal(slow.lead_s[_by_due(slow)], fast.lead_s[_by_due(fast)])
    first, second = generate(SESSIONS), generate(changed(SESSIONS, rate=80.0))
    gaps = [_gaps(load) for load in (first, second)]
    assert np.mean(gaps[0]) == pytest.approx(np.mean(gaps[1]), rel=0.05)


def test_offered_rate_is_the_rate() -> None:
    for traffic in (Traffic(requests=5000), SESSIONS):
        load = generate(traffic)
        times = load.time_s[load.counted]
        assert len(times) == traffic.requests
        assert len(times) / (times[-1] - times[0]) == pytest.approx(traffic.rate, rel=0.03)


@pytest.mark.parametrize("even", [False, True])
def test_arrivals_are_poisson(even: bool) -> None:
    load = generate(Traffic(requests=50_000, even=even))
    for times in (load.time_s, _due(load)):
        gaps = np.diff(times)
        assert gaps.min() >= 0
        assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)
        law = [-math.log1p(-share) for share in (0.01, 0.5, 0.99)]
        assert np.quantile(gaps / gaps.mean(), [0.01, 0.5, 0.99]) == pytest.approx(law, rel=0.1)
        # One wait says next to nothing of the following one.
        assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03


def test_how_many_meet_in_short_even_loads_depends_little_on_the_draws() -> None:
    """Of 150 rankings, those that are due within 20 ms of the one before, at two a second."""
    stray = {}
    for even in (False, True):
        loads = (generate(Traffic(requests=150, warmup=0, rate=2.0, even=even, seed=n)) for n in range(60))
        meet = [int((np.diff(_due(load)) < 0.02).sum()) for load in loads]
        assert np.mean(meet) == pytest.approx(-150 * math.expm1(-2.0 * 0.02), rel=0.12)
        stray[even] = np.std(meet)
    assert stray[True] < 0.6 * stray[False]


def test_sessions_are_as_many_with_even_waits() -> None:
    load = generate(changed(SESSIONS, even=True))
    assert _gaps(load).mean() == pytest.approx(20 * SESSIONS.tau_s, rel=0.05)
    times = load.time_s[load.counted]
    assert len(times) / (times[-1] - times[0]) == pytest.approx(SESSIONS.rate, rel=0.03)


def test_first_touch_meets_every_user_once_with_the_whole_history() -> None:
    load = generate(Traffic(length=777))
    assert len(np.unique(load.user)) == len(load)
    assert (load.before == 777).all()
    assert (load.new == 0).all()
    assert load.first.all()


def test_sessions_have_the_stated_means_and_begin_warm() -> None:
    load = generate(SESSIONS)
    counted = load.counted
    visits = np.bincount(load.user)
    assert visits[visits > 0][: len(visits) // 2].mean() == pytest.approx(6.0, rel=0.05)
    assert _gaps(load).mean() == pytest.approx(20 * SESSIONS.tau_s, rel=0.05)
    assert load.new[~load.first].min() >= 4
    assert load.new.max() <= 19
    # From the first counted request on, one in six visits is a user's first.
    assert load.first[counted][:3000].mean() == pytest.approx(1 / 6, abs=0.03)
    assert not counted[: SESSIONS.warmup].any()


def test_a_session_of_fixed_length_ends_with_it() -> None:
    load = generate(changed(SESSIONS, length=2048))
    totals = load.before + load.new
    last = {int(user): int(total) for user, total in zip(load.user, totals, strict=True)}
    assert set(list(last.values())[: len(last) // 2]) == {2048}
    assert totals.max() == 2048


def test_visits_of_a_user_continue_one_history() -> None:
    load = generate(changed(SESSIONS, users=300, spread=0.9, length=1200, most_length=8192))
    known: dict[int, int] = {}
    for request in load:
        assert request.first == (request.user not in known)
        assert request.before == known.get(request.user, request.before)
        assert request.tokens <= 8192
        known[request.user] = request.tokens


def test_lead_times_follow_their_quantiles() -> None:
    traffic = Traffic(requests=50_000)
    leads = generate(traffic).lead_s / traffic.tau_s
    assert np.quantile(leads, [0.1, 0.5]) == pytest.approx([2.0, 3.0], rel=0.02)
    assert leads.max() == 5.0


def test_leads_of_few_requests_are_spread_over_the_distribution() -> None:
    few, many = Traffic(requests=230, warmup=0, seed=7), Traffic(requests=5000, warmup=0, seed=7)
    leads = generate(few).lead_s / few.tau_s
    assert np.array_equal(leads, generate(many).lead_s[:230] / many.tau_s)
    cuts = np.exp(
        [math.log(3) + math.log(2 / 3) / -1.28155 * NormalDist().inv_cdf(n / 100) for n in (1, 10, 90)]
    )
    for block in (leads[:100], leads[100:200]):
        assert [int((block < cut).sum()) for cut in cuts] == [1, 10, 90]


def test_popular_users_follow_zipf() -> None:
    load = generate(Traffic(regime="popular", users=100, requests=50_000))
    counts = np.bincount(load.user, minlength=100)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.15)


def test_bursts_keep_the_mean_rate() -> None:
    traffic = Traffic(requests=40_000, rate=100.0, bursts=Bursts(factor=4, share=0.2))
    load = generate(traffic)
    assert len(load) / load.time_s[-1] == pytest.approx(100, rel=0.03)
    period = traffic.bursts.period_taus * traffic.tau_s
    inside = (load.time_s % period) < 0.2 * period
    assert inside.mean() == pytest.approx(0.8, abs=0.03)


def test_short_histories_are_a_share_of_the_users() -> None:
    load = generate(Traffic(short_share=0.3, short_length=200, requests=10_000))
    assert (load.before == 200).mean() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(
    "values",
    [
        {"rate": 0.0},
        {"rate": float("nan")},
        {"requests": 0},
        {"candidates": 0},
        {"regime": "popular", "users": 0},
        {"bursts": Bursts(factor=20, share=0.1)},
        {"growth": (5, 4)},
    ],
)
def test_impossible_traffic_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"traffic\."):
        Traffic(**values)


def _by_due(load: Workload) -> np.ndarray:
    return np.argsort(load.time_s + load.lead_s)


def _due(load: Workload) -> np.ndarray:
    return np.sort(load.time_s + load.lead_s)


def _gaps(load: Workload) -> np.ndarray:
    order = np.argsort(load.user, kind="stable")
    same = np.diff(load.user[order]) == 0
    return np.diff(load.time_s[order])[same]
