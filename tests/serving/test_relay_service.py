"""Signals over HTTP: what is said of each, what it reads, and how soon it is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from relay_apps import LONG, PAGE_BYTES, SHORT, feedback, follow, metric, relaying, signal, until
from serving_apps import TINY, App, close_scores, error_of, events, offline, save_model

from relaygr.engine import RankRequest, UserHistory
from relaygr.relay.latency import Coefficients
from relaygr.serving.feedback import MAX_RATE

SLOW = Coefficients(t0_ms=3.0, t1_ms=5.0, t2_ms=0.0, t_launch_ms=0.3)
Say = Callable[[App], Any]


def once(app: App) -> Any:
    return signal(app, "u", candidates=4)


def twice(app: App) -> Any:
    signal(app, "u", candidates=4)
    return signal(app, "u", candidates=4)


def two_users(app: App) -> Any:
    signal(app, "other", candidates=4)
    return once(app)


def after_ranking(app: App) -> Any:
    for number in range(3):
        app.post("/v1/rank", {"user": f"r{number}", "candidates": [1, 2], "history": SHORT})
    time.sleep(0.06)  # rates are looked at again
    return once(app)


REASONS: dict[str, tuple[dict[str, Any], Say]] = {
    "disabled": ({"relay": {"enabled": False}}, once),
    "not_at_risk": ({}, lambda app: signal(app, "u", SHORT, candidates=4)),
    "no_benefit": ({}, lambda app: signal(app, "u", candidates=100)),
    "too_late": ({"speed": SLOW}, lambda app: signal(app, "u", candidates=0)),
    "hot_key": ({"trigger": {"key_inflight_max": 1, "seq_at_risk_min_tokens": 0}}, twice),
    "footprint": ({"relay": {"h_relay_bytes": 4 * PAGE_BYTES - 1}}, once),
    "rate": ({"trigger": {"pre_rate_per_s": 5.0, "pre_burst": 1, "seq_at_risk_min_tokens": 0}}, two_users),
    "load": ({"trigger": {"u_max": 1e-6, "seq_at_risk_min_tokens": 0}}, after_ranking),
    "queue_full": ({"scheduler": {"prefix_queue_max": 0}}, once),
}


@pytest.mark.parametrize("reason", REASONS)
def test_r9_a_refusal_has_one_reason_and_reserves_nothing(model_folder: Path, reason: str) -> None:
    sections, say = REASONS[reason]
    with relaying(model_folder, **sections) as app:
        before = dict(app.service.relay.state().live_bytes)
        answer = say(app)
        assert (answer["admission"], answer["reason"]) == ("rejected", reason)
        admitted = reason in ("hot_key", "rate")
        refused = metric(app, f'relaygr_trigger_decisions_total{{reason="{reason}"}}')
        assert refused == 1
        assert metric(app, 'relaygr_trigger_decisions_total{reason="admitted"}') == admitted
        if not admitted:
            assert dict(app.service.relay.state().live_bytes) == before
        body = {"user": "u", "candidates": [1, 2, 3], "history": LONG, "deadline_ms": 30_000}
        history = UserHistory("u", *LONG.values())
        scores = offline(model_folder).rank(RankRequest(history, [1, 2, 3])).logits
        close_scores(app.post("/v1/rank", body)["scores"], scores)


def test_a_build_may_be_switched_off(model_folder: Path) -> None:
    digits = offline(model_folder).model_fp.hex()[:6]
    with relaying(model_folder, relay={"disabled_builds": (digits,)}) as app:
        assert once(app)["reason"] == "disabled"
        assert metric(app, "relaygr_relay_build_enabled") == 0
    with relaying(model_folder, relay={"disabled_builds": ("00ff",)}) as app:
        assert once(app)["admission"] == "admitted"
        assert metric(app, "relaygr_relay_build_enabled") == 1


def test_a_model_whose_prefixes_end_with_a_request(tmp_path: Path) -> None:
    save_model(tmp_path, config=replace(TINY, full_tail=4, window=20))
    with relaying(tmp_path) as app:
        assert once(app)["reason"] == "not_reusable"


def test_an_admitted_signal_then_its_ranking(model_folder: Path) -> None:
    with relaying(model_folder) as app:
        app.post("/v1/events", {"user": "u", **LONG})
        assert app.post("/v1/prefix", {"user": "u", "candidates": 3})["admission"] == "admitted"
        until(lambda: feedback(app)["load"] == 0)
        assert feedback(app)["live_bytes"] == 4 * PAGE_BYTES
        answer = app.post("/v1/rank", {"user": "u", "candidates": [1, 2, 3]})
        assert (answer["path"], answer["tokens_computed"], answer["served_tokens"]) == ("hit", 0, 100)
        until(lambda: feedback(app)["live_bytes"] == 0)
        assert metric(app, "relaygr_ready_before_rank_ratio") == 1


def test_r7_the_decision_is_given_lengths_and_loads_only(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relaying(model_folder) as app:
        relay, seen = app.service.relay, []
        decide = relay.decide

        def spy(*arguments: Any, **named: Any) -> Any:
            seen.append((*arguments, *named.values()))
            began = time.thread_time()
            verdict = decide(*arguments, **named)
            spent.append(time.thread_time() - began)
            return verdict

        spent: list[float] = []
        monkeypatch.setattr(relay, "decide", spy)
        for number in range(200):
            signal(app, f"u{number % 7}", events(60 + number % 40), candidates=4)
        plain = (str, int, float, type(None))
        for arguments in seen:
            owner, tokens, found, *others = arguments
            flat = [*owner, tokens, *found, *others]
            assert all(type(value) in plain for value in flat), arguments
        assert float(np.quantile(spent, 0.99)) <= 1e-3


def test_r8_a_signal_is_answered_while_the_engine_is_busy(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relaying(model_folder) as app:
        engine, entered, go = app.service.engine, threading.Event(), threading.Event()
        rank_batch = engine.rank_batch

        def slow(requests: Any) -> Any:
            entered.set()
            assert go.wait(20)
            return rank_batch(requests)

        monkeypatch.setattr(engine, "rank_batch", slow)
        ranking = threading.Thread(target=once_ranked, args=(app,))
        ranking.start()
        assert entered.wait(20)
        assert once(app)["admission"] == "admitted"
        assert feedback(app)["load"] == 2  # both are under way
        assert not go.is_set()
        go.set()
        ranking.join(20)


def once_ranked(app: App) -> None:
    app.post("/v1/rank", {"user": "r", "candidates": [1], "history": SHORT})


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("prefix", "candidates", -1),
        ("prefix", "candidates", 1_048_577),
        ("prefix", "candidates", "many"),
        ("prefix", "candidates", 1.5),
        ("prefix", "budget_ms", 10),
        ("rank", "budget_ms", 0),
        ("rank", "budget_ms", -1),
        ("rank", "budget_ms", "soon"),
        ("rank", "budget_ms", 10_001),
    ],
)
def test_fields_and_their_limits(app: App, path: str, field: str, value: Any) -> None:
    body = {"user": "u", **({"candidates": [1]} if path == "rank" else {}), field: value}
    answer = app.call("POST", f"/v1/{path}", body)
    if (path, value) == ("rank", 10_001):
        error_of(answer, 422, "request", "budget_ms")
    else:
        assert answer.status_code in (400, 422)
        assert field in answer.json()["error"]["message"]


def test_a_budget_shortens_and_a_deadline_ends(model_folder: Path) -> None:
    with relaying(model_folder, relay={"len_bucket_tokens": 16}) as app:
        body = {"user": "u", "candidates": [1, 2], "history": LONG}
        whole = app.post("/v1/rank", {**body, "budget_ms": 9_999, "deadline_ms": 10_000})
        assert (whole["path"], whole["served_tokens"]) == ("full", 100)
        part = app.post("/v1/rank", {**body, "user": "v", "budget_ms": 30})
        assert part["path"] == "truncated"
        assert 0 < part["served_tokens"] <= 32
        assert part["served_tokens"] % 16 == 0
        none = app.post("/v1/rank", {**body, "user": "w", "budget_ms": 1})
        assert (none["path"], none["served_tokens"], len(none["scores"])) == ("degraded", 0, 2)
        again = app.post("/v1/rank", {**body, "budget_ms": 1})
        assert (again["path"], again["scores"]) == ("hit", pytest.approx(np.array(whole["scores"]), abs=2e-5))


def test_candidates_that_are_not_named_are_those_of_late(model_folder: Path) -> None:
    with relaying(model_folder, trigger={"candidates_default": 100, "seq_at_risk_min_tokens": 0}) as app:
        assert signal(app, "u")["reason"] == "no_benefit"
        app.post("/v1/rank", {"user": "r", "candidates": [1, 2], "history": SHORT})
        assert signal(app, "u")["admission"] == "admitted"


def test_feedback(model_folder: Path) -> None:
    with relaying(model_folder, speed=None) as app:
        said = feedback(app)
        assert set(said) == {
            *("ready", "draining", "build", "page_tokens", "epoch", "load", "pre_wait_ms", "rank_share"),
            *("live_bytes", "bound_bytes", "q_rate_per_s", "q_load_per_s"),
        }
        assert (said["ready"], said["draining"], said["page_tokens"]) == (True, False, 32)
        assert said["build"] == app.service.served.model
        assert said["bound_bytes"] == 2 << 20
        assert (said["q_rate_per_s"], said["q_load_per_s"]) == (MAX_RATE, MAX_RATE)
        follow(app)
        once(app)
        until(lambda: feedback(app)["load"] == 0)
        assert feedback(app)["live_bytes"] == 4 * PAGE_BYTES
        app.post("/v1/rank", {"user": "u", "candidates": [1], "history": LONG})
        until(lambda: 0 < feedback(app)["rank_share"] < 1)
        time.sleep(0.06)
        signal(app, "v", candidates=4)
        assert 0 < feedback(app)["q_load_per_s"] < MAX_RATE
