"""Users who are hot, leave or are deleted, requests that are wrong or too many: the others are answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay_apps import (
    CANDIDATES,
    HOST,
    LONG,
    SHORT,
    SMALL,
    Held,
    feedback,
    metric,
    quiet,
    ranked,
    relaying,
    signal,
    state,
    until,
)
from serving_apps import App, close_scores, events

from relaygr.core.errors import CancelledError
from relaygr.relay.hold import State
from relaygr.serving import wire


@pytest.fixture(scope="module")
def served(model_folder: Path) -> Iterator[App]:
    with relaying(model_folder, speed=None, engine=SMALL, host=HOST) as app:
        yield app


def test_a_user_is_hot(model_folder: Path) -> None:
    with relaying(model_folder, speed=None, trigger={"key_inflight_max": 2}) as app:
        said = [signal(app, "u")["reason"] for _ in range(3)]
        assert said == ["", "", "hot_key"]
        for _ in range(3):
            ranked(app, "u")


def test_an_event_arrives_or_the_window_moves_meanwhile(served: App) -> None:
    whole = events(140)  # the model reads 128
    for before, after in ((100, 101), (127, 128), (128, 129), (128, 140)):
        user = f"moves-{before}-{after}"
        first = {name: column[:before] for name, column in whole.items()}
        more = {name: column[before:after] for name, column in whole.items()}
        served.post("/v1/events", {"user": user, **first})
        served.post("/v1/prefix", {"user": user})
        quiet(served)
        served.post("/v1/events", {"user": user, **more})
        answer = ranked(served, user, {name: column[:after] for name, column in whole.items()})
        assert answer["tokens_computed"] == (after - before if after <= 128 else answer["served_tokens"])
        again = served.post("/v1/rank", {"user": user, "candidates": CANDIDATES})
        close_scores(again["scores"], np.array(answer["scores"], np.float32))


@pytest.mark.parametrize("stage", ["queued", "running"])
def test_the_client_goes_away(served: App, stage: str) -> None:
    user = f"gone-{stage}"
    signal(served, user)
    quiet(served)
    assert state(served, user) is State.READY
    with Held(served) as held:
        signal(served, f"busy-{stage}")
        held.await_step()
        if stage == "running":
            held.release()
        body = wire.RankBody(user=user, candidates=CANDIDATES, history=wire.History(**LONG))

        async def gone() -> None:
            """The client is not there any more."""

        with pytest.raises(CancelledError):
            served.do(served.service.rank("default", body, "r", gone))
        until(lambda: state(served, user) is None)
    quiet(served)
    assert ranked(served, user)["path"] == "hit"  # the prefix is plain cache


def test_a_request_is_malformed_empty_or_huge(served: App) -> None:
    bad: list[dict[str, Any]] = [
        {"candidates": [1 << 63]},
        {"candidates": list(range(20_000))},
        {"candidates": [1], "history": {"items": [1, 2], "timestamps": [2, 1]}},
        {"candidates": [1], "history": {"items": [1], "timestamps": [1], "actions": [99]}},
        {"candidates": [1], "budget_ms": 60_001},
    ]
    mates = [threading.Thread(target=ranked, args=(served, f"mate-{number}")) for number in range(3)]
    for mate in mates:
        mate.start()
    for body in bad:
        answer = served.call("POST", "/v1/rank", {"user": "bad", **body})
        assert answer.status_code in (400, 413, 422), answer.text
    for mate in mates:
        mate.join(20)
    for few in (events(0), SHORT):
        assert served.post("/v1/rank", {"user": "none", "candidates": [], "history": few})["scores"] == []


def test_cached_scores_are_wrong(model_folder: Path) -> None:
    with relaying(model_folder, speed=None, relay={"shadow_rate": 1.0}) as app:
        signal(app, "u")
        quiet(app)
        app.service.engine._tiers.pool.values.add_(1.0)
        app.post("/v1/rank", {"user": "u", "candidates": CANDIDATES, "history": LONG})
        until(lambda: metric(app, "relaygr_epsilon_breaches_total") == 1)
        assert metric(app, "relaygr_relay_build_enabled") == 0
        assert signal(app, "u")["reason"] == "disabled"
        assert ranked(app, "u")["path"] == "full"


def test_a_user_is_deleted_meanwhile(served: App) -> None:
    with Held(served) as held:
        signal(served, "deleted")
        held.await_step()
        threading.Timer(0.05, held.release).start()
        served.call("DELETE", "/v1/users/deleted")
        identity = ("default", "deleted")
        assert identity not in served.service.engine._tiers.books._index._of_user
        assert state(served, "deleted") is None
    assert ranked(served, "deleted")["path"] == "full"


def test_more_comes_than_can_be_served(model_folder: Path) -> None:
    with relaying(model_folder, scheduler={"rank_batch_max": 1, "rank_queue_max": 6}) as app:
        found: list[str] = []
        with Held(app) as held:
            signal(app, "busy", candidates=4)
            held.await_step()

            def rank(number: int) -> None:
                body = {"user": f"r{number}", "candidates": CANDIDATES, "history": LONG, "budget_ms": 150}
                answer = app.call("POST", "/v1/rank", body)
                found.append(answer.json()["path"] if answer.status_code == 200 else str(answer.status_code))

            threads = [threading.Thread(target=rank, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            until(lambda: len(found) == 2)
            assert signal(app, "shed", candidates=4)["reason"] == "load"
            held.release()
            for thread in threads:
                thread.join(20)
        assert found.count("503") == 2
        assert {"truncated", "degraded"} & set(found)
        assert set(found) <= {"503", "full", "truncated", "degraded"}
        until(lambda: feedback(app)["load"] == 0)
        ranked(app, "afterwards")
