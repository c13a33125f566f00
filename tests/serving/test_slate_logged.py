"""Slates that a service explores and logs, over HTTP: who explores, what is written, whose outcomes count."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_apps import App, error_of, events, running
from slate_apps import item_arrays, slated

from patience import await_true
from relaygr.core.errors import ConfigError
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.log_files import log_files
from relaygr.listwise.slate_log import Drawn, SlateRecord, read_records
from relaygr.listwise.trust import Trust

CANDIDATES = list(range(1, 121))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logged")


def logged(folder: Path, log: str = "log", **more: Any) -> Any:
    return slated(folder, **{"log": str(folder / log), "explore_share": 0.2, "explore_seed": 3} | more)


@pytest.fixture(scope="module")
def app(folder: Path) -> Iterator[App]:
    with running(logged(folder)) as app:
        app.post("/v1/events", {"user": "ann", **events(30, 1)})
        yield app


def ask(app: App, name: str, tenant: str = "default", **more: Any) -> Any:
    body = {"user": "ann", "candidates": CANDIDATES, "explain": False, **more}
    return app.post("/v1/slate", body, headers={"x-request-id": name, "x-tenant": tenant})


def tell(app: App, *outcomes: dict[str, Any], tenant: str = "default") -> Any:
    return app.post("/v1/slate/outcomes", {"outcomes": outcomes}, headers={"x-tenant": tenant})


def explored_name(app: App, stem: str, explored: bool = True) -> str:
    """The id of a request that explores, or of one that does not."""
    for at in range(200):
        if bool(ask(app, f"{stem}-{at}").get("explored")) is explored:
            return f"{stem}-{at}"
    raise AssertionError("nobody explores")


def metric(app: App, name: str, **labels: str) -> float:
    """Sum of the samples of a metric that have these labels."""
    total, text = 0.0, app.call("GET", "/metrics").text
    for found in re.finditer(rf"^relaygr_slate_{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
        if all(f'{label}="{value}"' in found[1] for label, value in labels.items()):
            total += float(found[2])
    return total


def records(folder: Path, name: str = "log") -> dict[str, SlateRecord]:
    return {one.request: one for one in read_records(folder / name)}


def record_soon(folder: Path, request: str) -> SlateRecord:
    await_true(lambda: request in records(folder))
    return records(folder)[request]


def test_a_share_explores_and_says_so(app: App) -> None:
    """120 requests at 0.2: 24 ± 4.4, within four standard deviations; none without its propensity."""
    before = metric(app, "explored_total", result="drawn")
    answers = [ask(app, f"share-{at}") for at in range(120)]
    drawn = [one for one in answers if one.get("explored")]
    assert 7 <= len(drawn) <= 41
    for one in drawn:
        assert (one["generator"], one["fallback_reason"]) == ("explore(0.1)", None)
        parts = [pick["log_propensity"] for pick in one["picks"]]
        assert sum(parts) == pytest.approx(one["log_propensity"])
        assert one["utility"] is not None
    for one in answers:
        if not one.get("explored"):
            assert "log_propensity" not in one
            assert all("log_propensity" not in pick for pick in one["picks"])
    assert metric(app, "explored_total", result="drawn") - before == len(drawn)


def test_the_propensity_is_that_of_the_draw(app: App) -> None:
    desk = app.service.slates
    assert desk is not None
    slates, scenes = desk.maker.slates, {}
    serve = slates.serve

    def watched(one: Any, pool: Any) -> Any:
        scenes[one.explore.split("\0")[-1]] = slates.scene(one, pool)
        return serve(one, pool)

    slates.serve = watched  # type: ignore[method-assign]
    try:
        name = explored_name(app, "exact")
        answer = ask(app, name)
    finally:
        del slates.serve
    region = Trust(30).region(scenes[name])
    columns = region.scene.columns.tolist()
    picks = np.array([columns.index(pick["candidate"]) for pick in answer["picks"]], dtype=np.int32)
    exact = PlackettLuce(temperature=0.1).log_propensity(region.scene, picks)
    assert answer["log_propensity"] == pytest.approx(exact, abs=1e-9)


def test_the_same_request_is_explored_alike_by_every_server(app: App, folder: Path, tmp_path: Path) -> None:
    names = [f"alike-{at}" for at in range(25)]
    first = [ask(app, name) for name in names]
    with running(logged(folder, str(tmp_path / "other"))) as other:
        other.post("/v1/events", {"user": "ann", **events(30, 1)})
        second = [ask(other, name) for name in names]
    assert [one["items"] for one in first] == [one["items"] for one in second]
    with running(logged(folder, str(tmp_path / "third"), explore_seed=4)) as other:
        other.post("/v1/events", {"user": "ann", **events(30, 1)})
        third = [ask(other, name).get("explored") for name in names]
    assert third != [one.get("explored") for one in first]
    # A seed that clients send is not what lists are drawn by: all would be drawn alike.
    drawn = [ask(app, f"seeded-{at}", seed=1) for at in range(30)]
    lists = {tuple(one["items"]) for one in drawn if one.get("explored")}
    assert len(lists) == sum(bool(one.get("explored")) for one in drawn) > 1


@pytest.mark.parametrize(
    "never", [{"allow_explore": False}, {"mode": "off"}, {"mode": "shadow"}, {"unrestricted": True}]
)
def test_what_is_never_explored(app: App, never: dict[str, Any]) -> None:
    name = explored_name(app, f"never-{next(iter(never.items()))}")
    answer = ask(app, name, **never)
    assert "explored" not in answer
    assert "log_propensity" not in answer


def test_the_card_says_what_is_done(app: App) -> None:
    card = app.call("GET", "/v1/slate").json()
    assert (card["explore_share"], card["logged"]) == (0.2, True)


def test_the_kill_switch_ends_exploration(app: App) -> None:
    name = explored_name(app, "killed")
    app.post("/v1/slate/mode", {"mode": "off"})
    try:
        assert "explored" not in ask(app, name)
    finally:
        app.post("/v1/slate/mode", {"mode": "on"})


def test_a_list_and_its_outcome_are_a_line_of_the_log(app: App, folder: Path) -> None:
    for explored in (True, False):
        name = explored_name(app, f"line-{explored}", explored)
        answer = ask(app, name, shown={"ids": [200, 201], "watch": [2.0, 3.0], "page": 3}, consumed=4, seed=9)
        told = {"request_id": name, "heads": {"engage": [1, 0], "like": [0, 1]}}
        assert tell(app, told) == {"matched": 1, "unknown": 0}
        record = record_soon(folder, name)
        assert list(record.items) == answer["items"]
        assert (record.user, record.tenant, record.asked, record.seed) == ("ann", "", 10, "9")
        assert (record.consumed, record.labels, record.more) == (2, ((1.0, 0.0), (0.0, 1.0)), False)
        assert (record.earlier, record.earlier_watch, record.page, record.session) == ((200, 201), 5.0, 3, 4)
        assert record.candidates is not None
        assert list(record.candidates.items) == CANDIDATES
        assert record.versions == tuple(answer["versions"].values())
        assert record.generator == answer["generator"]
        parts = [pick.get("log_propensity") for pick in answer["picks"]]
        assert list(record.log_propensity) == (parts if explored else [])
        assert record.drawn == (Drawn(temperature=0.1, top=30, seed=3) if explored else None)


def test_lists_of_every_mode_are_logged(app: App, folder: Path) -> None:
    for mode in ("off", "shadow"):
        ask(app, f"mode-{mode}", mode=mode)
        assert tell(app, {"request_id": f"mode-{mode}", "consumed": 1})["matched"] == 1
        assert record_soon(folder, f"mode-{mode}").generator == "pointwise"


@pytest.mark.parametrize(
    ("said", "consumed", "labels", "more"),
    [
        ({"consumed": 0}, 0, (), False),
        ({"consumed": 2}, 2, ((None, None),) * 2, False),
        ({"utility": 2.0, "consumed": 10, "more": True}, 10, ((None, None),) * 10, True),
        ({"labels": {"like": [1, None]}}, 2, ((None, 1.0), (None, None)), False),
        ({"labels": {"engage": [1], "like": [0]}, "consumed": 1, "utility": 1.0}, 1, ((1.0, 0.0),), False),
        ({"heads": {"engage": [1], "like": [0]}, "consumed": 1}, 1, ((1.0, 0.0),), False),
        ({"labels": {}, "consumed": 1}, 1, ((None, None),), False),
    ],
)  # fmt: skip
def test_what_outcomes_may_say(
    app: App, folder: Path, said: dict[str, Any], consumed: int, labels: Any, more: bool
) -> None:
    name = f"said-{'-'.join(said)}-{consumed}"
    ask(app, name)
    assert tell(app, {"request_id": name, **said}) == {"matched": 1, "unknown": 0}
    assert tell(app, {"request_id": name, **said}) == {"matched": 0, "unknown": 1}
    record = record_soon(folder, name)
    assert (record.consumed, record.labels, record.more) == (consumed, labels, more)


@pytest.mark.parametrize(
    ("said", "field", "part"),
    [
        ({"consumed": 11}, "outcomes[1].consumed", "11 positions, 10 were shown"),
        ({"consumed": 501}, "outcomes[1].consumed", "500"),
        ({"consumed": -1}, "outcomes[1].consumed", "0"),
        ({"labels": {"like": [1] * 11}}, "outcomes[1].labels", "11 positions, 10 were shown"),
        ({"labels": {"love": [1]}}, "outcomes[1].labels", "'love' is none of the heads engage, like"),
        ({"labels": {"like": [0, 2]}}, "outcomes[1].labels.like[1]", "2 is not from 0 to 1"),
        ({"labels": {"like": [1], "engage": [1, 0]}}, "outcomes[1].labels", "lengths [1, 2] differ"),
        ({"labels": {"like": [1]}, "consumed": 2}, "outcomes[1].consumed", "2 positions, 1 are of head like"),
        ({"heads": {"engage": [1], "like": [1]}, "consumed": 2}, "outcomes[1].consumed", "2 positions, 1"),
        ({"heads": {"engage": [1], "like": [1]}, "labels": {}}, "outcomes[1]", "either heads or labels"),
        ({"utility": 1.0, "more": True}, "outcomes[1].more", "needs consumed"),
        ({"consumed": 3, "more": True}, "outcomes[1].more", "left after 3"),
        ({}, "outcomes[1]", "either utility or heads"),
    ],
)  # fmt: skip
def test_a_wrong_outcome_is_named_and_settles_nothing(
    app: App, said: dict[str, Any], field: str, part: str
) -> None:
    ask(app, "right"), ask(app, "wrong")
    body = {"outcomes": [{"request_id": "right", "consumed": 1}, {"request_id": "wrong", **said}]}
    error = error_of(app.call("POST", "/v1/slate/outcomes", body), 422, "request", field)
    assert part in error["message"]
    told = ({"request_id": name, "utility": 1.0} for name in ("right", "wrong"))
    assert tell(app, *told) == {"matched": 2, "unknown": 0}


def test_outcomes_are_of_their_tenant_and_count_once(app: App, folder: Path) -> None:
    ask(app, "both", tenant="shop")
    ask(app, "both", tenant="mall")
    told = {"request_id": "both", "consumed": 1}
    assert tell(app, told) == {"matched": 0, "unknown": 1}
    assert tell(app, told, told, tenant="shop") == {"matched": 1, "unknown": 1}
    assert tell(app, told, tenant="mall") == {"matched": 1, "unknown": 0}

    def tenants() -> set[str]:
        return {one.tenant for one in read_records(folder / "log") if one.request == "both"}

    await_true(lambda: tenants() == {"shop", "mall"})


def test_explored_lists_are_apart_in_inflation_and_not_in_drift(app: App) -> None:
    name, chosen = explored_name(app, "apart"), explored_name(app, "apart", explored=False)
    said = app.call("GET", "/v1/status").json()["slates"]
    features = metric(app, "feature_count", feature="position")
    distances = metric(app, "list_distance_count")
    own = metric(app, "outcome_utility_count", generator="explore(0.1)")
    ask(app, name)
    assert tell(app, {"request_id": name, "utility": 1.0})["matched"] == 1
    assert metric(app, "outcome_utility_count", generator="explore(0.1)") == own + 1
    assert app.call("GET", "/v1/status").json()["slates"]["outcomes"] == said["outcomes"]
    assert metric(app, "feature_count", feature="position") == features
    assert metric(app, "list_distance_count") == distances
    ask(app, chosen)
    assert tell(app, {"request_id": chosen, "utility": 1.0})["matched"] == 1
    assert app.call("GET", "/v1/status").json()["slates"]["outcomes"] == said["outcomes"] + 1
    assert metric(app, "feature_count", feature="position") == features + 1


def test_what_is_logged_is_counted(app: App) -> None:
    written = metric(app, "log_lists_total", fate="written")
    waiting = metric(app, "log_waiting")
    ask(app, "counted")
    assert metric(app, "log_waiting") == waiting + 1
    tell(app, {"request_id": "counted", "consumed": 1})
    await_true(lambda: metric(app, "log_lists_total", fate="written") == written + 1)
    assert metric(app, "log_waiting") == waiting


def test_a_disk_that_fails_fails_no_request(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "log"
    with running(logged(folder, str(where))) as app:
        shutil.rmtree(where)
        for at in range(3):
            ask(app, f"lost-{at}")
            assert tell(app, {"request_id": f"lost-{at}", "consumed": 1})["matched"] == 1
        await_true(lambda: metric(app, "log_lists_total", fate="failed") == 3)
        where.mkdir()
        ask(app, "found")
        tell(app, {"request_id": "found", "consumed": 1})
        await_true(lambda: metric(app, "log_lists_total", fate="written") == 1)
    assert len(log_files(where)) == 1


def test_a_list_whose_outcome_is_late_is_given_up(folder: Path, tmp_path: Path) -> None:
    with running(logged(folder, str(tmp_path / "log"), log_wait_s=0.1)) as app:
        ask(app, "late", mode="off")
        await_true(lambda: metric(app, "log_lists_total", fate="timeout") == 1)
        assert tell(app, {"request_id": "late", "consumed": 1}) == {"matched": 0, "unknown": 1}


def test_what_is_settled_is_written_before_the_service_ends(folder: Path, tmp_path: Path) -> None:
    with running(logged(folder, str(tmp_path / "log"))) as app:
        for at in range(30):
            ask(app, f"last-{at}")
        tell(app, *({"request_id": f"last-{at}", "consumed": at % 3} for at in range(30)))
    assert len(list(read_records(tmp_path / "log"))) == 30


def test_rules_and_candidates_of_a_request_are_the_logs(app: App, folder: Path) -> None:
    pin = {"kind": "pin", "name": "launch", "item": 60, "position": 2}
    authors = item_arrays()["author"]
    for at in range(15):
        answer = ask(app, f"pinned-{at}", rules=[pin])
        assert answer["items"][2] == 60
        listed = authors[np.array(answer["items"]) - 1].tolist()
        assert all(listed[t] not in listed[t + 1 : t + 3] for t in range(9))
        tell(app, {"request_id": f"pinned-{at}", "consumed": 3})
        record = record_soon(folder, f"pinned-{at}")
        assert record.versions[1].startswith("test-rules+request@")
        if record.log_propensity:
            assert record.log_propensity[2] == 0.0  # nothing else may stand there


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"explore_share": 0.21}, r"slate\.explore_share: 0\.21 must be in \[0, 0\.2\]"),
        ({"explore_temperature": 0.0}, r"slate\.explore_temperature"),
        ({"step": "", "mode": "off"}, r"slate\.step: is empty; slate\.explore_share needs it"),
        ({"log_bytes": 4096, "log_file_bytes": 4096}, r"slate\.log_bytes: 4096 is below twice"),
        ({"log_wait_s": 0.0}, r"slate\.log_wait_s"),
        ({"log": "a\0b"}, r"slate\.log: .*NUL"),
        ({"log": "/dev/null/log"}, r"slate\.log: cannot write /dev/null/log"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(folder: Path, change: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        App(logged(folder, **change))
