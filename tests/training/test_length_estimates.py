"""Segments, means, paired differences and their intervals against plain loops over made-up outcomes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.training.cap_estimates import CAP_METRICS, OVERS, CapEstimate, cap_estimates, sizes
from relaygr.training.cap_replay import BASELINES, CapOutcome
from relaygr.training.metrics import METRICS
from relaygr.training.segments import ALL, segments

CAPS = (16, 64, 256)


def outcome(models: int = 3, requests: int = 300, users: int = 40, seed: int = 0) -> CapOutcome:
    rng = np.random.default_rng(seed)
    return CapOutcome(
        values=rng.random((models, requests, len(CAPS), len(CAP_METRICS))),
        baselines=rng.random((requests, len(BASELINES), len(METRICS))),
        share=rng.uniform(0.01, 0.2, size=requests),
        users=np.sort(rng.integers(users, size=requests)),
        events_before=rng.integers(1, 400, size=requests),
        left_out=0,
        unrankable=0,
    )


def slow_mean(column: np.ndarray, users: np.ndarray, over: str) -> float:
    if over == "requests":
        return sum(column.tolist()) / len(column)
    means = [float(np.mean(column[users == user])) for user in sorted(set(users.tolist()))]
    return sum(means) / len(means)


def slow_value(made: CapOutcome, inside: np.ndarray, over: str, model: int, c: int, metric: str) -> float:
    m = CAP_METRICS.index(metric)
    value = slow_mean(made.values[model, inside, c, m], made.users[inside], over)
    if metric != "ne":
        return value
    share = slow_mean(made.share[inside], made.users[inside], over)
    return value / -(share * math.log(share) + (1 - share) * math.log(1 - share))


def found_in(made: CapOutcome) -> dict[tuple[str, str, str, str, int, int], CapEstimate]:
    estimates = cap_estimates(made, CAPS, segments(CAPS), seed=0)
    found = {(e.scorer, e.segment, e.over, e.metric, e.cap, e.minus): e for e in estimates}
    assert len(found) == len(estimates)
    return found


def test_means_and_differences_equal_plain_loops() -> None:
    made = outcome()
    found = found_in(made)
    parts = segments(CAPS)
    for part in parts:
        inside = part.holds(made.events_before)
        for over in OVERS:
            for metric in CAP_METRICS:
                slow = [
                    [slow_value(made, inside, over, model, c, metric) for c in range(len(CAPS))]
                    for model in range(3)
                ]
                for c, cap in enumerate(CAPS):
                    one = found["model", part.name, over, metric, cap, 0]
                    assert one.per_model == pytest.approx([values[c] for values in slow])
                    assert one.mean == pytest.approx(np.mean([values[c] for values in slow]))
                    assert one.low < one.mean < one.high
                    for d, minus in enumerate(CAPS[:c]):
                        if d in (0, c - 1):
                            gap = found["model", part.name, over, metric, cap, minus]
                            gaps = [values[c] - values[d] for values in slow]
                            assert gap.per_model == pytest.approx(gaps)
                            assert gap.mean == pytest.approx(np.mean(gaps))
            for b, name in enumerate(BASELINES):
                one = found[name, part.name, over, "auc", 0, 0]
                slow_auc = slow_mean(made.baselines[inside, b, 2], made.users[inside], over)
                assert one.mean == pytest.approx(slow_auc)
    values_and_gaps = len(CAPS) + (len(CAPS) - 1) + (len(CAPS) - 2)
    each = len(CAP_METRICS) * values_and_gaps + len(BASELINES) * len(METRICS)
    assert len(found) == len(parts) * len(OVERS) * each


def test_differences_are_paired() -> None:
    made = outcome()
    made.values[:, :, 1, :3] = made.values[:, :, 0, :3] + 0.25
    found = found_in(made)
    for over in OVERS:
        gap = found["model", ALL, over, "ndcg@10", 64, 16]
        assert (gap.low, gap.mean, gap.high) == pytest.approx((0.25, 0.25, 0.25))
        single = found["model", ALL, over, "ndcg@10", 64, 0]
        assert single.high - single.low > 0.01


def test_normalised_entropy_takes_the_base_rate_of_its_segment() -> None:
    made = outcome(models=1)
    # A model that always says the base rate of all requests: 1 over all, above 1 elsewhere.
    share = float(made.share.mean())
    ce = -made.share * math.log(share) - (1 - made.share) * math.log(1 - share)
    made.values[..., 3] = ce[None, :, None]
    found = found_in(made)
    assert found["model", ALL, "requests", "ne", 16, 0].mean == pytest.approx(1)
    assert found["model", "<16", "requests", "ne", 16, 0].mean > 1


def test_sizes_and_empty_segments() -> None:
    made = outcome()
    made.events_before[:] = np.where(made.events_before < 64, 15, 64)
    sized = {size.name: size for size in sizes(made, segments(CAPS))}
    assert list(sized) == [ALL, "<16", "64-255"]
    assert sized["<16"].requests == int((made.events_before == 15).sum())
    assert sized["<16"].users == len(set(made.users[made.events_before == 15].tolist()))
    assert sized[ALL].share == pytest.approx(made.share.mean())
    assert {one.segment for one in cap_estimates(made, CAPS, segments(CAPS), 0)} == set(sized)


def test_one_cap_has_no_differences() -> None:
    made = outcome()
    one = CapOutcome(made.values[:, :, :1], *(getattr(made, name) for name in CapOutcome.__slots__[1:]))
    assert {each.minus for each in cap_estimates(one, CAPS[:1], segments(CAPS[:1]), 0)} == {0}


def test_names_of_segments() -> None:
    assert [part.name for part in segments((16, 64, 65, 1024))] == [
        ALL, "<16", "16-63", "64", "65-1023", ">=1024",
    ]  # fmt: skip
    assert [part.name for part in segments((8,))] == [ALL, "<8", ">=8"]


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(0, 4000), min_size=1, max_size=30),
)
def test_every_request_is_in_one_segment(caps: list[int], before: list[int]) -> None:
    parts = segments(sorted(caps))
    events_before = np.array(before, dtype=np.int64)
    inside = np.stack([part.holds(events_before) for part in parts])
    assert inside[0].all()
    assert (inside[1:].sum(axis=0) == 1).all()
