"""What `/v1/status` says of a generator: at rest and in the middle of its work, and of its catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from generation_apps import HeldRounds, generating, save_catalogue
from generation_metric_cases import STATUS
from serving_apps import App, running

from patience import PATIENCE_S, await_true
from relaygr.client.status import Status as Read
from relaygr.core.units import MIB
from relaygr.serving.generation.desk import GenerateDesk
from relaygr.serving.snapshot import Generation

PROMPT = {"history": list(range(1, 31)), "beam_width": [4, 9, 6]}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(
        generating(tmp_path_factory.mktemp("status"), max_beam_rows=1024, max_batch_tokens=2000)
    ) as app:
        yield app


def desk_of(app: App) -> GenerateDesk:
    assert app.service.generation is not None
    return app.service.generation


def said(app: App) -> dict[str, Any]:
    found: dict[str, Any] = app.call("GET", "/v1/status").json()["generation"]
    return found


def test_the_status_follows_a_generation(app: App) -> None:
    desk = desk_of(app)
    rest = said(app)
    assert set(rest) == set(Generation.__struct_fields__)
    assert rest["model"] == app.post("/v1/generate", {"history": [1]})["model_version"]
    assert (rest["waiting"], rest["running"], rest["prompts"], rest["rows"], rest["tokens"]) == (0,) * 5
    assert (rest["rows_limit"], rest["tokens_limit"]) == (1024, 2000)
    assert (rest["beam_bytes"], rest["beam_limit_bytes"]) == (0, 4 * MIB)
    assert rest["states"]["pinned_bytes"] == 0 < rest["states"]["free_bytes"]
    app.post("/v1/events", {"user": "u", "items": [1, 2], "timestamps": [1, 2]})
    with ThreadPoolExecutor(3) as callers, HeldRounds(desk.generator) as rounds:
        jobs = [callers.submit(app.call, "POST", "/v1/generate", PROMPT)]
        rounds.await_round()
        jobs += [callers.submit(app.call, "POST", "/v1/generate", PROMPT) for _ in range(2)]
        await_true(lambda: desk.scheduler.load().waiting == 2)
        app.post("/v1/prefix", {"user": "u", "generate": True})
        await_true(lambda: desk.scheduler.load().prompts == 1)
        busy = said(app)
        assert (busy["waiting"], busy["running"], busy["prompts"]) == (2, 1, 1)
        # Of the widest round; its prompt is computed.
        assert (busy["rows"], busy["tokens"]) == (9, 0)
        assert busy["beam_bytes"] == desk.generator.stats().beam_bytes > 0
        assert busy["states"]["pinned_bytes"] > 0
        rounds.release()
        assert [job.result(PATIENCE_S).status_code for job in jobs] == [200] * 3
    await_true(lambda: desk.scheduler.load().running == desk.scheduler.load().prompts == 0)
    after = said(app)
    assert (after["waiting"], after["rows"], after["beam_bytes"], after["states"]["pinned_bytes"]) == (0,) * 4
    states = after["states"]
    assert states["evictable_bytes"] > 0
    assert states["entries"] > 0
    assert states["free_bytes"] + states["evictable_bytes"] == states["total_bytes"]


def test_tokens_are_those_of_prompts_that_are_not_computed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from within, where the thread of the scheduler begins a prompt."""
    desk, seen = desk_of(app), list[tuple[int, int]]()
    prefill = desk.generator.prefill

    def looked(seats: Any) -> Any:
        load = desk.scheduler.load()
        seen.append((load.tokens, load.rows))
        return prefill(seats)

    monkeypatch.setattr(desk.generator, "prefill", looked)
    for _ in range(2):
        app.post("/v1/generate", PROMPT | {"history": list(range(50, 80))})
    # All of the first one's tokens; of the second only the last is not known from the first, or none is.
    assert seen[0] == (90, 9)
    assert all(tokens <= 1 for tokens, _ in seen[1:])


def test_the_status_names_the_catalogue(app: App, tmp_path: Path) -> None:
    before = said(app)
    assert before["catalogue"] == app.call("GET", "/v1/catalogues").json()["serving"]
    assert before["catalogue_age_s"] > 0
    second = save_catalogue(tmp_path / "second", seed=1)
    app.post("/v1/catalogues/load", {"path": str(tmp_path / "second")})
    assert said(app)["catalogue"] == second != before["catalogue"]


def test_the_client_reads_it(app: App) -> None:
    status = msgspec.json.decode(app.call("GET", "/v1/status").content, type=Read)
    assert status.generation is not None
    assert msgspec.to_builtins(status.generation) == said(app) | {
        "catalogue_age_s": status.generation.catalogue_age_s
    }


def test_the_age_of_a_catalogue_is_that_of_its_data() -> None:
    assert STATUS.age_s(STATUS.as_of_s + 5.0) == 5.0
    assert STATUS.age_s(STATUS.as_of_s - 5.0) == 0.0  # of a machine whose clock is ahead
    assert replace(STATUS, serving=None).age_s(1e9) is None
