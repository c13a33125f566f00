"""Events of a real stream in a real service: they count as if they had been sent to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from serving_apps import App, running, settings
from stream_sinks import fields

from relaygr.config.settings import ApiKey
from relaygr.config.stream import StreamConfig
from relaygr.serving.run import consuming

KEYS = (ApiKey(key="k" * 16, tenant="shop"),)


class Nothing:
    """The program behind a consumer where the application is started by itself."""

    async def start(self) -> None: ...

    async def drain(self, timeout_s: float) -> bool:
        return True


class Streamed:
    def __init__(self, app: App, url: str) -> None:
        self.app, self._client = app, redis.Redis.from_url(url)

    def add(self, entry: Mapping[str, bytes]) -> None:
        put: Any = self._client.xadd
        put("s", dict(entry))

    def settle(self) -> None:
        """Until everything is acknowledged; the stream was read for the first time before."""
        end = time.monotonic() + 30
        while True:
            groups: Any = self._client.xinfo_groups("s")
            if groups and (groups[0]["pending"], groups[0]["lag"]) == (0, 0):
                return
            assert time.monotonic() < end, groups
            time.sleep(0.005)

    def close(self) -> None:
        self._client.close()


@contextmanager
def streamed(model: Path, url: str, **serving: Any) -> Iterator[Streamed]:
    stream = StreamConfig(url=url, streams=("s",), block_ms=20, retry_ms=1, lag_s=0.01)
    config = replace(settings(model, **serving), stream=stream)
    with running(config) as app:
        program = consuming(Nothing(), app.service)
        app.do(program.start())
        end = time.monotonic() + 30
        while not program.counts.assigned:
            assert time.monotonic() < end
            time.sleep(0.005)
        with closing(Streamed(app, url)) as there:
            yield there
        app.do(program.drain(5.0))


@pytest.fixture
def there(model_folder: Path, empty_redis: str) -> Iterator[Streamed]:
    with streamed(model_folder, empty_redis) as found:
        yield found


def test_a_streamed_event_is_as_fresh_as_a_posted_one(there: Streamed) -> None:
    app = there.app
    history = [fields("streamed", number, actions=b"3") for number in range(40)]
    columns = {
        "items": list(range(40)),
        "timestamps": [1_700_000_000 + number for number in range(40)],
        "actions": [3] * 40,
    }
    app.post("/v1/events", {"user": "posted", **{name: each[:30] for name, each in columns.items()}})
    for entry in history[:30]:
        there.add(entry)
    there.settle()
    candidates = {"candidates": [5, 1, 9], "query_time": 1_700_001_000}
    before = [app.post("/v1/rank", {"user": user, **candidates}) for user in ("posted", "streamed")]
    assert before[0]["scores"] == before[1]["scores"]
    # Both have a prefix in the cache by now, which grows with what comes.
    app.post("/v1/events", {"user": "posted", **{name: each[30:] for name, each in columns.items()}})
    for entry in history[30:]:
        there.add(entry)
    there.settle()
    after = [app.post("/v1/rank", {"user": user, **candidates}) for user in ("posted", "streamed")]
    assert after[0]["scores"] == after[1]["scores"] != before[0]["scores"]
    assert (after[0]["path"], after[0]["tokens_cached"]) == (after[1]["path"], after[1]["tokens_cached"])
    assert after[1]["tokens_cached"] > 0
    states = [app.call("GET", f"/v1/users/{user}/state").json() for user in ("posted", "streamed")]
    assert states[0]["events"] == states[1]["events"] == 40


def test_what_the_model_does_not_take_is_a_dead_letter(there: Streamed) -> None:
    there.add(fields("u", 1))
    there.add(fields("u", 2, actions=b"1024"))  # the model knows two bits
    there.add(fields("u", 3))
    there.settle()
    assert there.app.call("GET", "/v1/users/u/state").json()["events"] == 2
    letters: Any = there._client.xrange("relaygr:dead")
    ((_, letter),) = letters
    assert b"actions" in letter[b"dead.error"]
    assert letter[b"user"] == b"u"


def test_a_field_name_that_is_no_text_stops_nobody(there: Streamed) -> None:
    put: Any = there._client.xadd
    put("s", {b"\xff\xfeuser": b"u", b"item": b"1"})
    there.add(fields("u", 2))
    there.settle()
    assert there.app.call("GET", "/v1/users/u/state").json()["events"] == 1
    letters: Any = there._client.xrange("relaygr:dead")
    ((_, letter),) = letters
    assert letter[b"\xff\xfeuser"] == b"u"
    assert b"\\xff\\xfeuser: is none of" in letter[b"dead.error"]


def test_status_and_metrics_show_it(there: Streamed) -> None:
    there.add(fields("u", 1))
    there.add({"user": b"u"})
    there.settle()
    end = time.monotonic() + 20
    while True:
        found = there.app.call("GET", "/v1/status").json()["stream"]
        if found["lag_entries"] == 0 and found["applied"] == 1:
            break
        assert time.monotonic() < end, found
        time.sleep(0.01)
    assert (found["state"], found["streams"], found["streams_total"]) == ("reading", 1, 1)
    assert (found["dead"], found["duplicates"], found["trimmed"], found["reconnects"]) == (1, 0, 0, 0)
    text = there.app.call("GET", "/metrics").text
    assert 'relaygr_stream_entries_total{result="applied",stream="s"} 1.0' in text
    assert 'relaygr_stream_entries_total{result="dead",stream="s"} 1.0' in text


def test_tenants_need_a_key_where_there_are_keys(model_folder: Path, empty_redis: str) -> None:
    with streamed(model_folder, empty_redis, keys=KEYS) as there:
        there.add(fields("u", 1))
        there.add(fields("u", 2, tenant=b"shop"))
        there.settle()
        answer = there.app.call("GET", "/v1/users/u/state", headers={"authorization": f"Bearer {'k' * 16}"})
        assert answer.json()["events"] == 1
        assert there._client.xlen("relaygr:dead") == 1


def test_a_service_without_a_stream_says_so(app: App) -> None:
    assert app.call("GET", "/v1/status").json()["stream"] is None
    assert "relaygr_stream" not in app.call("GET", "/metrics").text
    answer = app.call("POST", "/v1/events", {"user": "u", "items": [1], "timestamps": [5], "source": "s"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "offsets")


def test_a_posted_source_is_known_when_it_comes_again(app: App) -> None:
    body = {"user": "src", "items": [1, 2], "timestamps": [5, 5], "source": "kafka:0", "offsets": ["7", "8"]}
    assert app.post("/v1/events", body)["accepted"] == 2
    assert app.post("/v1/events", body)["replayed"]
    more = {**body, "items": [2, 3], "offsets": ["8", "9"]}
    answer = app.post("/v1/events", more)
    assert (answer["sequence"], answer["accepted"], answer["duplicates"]) == (3, 1, 1)
    for offsets in (["9", "8"], ["9"], ["x", "y"]):
        assert app.call("POST", "/v1/events", {**body, "offsets": offsets}).status_code == 422
