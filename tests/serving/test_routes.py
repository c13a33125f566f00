"""Every route does what it says: events, prefixes, ranking, users, models."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from serving_apps import SLOTTED, App, close_scores, error_of, events, offline, running, save_model, settings

from relaygr.engine import RankRequest, UserHistory

CANDIDATES = [5, 9, 5, 1 << 40, 77]


def scores_offline(
    folder: Path, columns: dict[str, Any], candidates: list[int], when: int | None = None
) -> Any:
    history = UserHistory("u", columns["items"], columns["timestamps"], columns["actions"])
    return offline(folder).rank(RankRequest(history, candidates, when)).logits


def test_events_then_prefix_then_rank(app: App, model_folder: Path) -> None:
    columns = events(70)
    done = app.post("/v1/events", {"user": "laps", **columns})
    assert done == {
        "user": "laps", "sequence": 70, "accepted": 70, "duplicates": 0, "late": 0, "replayed": False,
    }  # fmt: skip
    lap = app.post("/v1/prefix", {"user": "laps"})
    assert (lap["admission"], lap["tokens"], lap["cached"]) == ("admitted", 70, 0)
    answer = app.post("/v1/rank", {"user": "laps", "candidates": CANDIDATES, "top_k": 2})
    close_scores(answer["scores"], scores_offline(model_folder, columns, CANDIDATES))
    assert answer["tasks"] == ["engage", "like"]
    assert answer["scores"][0] == answer["scores"][2]
    assert answer["served_tokens"] == 70 == answer["tokens_cached"] + answer["tokens_computed"]
    first = np.asarray(answer["scores"])[:, 0]
    assert answer["order"] == np.argsort(-first, kind="stable")[:2].tolist()
    again = app.post("/v1/rank", {"user": "laps", "candidates": CANDIDATES})
    assert (again["path"], again["tokens_cached"], again["tokens_computed"]) == ("hit", 70, 0)
    assert "order" not in again
    assert app.post("/v1/prefix", {"user": "laps"})["admission"] == "hit"


def test_an_acknowledged_event_is_in_the_next_ranking_and_only_it_is_computed(
    app: App, model_folder: Path
) -> None:
    columns = events(40, seed=1)
    app.post("/v1/events", {"user": "grows", **columns})
    app.post("/v1/rank", {"user": "grows", "candidates": CANDIDATES})
    more = {"items": [3, 4], "timestamps": [columns["timestamps"][-1] + 5] * 2, "actions": [1, 2]}
    app.post("/v1/events", {"user": "grows", **more})
    answer = app.post("/v1/rank", {"user": "grows", "candidates": CANDIDATES})
    assert (answer["path"], answer["tokens_cached"], answer["tokens_computed"]) == ("resumed", 40, 2)
    whole = {name: columns[name] + more[name] for name in columns}
    close_scores(answer["scores"], scores_offline(model_folder, whole, CANDIDATES))


def test_histories_longer_than_the_window_agree_with_the_engine(app: App, model_folder: Path) -> None:
    columns = events(300, seed=2)
    for start in range(0, 300, 37):
        part = {name: values[start : start + 37] for name, values in columns.items()}
        app.post("/v1/events", {"user": "long", **part})
        answer = app.post("/v1/rank", {"user": "long", "candidates": [7, 8]})
        whole = {name: values[: start + 37] for name, values in columns.items()}
        close_scores(answer["scores"], scores_offline(model_folder, whole, [7, 8]))
    state = app.call("GET", "/v1/users/long/state").json()
    assert (state["events"], state["newest_s"]) == (300, columns["timestamps"][-1])
    assert state["tokens"] == state["cached"] <= 128


def test_late_and_duplicate_events(app: App, model_folder: Path) -> None:
    app.post("/v1/events", {"user": "late", "items": [1, 2], "timestamps": [100, 200]})
    app.post("/v1/rank", {"user": "late", "candidates": [9]})
    again = app.post("/v1/events", {"user": "late", "items": [2, 3], "timestamps": [200, 150]})
    assert (again["accepted"], again["duplicates"], again["late"], again["sequence"]) == (1, 1, 1, 3)
    answer = app.post("/v1/rank", {"user": "late", "candidates": [9]})
    history = UserHistory("late", [1, 2, 3], [100, 200, 200])
    close_scores(answer["scores"], offline(model_folder).rank(RankRequest(history, [9])).logits)


def test_a_key_makes_an_append_idempotent(app: App) -> None:
    body = {"user": "keyed", "items": [1, 1], "timestamps": [5, 5], "key": "k1"}
    first = app.post("/v1/events", body)
    assert (first["accepted"], first["replayed"]) == (2, False)
    assert app.post("/v1/events", body) == {**first, "replayed": True}
    del body["key"]
    assert app.post("/v1/events", body, headers={"idempotency-key": "k1"})["replayed"]
    other = app.call("POST", "/v1/events", {**body, "items": [1, 2], "key": "k1"})
    error_of(other, 409, "key_conflict", "key")
    differs = app.call("POST", "/v1/events", {**body, "key": "k2"}, headers={"idempotency-key": "k1"})
    error_of(differs, 422, "request", "key")
    assert app.call("GET", "/v1/users/keyed/state").json()["events"] == 2


def test_unknown_users_have_an_empty_history(app: App, model_folder: Path) -> None:
    answer = app.post("/v1/rank", {"user": "nobody", "candidates": CANDIDATES, "query_time": 1_700_000_000})
    nothing = {"items": [], "timestamps": [], "actions": []}
    close_scores(answer["scores"], scores_offline(model_folder, nothing, CANDIDATES, 1_700_000_000))
    assert (answer["path"], answer["served_tokens"]) == ("full", 0)
    state = app.call("GET", "/v1/users/nobody/state").json()
    assert (state["events"], state["tokens"], state["cached"], state["newest_s"]) == (0, 0, 0, None)
    gone = app.call("DELETE", "/v1/users/nobody").json()
    assert gone == {"user": "nobody", "events": 0, "entries": 0}


def test_empty_lists(app: App) -> None:
    nothing = app.post("/v1/events", {"user": "empty", "items": [], "timestamps": []})
    assert (nothing["sequence"], nothing["accepted"]) == (0, 0)
    answer = app.post("/v1/rank", {"user": "empty", "candidates": [], "top_k": 3})
    assert (answer["scores"], answer["order"]) == ([], [])
    inline = {"items": [], "timestamps": []}
    assert len(app.post("/v1/rank", {"user": "empty", "candidates": [1], "history": inline})["scores"]) == 1
    assert app.post("/v1/prefix", {"user": "empty"})["admission"] == "hit"


def test_inline_history_is_used_instead_of_the_stored_one(app: App, model_folder: Path) -> None:
    stored, inline = events(10, seed=3), events(50, seed=4)
    app.post("/v1/events", {"user": "inline", **stored})
    body = {"user": "inline", "history": inline}
    app.post("/v1/prefix", body)
    answer = app.post("/v1/rank", {**body, "candidates": CANDIDATES, "output": "probabilities"})
    logits = scores_offline(model_folder, inline, CANDIDATES)
    close_scores(answer["scores"], 1 / (1 + np.exp(-logits)))
    assert answer["served_tokens"] == 50
    assert app.call("GET", "/v1/users/inline/state").json()["events"] == 10


def test_deleting_a_user_removes_everything(app: App) -> None:
    app.post("/v1/events", {"user": "leaves", **events(30), "key": "once"})
    app.post("/v1/rank", {"user": "leaves", "candidates": [1]})
    assert app.call("DELETE", "/v1/users/leaves").json() == {"user": "leaves", "events": 30, "entries": 1}
    state = app.call("GET", "/v1/users/leaves/state").json()
    assert (state["events"], state["cached"]) == (0, 0)
    assert not app.post("/v1/events", {"user": "leaves", **events(30), "key": "once"})["replayed"]
    cold = app.post("/v1/rank", {"user": "leaves", "candidates": [1]})
    assert (cold["path"], cold["tokens_cached"], cold["tokens_computed"]) == ("full", 0, 30)


@pytest.mark.parametrize("user", ["a/b", "a/state", "ü ☃", "...", "%41", "profile", "x" * 256])
def test_users_with_strange_names(app: App, user: str) -> None:
    place = f"/v1/users/{quote(user, safe='')}"
    app.post("/v1/events", {"user": user, "items": [1], "timestamps": [1]})
    assert app.call("GET", f"{place}/state").json()["user"] == user
    assert app.call("GET", f"{place}/state").json()["events"] == 1
    assert app.call("DELETE", place).json() == {"user": user, "events": 1, "entries": 0}


def test_profiles(tmp_path: Path) -> None:
    save_model(tmp_path, config=SLOTTED)
    engine = offline(tmp_path)
    with running(settings(tmp_path)) as app:
        columns = events(20)
        app.post("/v1/events", {"user": "p", **columns})

        def wanted(slots: list[int], offset: int) -> Any:
            history = UserHistory("p", *columns.values(), contextual=slots, utc_offset_s=offset)
            return engine.rank(RankRequest(history, CANDIDATES)).logits

        ask = {"user": "p", "candidates": CANDIDATES}
        close_scores(app.post("/v1/rank", ask)["scores"], wanted([0, 0], 0))
        body = {"contextual": [4, 7], "utc_offset_s": 3600}
        assert app.call("PUT", "/v1/users/p/profile", body).json() == {"user": "p", **body}
        answer = app.post("/v1/rank", ask)
        close_scores(answer["scores"], wanted([4, 7], 3600))
        assert answer["tokens_cached"] == 0
        app.post("/v1/events", {"user": "p", "items": [1], "timestamps": [columns["timestamps"][-1]]})
        assert app.post("/v1/rank", ask)["tokens_cached"] == 22
        wrong = app.call("PUT", "/v1/users/p/profile", {"contextual": [1]})
        error_of(wrong, 422, "request", "contextual")


def test_models_status_and_health(app: App, model_folder: Path) -> None:
    (card,) = app.call("GET", "/v1/models").json()["models"]
    assert (card["name"], card["path"], card["cacheable"]) == ("ranker", str(model_folder), "append")
    assert card["tasks"] == ["engage", "like"]
    assert card["limits"]["candidates"] == 600
    assert card["config"]["hidden_size"] == 16
    assert len(card["model"]) == 32
    status = app.call("GET", "/v1/status").json()
    assert (status["state"], status["model"]["fingerprint"]) == ("ready", card["model"])
    assert app.call("GET", "/healthz").json() == {"status": "ready"}
    assert app.call("GET", "/readyz").json() == {"status": "ready"}
    text = app.call("GET", "/metrics")
    assert text.headers["content-type"].startswith("text/plain")
    assert "relaygr_requests_total" in text.text
    page = app.call("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "<html" in page.text


def test_request_ids_and_timings(app: App) -> None:
    given = app.call("GET", "/healthz", headers={"x-request-id": "my-id-7"})
    assert given.headers["x-request-id"] == "my-id-7"
    ids = {app.call("GET", "/healthz", headers={"x-request-id": "a b"}).headers["x-request-id"] for _ in "ab"}
    assert len(ids) == 2
    assert "a b" not in ids
    answer = app.call("POST", "/v1/rank", {"user": "ids", "candidates": [1]}, headers={"x-request-id": "r9"})
    assert answer.json()["request_id"] == "r9"
    timing = answer.headers["server-timing"]
    assert all(f"{name};dur=" in timing for name in ("queue", "compute", "total"))
