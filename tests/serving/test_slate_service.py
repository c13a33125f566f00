"""Slates over HTTP: one ranking as every other, a list that keeps its rules, answers that add up, errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from serving_apps import TINY, App, error_of, events, running, save_model, settings
from slate_apps import VALUE, item_arrays, slated

from relaygr.client import Slate
from relaygr.client.status import Status
from relaygr.core.errors import ConfigError
from relaygr.listwise.request import Mode
from relaygr.serving.service import Service

CANDIDATES = list(range(1, 201))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slated")


@pytest.fixture(scope="module")
def app(folder: Path) -> Iterator[App]:
    with running(slated(folder)) as app:
        for user in ("ann", "bob", "cid"):
            app.post("/v1/events", {"user": user, **events(30, ord(user[0]))})
        yield app


@pytest.fixture
def on(app: App) -> Iterator[App]:
    yield app
    app.post("/v1/slate/mode", {"mode": "on"})


def asked(**more: Any) -> dict[str, Any]:
    return {"user": "ann", "candidates": CANDIDATES, "seed": 7, **more}


def test_a_list_and_why(app: App) -> None:
    answer = app.post("/v1/slate", asked())
    assert len(answer["items"]) == 10 == len(set(answer["items"]))
    assert answer["items"] == [pick["item"] for pick in answer["picks"]]
    assert answer["items"] == [CANDIDATES[pick["candidate"]] for pick in answer["picks"]]
    assert answer["stage_reached"] == "evaluation"
    assert answer["fallback_reason"] is None
    best = max(answer["lists"], key=lambda one: one["lower_bound"])
    assert (best["generator"], best["lower_bound"]) == (answer["generator"], answer["lower_bound"])
    assert answer["lists"][0]["generator"] == "pointwise"
    assert {"greedy", "beam4", "mmr(0.7)"} <= {
        name for one in answer["lists"] for name in (one["generator"], *one["also"])
    }
    authors = item_arrays()["author"][np.array(answer["items"]) - 1].tolist()
    assert all(authors[t] not in authors[t + 1 : t + 3] for t in range(9))
    assert set(answer["stage_ms"]) >= {"wait", "fallback", "greedy", "beam", "generators", "evaluation"}
    assert answer["versions"]["value"].startswith("test-value@")


def test_terms_sum_to_logits_values_and_utility(app: App) -> None:
    answer = app.post("/v1/slate", asked(user="bob"))
    total, survival = 0.0, 1.0
    for pick in answer["picks"]:
        terms = pick["terms"]
        for head in terms["heads"].values():
            logit = head["scale"] * head["base"] + head["bias"] + sum(head["terms"].values())
            assert head["conditional"] == pytest.approx(logit, abs=1e-9)
        value = sum(terms["value_terms"]) + terms["clipping"] - sum(terms["effects"].values())
        assert terms["value"] == pytest.approx(value, abs=1e-9)
        assert terms["survival"] == pytest.approx(survival, abs=1e-9)
        assert terms["contribution"] == pytest.approx(terms["survival"] * terms["value"], abs=1e-9)
        total += terms["contribution"]
        survival *= 1 - terms["exit"]["probability"]
    assert answer["utility"] == pytest.approx(total, abs=1e-9)
    plain = app.post("/v1/slate", asked(user="bob", explain=False))
    assert plain["items"] == answer["items"]
    assert all("terms" not in pick for pick in plain["picks"])


def test_values_are_those_of_v1_rank_and_the_history_is_encoded_once(app: App) -> None:
    """The ranker is asked once, over the cached prefix, and the list layer never asks it."""
    ranked = app.post("/v1/rank", {"user": "cid", "candidates": CANDIDATES, "output": "probabilities"})
    before = app.service.engine.stats()
    passes, run = [], app.service.engine.rank_batch
    app.service.engine.rank_batch = lambda requests, *rest, **more: (  # type: ignore[method-assign]
        passes.append(len(requests)),
        run(requests, *rest, **more),
    )[1]
    try:
        answer = app.post("/v1/slate", asked(user="cid"))
    finally:
        app.service.engine.rank_batch = run  # type: ignore[method-assign]
    after = app.service.engine.stats()
    assert passes == [1]
    assert after.candidates - before.candidates == len(CANDIDATES)
    assert after.tokens_computed == before.tokens_computed
    assert after.hit - before.hit == 1
    assert (after.full, after.resumed) == (before.full, before.resumed)
    assert answer["path"] == "hit"
    assert (answer["tokens_cached"], answer["tokens_computed"]) == (ranked["served_tokens"], 0)
    assert answer["model"] == ranked["model"]
    scores = np.array(ranked["scores"])
    weights = [term["weight"] for term in VALUE["terms"]]  # type: ignore[attr-defined,index]
    for pick in answer["picks"]:
        assert pick["pointwise"] == pytest.approx(scores[pick["candidate"]] @ weights, abs=1e-5)


def test_a_seed_or_a_request_id_says_it_all(app: App) -> None:
    for extra in ({"seed": 3}, {"seed": None}):
        first, second = (
            app.post("/v1/slate", asked(**extra), headers={"x-request-id": "same"}) for _ in range(2)
        )
        for volatile in ("stage_ms", "queue_ms", "compute_ms", "path", "tokens_cached", "tokens_computed"):
            first.pop(volatile), second.pop(volatile)
        assert first == second


def test_off_is_the_pointwise_order_under_rules_and_shadow_says_what_on_does(app: App) -> None:
    answers = {mode: app.post("/v1/slate", asked(mode=mode)) for mode in ("off", "shadow", "on")}
    off, shadow, on = answers["off"], answers["shadow"], answers["on"]
    assert off["fallback_reason"] == "off"
    assert (off["generator"], off["stage_reached"], off["versions"]["step"]) == ("pointwise", "fallback", "")
    assert off["items"] == shadow["items"] != on["items"]
    assert shadow["shadow"]["items"] == on["items"]
    assert shadow["shadow"]["utility"] == on["utility"]
    assert shadow["fallback_reason"] == "shadow"
    values = [pick["pointwise"] for pick in off["picks"]]
    assert values[0] == max(values)
    assert off["utility"] is None


def test_the_switch_of_the_server_is_final(on: App) -> None:
    assert on.post("/v1/slate/mode", {"mode": "off"})["mode"] == "off"
    answer = on.post("/v1/slate", asked(mode="on"))
    assert (answer["mode"], answer["fallback_reason"]) == ("off", "off")
    assert on.post("/v1/slate/mode", {"mode": "shadow"})["mode"] == "shadow"
    assert on.post("/v1/slate", asked())["mode"] == "shadow"
    assert on.post("/v1/slate", asked(mode="on"))["mode"] == "on"
    assert on.call("GET", "/v1/slate").json()["mode"] == "shadow"


def test_pages_go_on_where_the_last_one_ended(app: App) -> None:
    first = app.post("/v1/slate", asked(length=6))
    second = app.post("/v1/slate", asked(length=6, shown={"ids": first["items"]}))
    feed = first["items"] + second["items"]
    assert len(set(feed)) == 12
    authors = item_arrays()["author"][np.array(feed) - 1].tolist()
    assert all(authors[t] not in authors[t + 1 : t + 3] for t in range(11))


def test_rules_of_a_request_stand_behind_the_servers(app: App) -> None:
    pin = {"kind": "pin", "name": "launch", "item": 150, "position": 2}
    answer = app.post("/v1/slate", asked(rules=[pin]))
    assert answer["items"][2] == 150
    assert answer["versions"]["rules"].startswith("test-rules+request@")
    # More than half of the list of one class that nobody is of: relaxed, and said.
    wish = {"kind": "minimum", "name": "wish", "attribute": "topic", "values": [99], "count": 6}
    relaxed = app.post("/v1/slate", asked(rules=[wish]))["relaxations"]
    assert [one["rule"] for one in relaxed] == ["wish"]
    never = {"kind": "eligible", "name": "nobody", "attribute": "topic", "values": [99]}
    error_of(app.call("POST", "/v1/slate", asked(rules=[never])), 422, "request")


def test_items_may_come_with_the_request(app: App) -> None:
    """Items outside of the table have no attribute and no vector, unless the request gives them."""
    strangers = list(range(1001, 1031))
    answer = app.post("/v1/slate", asked(candidates=strangers))
    assert answer["unknown_items"] == 30
    assert answer["fallback_reason"] is None
    authors = [at // 3 for at in range(30)]
    vectors = np.random.default_rng(3).standard_normal((30, 4)).tolist()
    answer = app.post(
        "/v1/slate", asked(candidates=strangers, attributes={"author": authors}, vectors=vectors)
    )
    picked = [authors[pick["candidate"]] for pick in answer["picks"]]
    assert all(picked[t] not in picked[t + 1 : t + 3] for t in range(9))


@pytest.mark.parametrize(
    ("change", "field", "part"),
    [
        ({"candidates": [3, 4, 3]}, "candidates", "3 2 times"),
        ({"candidates": []}, "candidates", "0 candidates"),
        ({"candidates": list(range(2001))}, "candidates", "2000"),
        ({"candidates": None}, "candidates", "no generator"),
        ({"length": 101}, "length", "limit 100"),
        ({"length": 0}, "length", ">= 1"),
        ({"attributes": {"author": [1, 2]}}, "attributes.author", "2 values for 200"),
        ({"vectors": [[1.0]]}, "vectors", "1 vectors for 200"),
        ({"candidates": [1, 2], "vectors": [[1.0, 0.0], [0.0, 0.0]]}, "vectors[1]", "length above 0"),
        ({"candidates": [1, 2], "vectors": [[1.0, 0.0], [1.0]]}, "vectors", "[1, 2] components"),
        ({"slots": [0, 1]}, "slots", "2 types for 10"),
        ({"shown": {"ids": [9], "watch": [1.0, 2.0]}}, "shown.watch", "[2]"),
        ({"shown": {"ids": [9], "vectors": [[1.0, 2.0]]}}, "vectors", "missing"),
        ({"shown": {"ids": [9], "survival": 0.0}}, "shown.survival", "> 0"),
        ({"rules": [{"kind": "gap", "name": "g", "attribute": "author", "distance": 1}]},
         "rules[0].distance", "[2,"),
        ({"rules": [{"kind": "gap", "name": "authors", "attribute": "author", "distance": 4}]},
         "rules[0].name", "authors"),
        ({"rules": [{"kind": "cap", "name": "c", "attribute": "studio", "most": 1}]},
         "attributes.studio", "needs it"),
        ({"mode": "loud"}, "mode", "loud"),
        ({"deadline_ms": 1e9}, "deadline_ms", "must be"),
    ],
)  # fmt: skip
def test_a_wrong_request_names_what_is_wrong_and_fails_alone(
    app: App, change: dict[str, Any], field: str, part: str
) -> None:
    error = error_of(app.call("POST", "/v1/slate", asked(**change)), 422, "request")
    assert error["field"].endswith(field), error
    assert part in error["message"]
    assert len(app.post("/v1/slate", asked())["items"]) == 10


def test_a_slow_list_layer_ends_in_the_pointwise_list_and_holds_up_no_ranking(on: App) -> None:
    """While a list is being made, the event loop answers and the model ranks."""
    slates, entered, go_on = on.service.slates, threading.Event(), threading.Event()
    assert slates is not None
    serve = slates.maker.slates.serve

    def slow(ask: Any, pool: Any) -> Any:
        entered.set()
        assert go_on.wait(30)
        return serve(ask, pool)

    slates.maker.slates.serve = slow  # type: ignore[method-assign]
    found: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: found.update(on.post("/v1/slate", asked())))
    try:
        thread.start()
        assert entered.wait(30)
        ranked = on.post("/v1/rank", {"user": "ann", "candidates": CANDIDATES})
        assert ranked["path"] == "hit"
        go_on.set()
        thread.join(30)
    finally:
        go_on.set()
        del slates.maker.slates.serve
    assert len(found["items"]) == 10


def test_a_failing_step_model_ends_in_the_pointwise_list(on: App, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = on.post("/v1/slate", asked(mode="off"))["items"]
    slates = on.service.slates
    assert slates is not None
    step = slates.maker.slates.step
    assert step is not None
    monkeypatch.setattr(type(step), "__call__", lambda *_: 1 / 0)
    answer = on.post("/v1/slate", asked())
    assert (answer["fallback_reason"], answer["items"]) == ("error", wanted)
    assert "ZeroDivisionError" in answer["error"]


@pytest.mark.parametrize(("failure", "reason"), [("raises", "error"), ("not finite", "nan")])
def test_failures_of_the_list_layer_are_counted(
    on: App, monkeypatch: pytest.MonkeyPatch, failure: str, reason: str
) -> None:
    """By reason, as a metric and in the status; the next list is made as ever."""
    wanted = on.post("/v1/slate", asked(mode="off"))["items"]
    before = fallbacks(on, reason)
    slates = on.service.slates
    assert slates is not None
    step = slates.maker.slates.step
    assert step is not None

    def broken(_: Any, conditional: Any) -> Any:
        if failure == "raises":
            raise ValueError("broken")
        return np.full_like(conditional, np.nan)

    with monkeypatch.context() as patch:
        patch.setattr(type(step.step), "natural", broken)
        answer = on.post("/v1/slate", asked())
    assert (answer["fallback_reason"], answer["items"]) == (reason, wanted)
    assert fallbacks(on, reason) == before + 1
    assert on.post("/v1/slate", asked())["fallback_reason"] is None


def fallbacks(app: App, reason: str) -> float:
    """As `/v1/status` says; the metric says the same."""
    told = app.call("GET", "/v1/status").json()["slates"]["fallbacks"]
    number = sum(one["five_minutes"] for one in told if one["name"] == reason)
    line = re.search(
        rf'relaygr_slate_fallback_total{{.*reason="{reason}"}} (\S+)', app.call("GET", "/metrics").text
    )
    assert number == (0.0 if line is None else float(line[1]))
    return float(number)


def test_a_time_limit_that_is_over_ends_in_the_pointwise_list(folder: Path) -> None:
    with running(slated(folder, budget_ms=0.001)) as app:
        answer = app.post("/v1/slate", asked())
        assert answer["fallback_reason"] == "deadline"
        assert answer["stage_reached"] == "fallback"
        assert answer["items"] == app.post("/v1/slate", asked(mode="off"))["items"]


def test_a_server_without_slates_says_so(model_folder: Path) -> None:
    with running(settings(model_folder)) as app:
        error_of(app.call("POST", "/v1/slate", asked()), 404, "no_slates")
        error_of(app.call("GET", "/v1/slate"), 404, "no_slates")


def test_a_server_without_a_step_model_repairs_the_pointwise_order(folder: Path) -> None:
    with running(slated(folder, step="", mode="off")) as app:
        assert app.post("/v1/slate", asked())["generator"] == "pointwise"
        error_of(app.call("POST", "/v1/slate/mode", {"mode": "on"}), 422, "request", "mode")
        assert app.call("GET", "/v1/slate").json()["step"] == ""


def test_a_model_with_other_heads_is_not_served(app: App, tmp_path: Path) -> None:
    save_model(tmp_path / "other", config=replace(TINY, tasks=("engage",)))
    before = app.service.served.model
    error = error_of(app.call("POST", "/v1/models/reload", {"path": str(tmp_path / "other")}), 422, "model")
    assert "value function" in error["message"]
    assert app.service.served.model == before
    assert len(app.post("/v1/slate", asked())["items"]) == 10


def assert_held(sent: Any, read: Any, place: str) -> None:
    """All that was sent was read."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            assert_held(value, read[name], f"{place}.{name}")
    elif isinstance(sent, list):
        assert len(sent) == len(read), place
        for at, value in enumerate(sent):
            assert_held(value, read[at], f"{place}[{at}]")
    else:
        assert sent == read, place


def test_the_typed_client_reads_all_of_an_answer(app: App) -> None:
    for more in ({}, {"mode": "shadow"}, {"mode": "off"}):
        raw = app.call("POST", "/v1/slate", asked(**more))
        found = msgspec.json.decode(raw.content, type=Slate)
        assert_held(raw.json(), msgspec.to_builtins(found), "answer")


def test_outcomes_are_matched_once(app: App) -> None:
    app.post("/v1/slate", asked(), headers={"x-request-id": "outcome-1"})
    told = {"outcomes": [{"request_id": "outcome-1", "utility": 3.5}, {"request_id": "else", "utility": 1.0}]}
    others = app.call("POST", "/v1/slate/outcomes", told, headers={"x-tenant": "other"})
    assert others.json() == {"matched": 0, "unknown": 2}  # it is not that tenant's list
    assert app.post("/v1/slate/outcomes", told) == {"matched": 1, "unknown": 1}
    assert app.post("/v1/slate/outcomes", told) == {"matched": 0, "unknown": 2}


def test_outcomes_may_be_what_was_observed(app: App) -> None:
    """At the positions that the user reached: engage + 2 like, as the value function says."""
    asks = {"first": [[1, 0, 1], [0, 1, 0]], "left": [[], []]}
    for name in asks:
        app.post("/v1/slate", asked(mode="on"), headers={"x-request-id": f"observed-{name}"})
    told = [
        {"request_id": f"observed-{name}", "heads": {"engage": engage, "like": like}}
        for name, (engage, like) in asks.items()
    ]
    before = realised_sum(app)
    wrong = [
        ({"heads": {"engage": [1.0]}}, "outcomes[2].heads", "are not the value function's"),
        ({"heads": {"engage": [1], "like": [1, 0]}}, "outcomes[2].heads", "[1, 2] differ"),
        ({"heads": {"engage": [1.5], "like": [1]}}, "outcomes[2].heads.engage", "1.5 is not from 0 to 1"),
        ({}, "outcomes[2]", "either utility or heads"),
        ({"heads": {f"h{at}": [] for at in range(300)}}, "outcomes[2].heads", "of length <= 256"),
        ({"heads": {f"h{at}": [] for at in range(200)}}, "outcomes[2].heads", "(200 names) are not the"),
        ({"heads": {"h" * 300: []}}, "outcomes[2].heads", "of length <= 256"),
        ({"x" * 100_000: 1}, "outcomes[2]", "characters)"),
        ({"utility": 1e308}, "outcomes[2].utility", "1000000000000"),
        ({"utility": 1.0, "heads": {}}, "outcomes[2]", "either utility or heads"),
    ]
    for more, field, part in wrong:
        body = {"outcomes": [*told, {"request_id": "x", **more}]}
        error = error_of(app.call("POST", "/v1/slate/outcomes", body), 422, "request")
        assert error["field"] == field
        assert part in error["message"]
        assert len(error["message"]) < 500
    assert realised_sum(app) == before  # nothing of a wrong request counts
    assert app.post("/v1/slate/outcomes", {"outcomes": told}) == {"matched": 2, "unknown": 0}
    assert realised_sum(app) - before == pytest.approx(4.0)


def test_outcomes_are_not_longer_than_their_list(app: App) -> None:
    made = app.post("/v1/slate", asked(mode="on"), headers={"x-request-id": "long"})
    positions = len(made["items"])
    for length, status in ((positions + 1, 422), (500, 422), (positions, 200)):
        seen = {"engage": [1] * length, "like": [0] * length}
        answer = app.call("POST", "/v1/slate/outcomes", {"outcomes": [{"request_id": "long", "heads": seen}]})
        assert answer.status_code == status
        if status == 422:
            error = error_of(answer, 422, "request")
            assert error["field"] == "outcomes[0].heads"
            assert f"{length} positions, the list had {positions}" in error["message"]
    assert answer.json() == {"matched": 1, "unknown": 0}


def test_promises_are_compared_without_the_prices_of_soft_rules(app: App) -> None:
    """Nobody observes a price."""
    soft = {"kind": "maximum", "name": "few", "attribute": "topic", "values": list(range(12)), "count": 0}
    priced = {**soft, "price": 0.5}
    before = [sum_of(app, name) for name in ("predicted", "outcome")]
    made = app.post("/v1/slate", asked(mode="on", rules=[priced]), headers={"x-request-id": "priced"})
    assert made["utility"] < made["unpriced"] - 0.4
    told = {"outcomes": [{"request_id": "priced", "utility": made["unpriced"]}]}
    assert app.post("/v1/slate/outcomes", told) == {"matched": 1, "unknown": 0}
    after = [sum_of(app, name) for name in ("predicted", "outcome")]
    assert after[0] - before[0] == pytest.approx(after[1] - before[1]) == pytest.approx(made["unpriced"])


def realised_sum(app: App) -> float:
    return sum_of(app, "outcome")


def sum_of(app: App, what: str) -> float:
    pattern = rf"relaygr_slate_{what}_utility_sum{{[^}}]*}} (\S+)"
    return sum(map(float, re.findall(pattern, app.call("GET", "/metrics").text)))


def test_the_status_has_the_list_layer(app: App) -> None:
    app.post("/v1/slate", asked())
    raw = app.call("GET", "/v1/status")
    read = msgspec.json.decode(raw.content, type=Status)
    assert read.slates is not None
    assert_held(raw.json()["slates"], msgspec.to_builtins(read.slates), "slates")
    card = app.call("GET", "/v1/slate").json()
    assert (read.slates.mode, read.slates.value) == (card["mode"], card["value"])
    assert (read.slates.rules, read.slates.step) == (card["rules"], card["step"])
    assert read.slates.five_minutes.count == sum(one.five_minutes for one in read.slates.chosen) > 0
    assert {one.path for one in read.ranking} <= {"all", "hit", "resumed", "full", "truncated"}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"value": "nowhere.json"}, "slate.value: nowhere.json"),
        ({"step": "nowhere"}, "slate.step: nowhere"),
        ({"rules": "nowhere.json"}, "slate.rules: nowhere.json"),
        ({"items": "nowhere.npz"}, "slate.items: nowhere.npz"),
        ({"items": "nowhere.txt"}, "slate.items: nowhere.txt"),
        ({"step": "", "mode": "shadow"}, "slate.mode: 'shadow' needs a step model"),
    ],
)
def test_a_wrong_setting_is_named_at_the_start(folder: Path, change: dict[str, Any], part: str) -> None:
    slated(folder)
    with pytest.raises(ConfigError) as found:
        App(slated(folder, **change))
    assert part in str(found.value)


def test_a_table_that_lacks_what_is_read_is_refused(folder: Path, tmp_path: Path) -> None:
    arrays = item_arrays()
    for left_out, part in (("author", "lacks 'author'"), ("vectors", "has no vectors")):
        np.savez(tmp_path / "part.npz", **{name: one for name, one in arrays.items() if name != left_out})
        with pytest.raises(ConfigError, match=part):
            App(slated(folder, items=str(tmp_path / "part.npz")))


def test_the_mode_of_a_service_is_its_settings_at_the_start(folder: Path) -> None:
    with running(slated(folder, mode="shadow")) as app:
        service: Service = app.service
        assert service.slates is not None
        assert service.slates.maker.mode is Mode.SHADOW
        assert app.post("/v1/slate", asked())["fallback_reason"] == "shadow"
