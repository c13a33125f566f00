"""Models are swapped under load: every answer is one model's, and a bad model changes nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_service import live_service
from msgspec.structs import replace
from serving_apps import (
    SLOTTED,
    TINY,
    App,
    close_scores,
    error_of,
    events,
    offline,
    running,
    save_model,
    settings,
)

import relaygr.serving.service as module
from relaygr.engine import RankRequest, UserHistory
from relaygr.models.weights import WEIGHTS_FILE

CANDIDATES = [5, 9, 1 << 40, 77]
USERS = 4


def two_models(folder: Path) -> dict[str, Path]:
    """Folders by fingerprint."""
    return {save_model(folder / name, seed): folder / name for seed, name in enumerate(("a", "b"))}


def history(number: int) -> UserHistory:
    return UserHistory(f"user-{number}", *events(10 + 20 * number, seed=number).values())


def test_under_load_no_answer_mixes_models(tmp_path: Path) -> None:
    folders = two_models(tmp_path)
    wanted = {
        (name, number): offline(folder).rank(RankRequest(history(number), CANDIDATES)).logits
        for name, folder in folders.items()
        for number in range(USERS)
    }
    first, second = folders
    for number in range(USERS):
        assert not np.allclose(wanted[first, number], wanted[second, number], atol=1e-3)
    stop, problems, seen = threading.Event(), list[str](), Counter[str]()

    def load(url: str, number: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                user = f"user-{number}"
                client.post("/v1/prefix", json={"user": user})
                answer = client.post("/v1/rank", json={"user": user, "candidates": CANDIDATES})
                if answer.status_code != 200:
                    problems.append(answer.text)
                    return
                body = answer.json()
                difference = np.abs(np.asarray(body["scores"]) - wanted[body["model"], number]).max()
                if difference > 2e-5:
                    problems.append(f"user {number}, model {body['model']}: {difference}")
                seen[body["model"]] += 1

    with (
        live_service(settings(folders[first])) as live,
        httpx.Client(base_url=live.url, timeout=60) as client,
    ):
        for number in range(USERS):
            body = {"user": f"user-{number}", **events(10 + 20 * number, seed=number)}
            assert client.post("/v1/events", json=body).status_code == 200
        threads = [threading.Thread(target=load, args=(live.url, number)) for number in range(USERS)]
        for thread in threads:
            thread.start()
        now = first
        for path in (folders[second], tmp_path / "nothing", folders[first], folders[second]):
            before = sum(seen.values())
            answer = client.post("/v1/models/reload", json={"path": str(path)})
            if path in folders.values():
                expected = next(name for name, folder in folders.items() if folder == path)
                assert answer.json()["before"] == now
                assert answer.json()["model"] == expected
                now = expected
            else:
                error_of(answer, 422, "model")
            assert client.get("/v1/models").json()["models"][0]["model"] == now
            while sum(seen.values()) < before + 2 * USERS and not problems:
                stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not problems
        assert set(seen) == set(folders)
        held = live.service.engine.cache_stats()
        assert (held.pinned_pages, held.leases) == (0, 0)


def truncated(folder: Path) -> None:
    save_model(folder, 7)
    file = folder / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:-100])


def not_finite(folder: Path) -> None:
    save_model(folder, 7)
    file = folder / WEIGHTS_FILE
    data = bytearray(file.read_bytes())
    data[-400:] = b"\xff" * 400
    file.write_bytes(bytes(data))


def no_config(folder: Path) -> None:
    save_model(folder, 7)
    (folder / "config.json").write_text("{}")


def another_shape(folder: Path) -> None:
    save_model(folder, 7)
    save_model(folder / "other", 7, replace(TINY, num_layers=1))
    (folder / "other" / WEIGHTS_FILE).replace(folder / WEIGHTS_FILE)


@pytest.mark.parametrize("spoil", [truncated, not_finite, no_config, another_shape])
def test_a_bad_model_leaves_the_one_before(app: App, tmp_path: Path, spoil: Any) -> None:
    spoil(tmp_path)
    body = {"user": "kept", "candidates": CANDIDATES, "query_time": 1}
    before = app.post("/v1/rank", body)
    error_of(app.call("POST", "/v1/models/reload", {"path": str(tmp_path)}), 422, "model")
    after = app.post("/v1/rank", body)
    assert (after["scores"], after["model"]) == (before["scores"], before["model"])
    assert not app.service._reloading


def test_other_profile_slots_are_refused(app: App, tmp_path: Path) -> None:
    save_model(tmp_path, config=SLOTTED)
    error_of(app.call("POST", "/v1/models/reload", {"path": str(tmp_path)}), 409, "slots")


def test_one_reload_at_a_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave, original = threading.Event(), threading.Event(), module.load

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert leave.wait(30)
        return original(*arguments)

    monkeypatch.setattr(module, "load", slow)
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(app.call("POST", "/v1/models/reload")))
    thread.start()
    assert entered.wait(30)
    error_of(app.call("POST", "/v1/models/reload"), 409, "reload_running")
    assert app.post("/v1/rank", {"user": "meanwhile", "candidates": [1]})["scores"]
    leave.set()
    thread.join(60)
    assert answers[0].status_code == 200


def test_the_same_folder_is_read_again(tmp_path: Path) -> None:
    first = save_model(tmp_path, 1)
    with running(settings(tmp_path)) as app:
        body = {"user": "u", "candidates": CANDIDATES, "query_time": 1}
        assert app.post("/v1/rank", body)["model"] == first
        second = save_model(tmp_path, 2)
        assert app.post("/v1/rank", body)["model"] == first
        before = weakref.ref(app.service.engine)
        answer = app.call("POST", "/v1/models/reload").json()
        assert (answer["before"], answer["model"]) == (first, second)
        assert app.post("/v1/rank", body)["model"] == second
        gc.collect()
        assert before() is None  # and with it its memory


def test_a_model_with_a_longer_window_sees_the_longer_history(tmp_path: Path) -> None:
    save_model(tmp_path / "short")
    save_model(tmp_path / "long", 3, replace(TINY, max_seq_len=256, position_buckets=256))
    columns = events(200)
    with running(settings(tmp_path / "short")) as app:
        app.post("/v1/events", {"user": "u", **columns})
        body = {"user": "u", "candidates": CANDIDATES}
        assert app.post("/v1/rank", body)["served_tokens"] < 128
        app.post("/v1/models/reload", {"path": str(tmp_path / "long")})
        answer = app.post("/v1/rank", body)
        assert answer["served_tokens"] == 200
        whole = UserHistory("u", *columns.values())
        wanted = offline(tmp_path / "long").rank(RankRequest(whole, CANDIDATES)).logits
        close_scores(answer["scores"], wanted)


def test_random_weights_without_a_model() -> None:
    with running(settings(None, preset="hstu-tiny")) as app:
        (card,) = app.call("GET", "/v1/models").json()["models"]
        assert card["path"] == ""
        first = app.post("/v1/rank", {"user": "u", "candidates": CANDIDATES, "query_time": 1})
        assert app.post("/v1/models/reload")["model"] == card["model"]
        again = app.post("/v1/rank", {"user": "u", "candidates": CANDIDATES, "query_time": 1})
        assert again["scores"] == first["scores"]


def test_a_model_that_would_refuse_stored_events_is_refused(tmp_path: Path, model_folder: Path) -> None:
    fewer = replace(TINY, action_bits=("engage",), tasks=("engage",))
    save_model(tmp_path / "fewer", config=fewer)
    with running(settings(model_folder)) as app:
        answer = app.call("POST", "/v1/models/reload", {"path": str(tmp_path / "fewer")})
        error_of(answer, 409, "actions")
    more = replace(TINY, action_bits=("engage", "like", "share"))
    save_model(tmp_path / "more", config=more)
    with running(settings(model_folder)) as app:
        assert app.call("POST", "/v1/models/reload", {"path": str(tmp_path / "more")}).status_code == 200
