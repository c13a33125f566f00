"""The trigger: the worked examples, one reason per refusal, hysteresis, and that it reads lengths only."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from relaygr.config.relay import TriggerConfig
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.relay.latency import Chunks, Coefficients, LatencyModel, Pass
from relaygr.relay.trigger import (
    Build,
    Meta,
    Owner,
    Reason,
    Trigger,
    Verdict,
    _ChunkStarts,
)

EXAMPLE = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=0.3)
LATENCY = LatencyModel(EXAMPLE)
BUILD = Build("b", True, "append", LATENCY, Chunks(EXAMPLE, 4.0, 32), FIXED_BUDGETS)
OWNER = Owner(active=True)


def meta(prefix: int | None, suffix: int | None = 128, candidates: int | None = 256) -> Meta:
    return Meta("u", "b", prefix, suffix, candidates)


def decide(
    what: Meta,
    build: Build | None = BUILD,
    owner: Owner = OWNER,
    lead_ms: float = 80.0,
    trigger: Trigger | None = None,
) -> Verdict:
    return (trigger or Trigger(TriggerConfig())).decide(what, build, owner, lead_ms, 2.0)


def figures(verdict: Verdict) -> list[float | None]:
    found = (verdict.full_p99_ms, verdict.hit_p99_ms, verdict.pre_ms)
    return [None if ms is None else round(ms, 3) for ms in found]


@pytest.mark.parametrize(
    ("lengths", "reason", "expected"),
    [
        ((8192, 128, 256), Reason.ADMITTED, [74.050, 7.723, 72.027]),
        ((4096, 128, 256), Reason.NOT_AT_RISK, [30.925, None, None]),
        ((8192, 2048, 2048), Reason.NO_BENEFIT, [125.559, 59.233, None]),
        ((16384, 128, 256), Reason.TOO_LATE, [210.631, 10.869, 202.762]),
    ],
)
def test_worked_examples(lengths: tuple[int, int, int], reason: Reason, expected: list[float | None]) -> None:
    verdict = decide(meta(*lengths))
    assert verdict.reason is reason
    assert verdict.admitted is (reason is Reason.ADMITTED)
    assert figures(verdict) == expected


def test_reasons_in_order() -> None:
    assert [reason.value for reason in Reason] == [
        "admitted",
        "disabled",
        "metadata",
        "not_reusable",
        "not_at_risk",
        "no_benefit",
        "too_late",
        "hot_key",
        "no_instance",
        "footprint",
        "rate",
        "load",
    ]


# Each makes one test fail; in the order of the tests.
SPOIL = (
    (Reason.DISABLED, {"enabled": False}, {}, {}, {}),
    (Reason.METADATA, {}, {"age_s": 60.0}, {}, {}),
    (Reason.NOT_REUSABLE, {}, {}, {"cacheable": "none"}, {}),
    (Reason.NOT_AT_RISK, {}, {"prefix_tokens": 511}, {}, {}),
    (Reason.NO_BENEFIT, {}, {"candidates": 4096}, {}, {}),
    (Reason.TOO_LATE, {}, {}, {}, {"pre_wait_ms": 1000.0}),
    (Reason.HOT_KEY, {}, {}, {}, {"key_inflight": 8}),
    (Reason.NO_INSTANCE, {}, {}, {}, {"active": False}),
)


@settings(deadline=None)
@given(st.sets(st.integers(0, len(SPOIL) - 1)))
def test_r9_the_first_failing_test_is_the_one_reason(broken: set[int]) -> None:
    enabled, what, build, owner = True, meta(8192), BUILD, OWNER
    for i in sorted(broken):
        enabled = enabled and SPOIL[i][1].get("enabled", True)
        what, build, owner = (
            replace(what, **SPOIL[i][2]),
            replace(build, **SPOIL[i][3]),
            replace(owner, **SPOIL[i][4]),
        )
    verdict = decide(what, build, owner, trigger=Trigger(TriggerConfig(), enabled))
    assert verdict.reason is (SPOIL[min(broken)][0] if broken else Reason.ADMITTED)


@pytest.mark.parametrize("field", ["prefix_tokens", "suffix_tokens", "candidates"])
@pytest.mark.parametrize("value", [None, -1])
def test_missing_or_impossible_lengths(field: str, value: int | None) -> None:
    assert decide(replace(meta(8192), **{field: value})).reason is Reason.METADATA


def test_metadata_of_an_unknown_build_or_too_old() -> None:
    assert decide(meta(8192), None).reason is Reason.METADATA
    assert decide(replace(meta(8192), age_s=59.9)).admitted
    for age in (60.0, float("nan")):
        assert decide(replace(meta(8192), age_s=age)).reason is Reason.METADATA


def test_a_build_may_be_switched_off() -> None:
    assert decide(meta(8192), replace(BUILD, enabled=False)).reason is Reason.DISABLED


def test_what_holds_for_one_request_only_is_not_reused() -> None:
    for kind in ("none", "request"):
        assert decide(meta(8192), replace(BUILD, cacheable=kind)).reason is Reason.NOT_REUSABLE


def test_limits_of_the_owner() -> None:
    assert decide(meta(8192), owner=replace(OWNER, key_inflight=7)).admitted
    assert decide(meta(8192), owner=replace(OWNER, feedback_age_s=1.99)).admitted
    for age in (2.0, float("nan")):
        assert decide(meta(8192), owner=replace(OWNER, feedback_age_s=age)).reason is Reason.NO_INSTANCE


def test_risk_turns_on_and_off_at_the_thresholds() -> None:
    fresh = [decide(meta(length)).reason for length in (5816, 5817)]
    assert fresh == [Reason.NOT_AT_RISK, Reason.ADMITTED]
    # One bucket that holds all of these lengths.
    trigger = Trigger(TriggerConfig(), bucket_tokens=1 << 20)
    expected = {5817: True, 5816: True, 5569: True, 5568: False, 5569 + 1: False, 5816 - 1: False}
    for length, on in expected.items():
        assert decide(meta(length), trigger=trigger).admitted is on, length


def test_the_series_of_the_example() -> None:
    """T_full 48, 46, 44, 46 ms on one length: on, on, off, off."""
    trigger, found = Trigger(TriggerConfig()), []
    for full in (48.0, 46.0, 44.0, 46.0):
        factor = full / EXAMPLE.full_ms(5700, 128, 256)
        scaled = EXAMPLE.scaled(factor)
        build = replace(BUILD, latency=LatencyModel(scaled), chunks=Chunks(scaled, 4.0, 32))
        found.append(decide(meta(5700), build, trigger=trigger).admitted)
    assert found == [True, True, False, False]


def test_hysteresis_is_per_build_and_bucket_and_forgets_the_longest_unused() -> None:
    trigger = Trigger(TriggerConfig(seq_at_risk_min_tokens=0))
    slow = replace(BUILD, latency=LatencyModel(EXAMPLE.scaled(1.04)))
    other = replace(BUILD, name="c")
    assert decide(meta(5700), slow, trigger=trigger).admitted
    assert decide(meta(5700), trigger=trigger).admitted
    assert not decide(meta(5700), other, trigger=trigger).admitted
    assert not decide(meta(5570), trigger=trigger).admitted
    steep = replace(BUILD, latency=LatencyModel(EXAMPLE.scaled(1000.0)))
    lengths = [length for length in range(0, 128 * 4200, 128) if length // 128 != (5700 + 128) // 128]
    for length in lengths[:4000]:
        decide(meta(length, 0), steep, trigger=trigger)
    # What is asked for, with the same outcome, is not forgotten.
    assert decide(meta(5700), trigger=trigger).admitted
    for length in lengths[4000:4150]:
        decide(meta(length, 0), steep, trigger=trigger)
    assert len(trigger._risks._on) == 4096
    assert decide(meta(5700), trigger=trigger).admitted
    for length in lengths:
        decide(meta(length, 0), steep, trigger=trigger)
    assert not decide(meta(5700), trigger=trigger).admitted


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12_000), st.integers(0, 512), st.integers(0, 512)), max_size=60),
    st.floats(0, 0.9),
    st.floats(0.5, 2),
)
def test_r6_no_request_that_is_predicted_safe(
    requests: list[tuple[int, int, int]], hysteresis: float, k99: float
) -> None:
    trigger = Trigger(TriggerConfig(hysteresis=hysteresis), bucket_tokens=4096)
    build = replace(BUILD, latency=LatencyModel(EXAMPLE, [k99]))
    for lengths in requests:
        verdict = decide(meta(*lengths), build, lead_ms=1e6, trigger=trigger)
        need = k99 * EXAMPLE.full_ms(*lengths) + 3.0
        if need <= (1 - hysteresis) * 50.0:
            assert verdict.reason is Reason.NOT_AT_RISK
        elif need > 50.0 and lengths[0] >= 512:
            assert verdict.reason is not Reason.NOT_AT_RISK


def test_waiting_behind_ranking_and_the_queue() -> None:
    """72.027 ms of chunks meet 80 + 39.277 ms, less the queue, less the share of ranking."""
    assert decide(meta(8192), owner=replace(OWNER, pre_wait_ms=47.2)).admitted
    assert decide(meta(8192), owner=replace(OWNER, pre_wait_ms=47.3)).reason is Reason.TOO_LATE
    assert decide(meta(8192), owner=replace(OWNER, rank_share=0.39)).admitted
    for share in (0.40, 1.0, 1.5):
        assert decide(meta(8192), owner=replace(OWNER, rank_share=share)).reason is Reason.TOO_LATE
    stuck = replace(OWNER, rank_share=1.5, pre_wait_ms=1e6)
    assert decide(meta(8192), owner=stuck).reason is Reason.TOO_LATE


def test_a_wait_that_whole_passes_would_cause_puts_at_risk() -> None:
    assert decide(meta(4096)).reason is Reason.NOT_AT_RISK
    busy = replace(OWNER, rank_rate_per_s=10.0)
    # 30.925 ms, behind up to 58 ms of others.
    assert decide(meta(4096), owner=busy).admitted
    assert decide(meta(1024), owner=busy).reason is Reason.NOT_AT_RISK


def test_a_cap_on_waiting_leaves_less_time() -> None:
    capped = replace(BUILD, budgets=dataclasses.replace(FIXED_BUDGETS, rank_wait_cap_ms=5.0))
    assert decide(meta(8192), capped, lead_ms=67.1).admitted
    assert decide(meta(8192), capped, lead_ms=67.0).reason is Reason.TOO_LATE
    generous = replace(BUILD, budgets=dataclasses.replace(FIXED_BUDGETS, rank_wait_cap_ms=500.0))
    assert decide(meta(8192), generous, lead_ms=32.0).reason is Reason.TOO_LATE


def test_chunks_may_be_what_makes_it_late() -> None:
    """69.627 ms in one chunk, 72.027 ms in 19."""
    lead = 71.0 - (50 - 3 - EXAMPLE.hit_ms(8192, 128, 256))
    assert figures(decide(meta(8192), lead_ms=lead)) == [74.050, 7.723, 72.027]
    assert decide(meta(8192), lead_ms=lead).reason is Reason.TOO_LATE
    assert decide(meta(8192), replace(BUILD, chunks=None), lead_ms=lead).admitted


def test_without_a_latency_model_risk_and_time_are_not_asked_for() -> None:
    for build in (replace(BUILD, latency=None), replace(BUILD, budgets=None)):
        assert decide(meta(1), build) == Verdict(Reason.ADMITTED)
        assert decide(meta(1), build, replace(OWNER, active=False)).reason is Reason.NO_INSTANCE


def test_admit_all_asks_neither_for_risk_nor_for_time() -> None:
    trigger = Trigger(TriggerConfig(admit_all=True))
    for lengths in ((0, 0, 0), (4096, 128, 256), (8192, 2048, 2048), (16384, 128, 256)):
        assert decide(meta(*lengths), trigger=trigger).admitted
    assert decide(meta(None), trigger=trigger).reason is Reason.METADATA
    assert decide(meta(1), replace(BUILD, enabled=False), trigger=trigger).reason is Reason.DISABLED
    assert decide(meta(1), replace(BUILD, cacheable="none"), trigger=trigger).reason is Reason.NOT_REUSABLE
    hot = replace(OWNER, key_inflight=8)
    assert decide(meta(1), owner=hot, trigger=trigger).reason is Reason.HOT_KEY


def test_the_switch_may_be_turned_live() -> None:
    trigger = Trigger(TriggerConfig())
    trigger.enabled = False
    assert decide(meta(8192), trigger=trigger).reason is Reason.DISABLED
    trigger.enabled = True
    assert decide(meta(8192), trigger=trigger).admitted


def test_r10_new_coefficients_count_at_once() -> None:
    trigger, latency = Trigger(TriggerConfig()), LatencyModel(EXAMPLE)
    build = replace(BUILD, latency=latency)
    assert decide(meta(8192), build, trigger=trigger).admitted
    latency.reload(EXAMPLE.scaled(0.1))
    assert decide(meta(8192), build, trigger=trigger).reason is Reason.NOT_AT_RISK


class Untouchable(str):
    """Stands for a history: whatever is read of it fails."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"read {name} of a history")

    def _fail(self, *_: object) -> int:
        raise AssertionError("read a history")

    __len__ = __iter__ = __getitem__ = __hash__ = __eq__ = __contains__ = __bool__ = _fail  # type: ignore[assignment]


def test_r7_only_lengths_are_read() -> None:
    history = Untouchable("events")
    for lengths in ((8192, 128, 256), (4096, 128, 256), (None, 1, 1)):
        what = Meta(history, "b", *lengths)
        assert decide(what).reason is decide(meta(*lengths)).reason


@settings(deadline=None)
@given(
    st.floats(0, 0.1),
    st.floats(0, 1e-4),
    st.floats(0, 5),
    st.floats(0.05, 20),
    st.sampled_from([8, 32, 256]),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=6),
)
def test_remembered_chunks_are_those_that_are_cut(
    t1: float, t2: float, launch: float, chunk_ms: float, page: int, lengths: list[int]
) -> None:
    chunks = Chunks(Coefficients(t0_ms=0, t1_ms=t1, t2_ms=t2, t_launch_ms=launch), chunk_ms, page)
    starts = _ChunkStarts(chunks)
    for tokens in lengths:
        assert starts.count(tokens) == chunks.count(tokens)


def test_hits_that_were_slow_for_a_while_are_no_reason_to_make_none() -> None:
    """If nothing were admitted, no hit would ever be measured again."""
    hit = Pass(new_tokens=128, cached_tokens=8192, candidates=256)
    fitted_ms = EXAMPLE.batch_ms([hit])
    slow = LatencyModel(EXAMPLE, timed=[(hit, ratio * fitted_ms) for ratio in [1.0] * 90 + [10.0] * 10])
    build = replace(BUILD, latency=slow)
    found = decide(meta(8192), build)
    assert found.admitted
    assert found.hit_p99_ms is not None
    assert found.hit_p99_ms > FIXED_BUDGETS.b_rank_ms
    usually = LatencyModel(EXAMPLE, timed=[(hit, 10.0 * fitted_ms)] * 100)
    assert decide(meta(8192), replace(BUILD, latency=usually)).reason is Reason.NO_BENEFIT


def test_an_endless_prefix_is_refused_without_cutting_it() -> None:
    flat = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=0.0, t_launch_ms=0.3)
    build = replace(BUILD, latency=LatencyModel(flat), chunks=Chunks(flat, 4.0, 32))
    trigger = Trigger(TriggerConfig())
    assert decide(meta(1 << 31), build, trigger=trigger).reason is Reason.TOO_LATE
    assert not trigger._starts


def test_only_what_is_missing_has_to_be_done_in_time() -> None:
    """202.8 ms of 16,384 tokens are too late; of the last 2,048 of them nobody has to wait long."""
    assert decide(meta(16_384)).reason is Reason.TOO_LATE
    most = replace(meta(16_384), cached_tokens=14_336)
    found = decide(most)
    assert found.admitted
    whole = decide(replace(meta(16_384), cached_tokens=16_384))
    assert whole.admitted
    assert whole.pre_ms == 0.0
    assert found.pre_ms is not None
    assert 30 < found.pre_ms < 60
