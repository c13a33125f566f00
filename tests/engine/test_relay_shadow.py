"""Rankings that are scored again without the cache, and models for which the relay is off."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from relay_rig import FULL, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.engine import shadow
from relaygr.engine.engine import Engine
from relaygr.engine.jobs import Admission
from relaygr.engine.requests import Path, RankRequest, RankResult
from relaygr.engine.shadow import FP32_EPSILON, score_difference

ONE = user("one")


def test_r32_a_share_of_the_hits_is_scored_again_and_agrees() -> None:
    with rig(relay={"shadow_rate": 0.5}) as r:
        r.prepare(ONE)
        for _ in range(4):
            r.rank(ONE)
        r.rank(longer(ONE, 5))  # also what only goes on from the cache
        r.rank(longer(ONE, 9))
        assert len(r.ears.differences) == 3
        assert max(r.ears.differences) <= FP32_EPSILON
        assert r.relay.state().enabled


def test_what_did_not_use_the_cache_is_not_scored_again() -> None:
    def fit(job: object, left_ms: float) -> int:
        return 10

    with rig(relay={"shadow_rate": 1.0}, fit=fit) as r:
        job = r.ask(ONE)
        assert job.future.result(PATIENCE_S).served.path is Path.FULL
        assert job.kept_events == 10
        r.rest()
        assert r.ears.differences == []


def damage(r: Rig) -> None:
    """Whatever the device holds is not what was computed."""
    r.engine._tiers.pool.keys.mul_(1.5)
    r.engine._tiers.pool.values.add_(0.5)


def test_r32_a_breach_turns_relay_and_cache_off_for_the_build(caplog: pytest.LogCaptureFixture) -> None:
    with rig(relay={"shadow_rate": 1.0}) as r, caplog.at_level(logging.ERROR):
        r.prepare(ONE)
        damage(r)
        wrong = r.ask(ONE).future.result(PATIENCE_S)
        assert wrong.served.path is Path.HIT
        r.rest()
        assert r.ears.differences[0] > FP32_EPSILON
        assert f"model {r.engine.model_fp.hex()} is served without relay and cache" in caplog.text
        assert not r.relay.state().enabled
        assert r.signal(ONE).reason == "disabled"
        answer = r.rank(ONE)  # what the device still holds is not believed
        assert (answer.served.path, answer.served.tokens_computed) == (Path.FULL, FULL)
        assert r.signal(user("two")).reason == "disabled"
        r.swap(1)
        assert r.prepare(ONE).admission is Admission.ADMITTED
        assert r.rank(ONE).served.path is Path.HIT


def test_r32_a_breach_ends_flights_and_holds() -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        r.prepare(ONE)
        damage(r)
        r.brake.stop()
        job = r.ask(ONE)
        job.future.result(PATIENCE_S)
        flight = r.signal(user("two")).flight
        assert flight is not None
        r.brake.release()
        await_true(lambda: not r.relay.state().enabled)
        r.rest()
        r.rank(user("two"))
        r.rank(ONE)


@pytest.mark.parametrize("limit", [1e-3, 1e6])
def test_r32_the_limit_is_what_the_settings_say(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(relay={"shadow_rate": 1.0, "epsilon_limit": limit}) as r:
        r.shadows.limit(measured=1e-9)
        monkeypatch.setattr(shadow, "score_difference", lambda one, other: 0.5)
        r.rank(ONE)
        r.rank(ONE)
        assert r.ears.differences == [0.5]
        assert r.relay.state().enabled is (limit > 0.5)


def test_a_difference_that_is_no_number_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        monkeypatch.setattr(shadow, "score_difference", lambda one, other: float("nan"))
        r.rank(ONE)
        r.rank(ONE)
        assert not r.relay.state().enabled


def test_ranking_waits_for_one_step_of_a_shadow_at_most() -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        r.rank(ONE)
        r.brake.stop()
        r.ask(ONE).future.result(PATIENCE_S)
        r.brake.await_step()  # the first of five
        job = r.ask(user("two"))
        r.brake.go()
        r.right(job, job.future.result(PATIENCE_S))
        assert r.brake.steps <= 2  # the next one is stopped, or not even begun
        assert r.ears.differences == []
        r.brake.release()
        r.rest()
        assert len(r.ears.differences) == 1


def test_a_flight_goes_before_a_shadow() -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        r.rank(ONE)
        r.brake.stop()
        r.ask(ONE).future.result(PATIENCE_S)
        r.brake.await_step()
        flight = r.signal(user("two")).flight
        assert flight is not None
        for _ in range(5):
            r.brake.go()
            r.brake.await_step()
        r.brake.go()
        assert flight.result(PATIENCE_S).resident
        assert r.ears.differences == []


def test_only_a_few_wait() -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        r.rank(ONE)
        r.brake.stop()
        r.ask(ONE).future.result(PATIENCE_S)
        r.brake.await_step()
        jobs = [r.ask(ONE) for _ in range(9)]
        r.brake.go()
        for job in jobs:
            job.future.result(PATIENCE_S)
        r.brake.await_step()
        assert len(r.chores._waiting) == 4
        r.brake.release()
        r.rest()
        assert len(r.ears.differences) == 4


def test_a_shadow_of_the_model_before_is_dropped() -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        r.rank(ONE)
        r.brake.stop()
        r.ask(ONE).future.result(PATIENCE_S)
        r.brake.await_step()
        r.swap(1)
        r.brake.release()
        r.rest()
        assert (r.ears.differences, len(r.chores._waiting)) == ([], 0)


def test_a_shadow_that_fails_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> bool:
        raise RuntimeError("broken")

    with rig(relay={"shadow_rate": 1.0}) as r:
        monkeypatch.setattr(Engine, "score_aside", fails)
        r.rank(ONE)
        r.rank(ONE)
        assert "shadow scoring failed" in caplog.text
        assert (r.ears.differences, len(r.chores._waiting)) == ([], 0)
        r.rank(ONE)


def test_differences_are_shares_of_the_largest_score() -> None:
    zero = np.zeros((0, 2), np.float32)
    assert score_difference(zero, zero) == 0.0
    assert score_difference(np.array([[0.5]]), np.array([[0.25]])) == 0.25
    assert score_difference(np.array([[101.0, 0]]), np.array([[100.0, 0]])) == pytest.approx(0.01)


OFF: dict[str, dict[str, Any]] = {
    "global": {"relay": {"enabled": False}},
    "build": {"build": {"enabled": False}},
    "not reusable": {"build": {"cacheable": "request"}},
}


@pytest.mark.parametrize("way", OFF)
def test_r30_with_the_relay_off_every_bit_is_that_of_the_ranker_alone(way: str) -> None:
    def traffic(number: int) -> list[RankRequest]:
        one = user(f"u{number % 4}", 40)
        return [RankRequest(longer(one, number), range(1, 1 + number))]

    with rig(**OFF[way]) as r:
        alone = r.new_engine(0)
        for number in range(12):
            [request] = traffic(number)
            signal = r.signal(request.history)
            assert signal.reason == ("not_reusable" if way == "not reusable" else "disabled")
            got: RankResult = r.scheduler.rank(request).future.result(PATIENCE_S)
            want = alone.rank(request)
            assert np.array_equal(got.logits, want.logits)
            assert got.served == want.served
        assert r.live == {}


def test_r30_without_reuse_every_history_is_computed() -> None:
    with rig(relay={"enabled": False, "reuse": False}) as r:
        alone = r.new_engine(0)
        for _ in range(2):
            request = RankRequest(ONE, range(1, 9), keep=False)
            got = r.scheduler.rank(request).future.result(PATIENCE_S)
            assert (got.served.path, got.served.tokens_computed) == (Path.FULL, FULL)
            assert np.array_equal(got.logits, alone.rank(request).logits)
        assert r.engine.cache_stats().entries == 0
