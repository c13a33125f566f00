"""Generation over HTTP: prompts of every kind, filters, catalogues that change, errors with a field."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation_apps import ITEMS, SHAPE, SIZES, generating, item_codes, save_catalogue
from prometheus_client.parser import text_string_to_metric_families
from serving_apps import App, error_of, events, running, save_model, settings

from patience import await_true
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.generation.catalogue.artefact import make_catalogue, write_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with running(generating(tmp_path_factory.mktemp("generating"))) as app:
        yield app


def appended(app: App, user: str, items: list[int], at: int = 1_700_000_000) -> None:
    app.post("/v1/events", {"user": user, "items": items, "timestamps": [at + i for i in range(len(items))]})


def items_of(answer: dict[str, Any]) -> list[int]:
    return [item for row in answer["results"] for item in row["items"]]


def test_a_users_history_is_the_prompt_and_is_reused(app: App) -> None:
    appended(app, "ann", list(range(1, 41)))
    first = app.post("/v1/generate", {"user": "ann", "beam_width": 6, "num_results": 5})
    assert first["returned"] == first["requested"] == 5
    assert first["prompt_tokens"] == 40 * 3
    assert first["cached_tokens"] == 0
    again = app.post("/v1/generate", {"user": "ann", "beam_width": 6, "num_results": 5})
    assert again["cached_tokens"] == 120
    assert again["results"] == first["results"]
    appended(app, "ann", [50, 51], 1_700_001_000)
    more = app.post("/v1/generate", {"user": "ann"})
    assert (more["prompt_tokens"], more["cached_tokens"]) == (126, 120)
    codes = item_codes()
    for row in more["results"]:
        assert math.isfinite(row["score"])
        assert row["items"]
        for item in row["items"]:
            assert codes[item - 1].tolist() == row["sid"]
    scores = [row["score"] for row in more["results"]]
    assert scores == sorted(scores, reverse=True)


def test_history_tokens_and_a_stored_user_are_one_prompt(app: App) -> None:
    appended(app, "bob", [5, 6, 7])
    tokens = [
        1 + 8 * level + int(code) for item in (5, 6, 7) for level, code in enumerate(item_codes()[item - 1])
    ]
    asked = {"beam_width": [4, 8, 16], "num_results": 20, "normalization": "full"}
    answers = [
        app.post("/v1/generate", {**prompt, **asked})
        for prompt in ({"user": "bob"}, {"history": [5, 6, 7]}, {"token_ids": tokens})
    ]
    for answer in answers[1:]:
        assert [row["sid"] for row in answer["results"]] == [row["sid"] for row in answers[0]["results"]]
        for row, other in zip(answer["results"], answers[0]["results"], strict=True):
            assert row["score"] == pytest.approx(other["score"], abs=1e-5)
    assert answers[0]["normalization"] == "full"


def test_a_prefix_signal_encodes_the_prompt_of_a_generation(app: App) -> None:
    appended(app, "cid", list(range(100, 130)))
    app.post("/v1/prefix", {"user": "cid", "generate": True})
    for _ in range(200):
        answer = app.post("/v1/generate", {"user": "cid", "beam_width": 1})
        if answer["cached_tokens"]:
            break
    # By whichever of the two came first, all of it is there the second time.
    assert app.post("/v1/generate", {"user": "cid", "beam_width": 1})["cached_tokens"] == 90


def test_other_servers_names_of_fields(app: App) -> None:
    plain = app.post("/v1/generate", {"history": [1], "beam_width": 7, "num_results": 3, "max_items": 4})
    other = app.post(
        "/v1/generate",
        {"history": [1], "num_beams": 7, "num_return_sequences": 3, "total_conversion_threshold": 4},
    )
    assert other["results"] == plain["results"]
    answer = app.call("POST", "/v1/generate", {"history": [1], "n": 7, "beam_width": 7})
    assert "beam_width" in error_of(answer, 422, "request", "n")["message"]


def test_filters_hold_inside_decoding(app: App) -> None:
    free = app.post("/v1/generate", {"history": [3], "beam_width": 64, "num_results": 64})
    denied = items_of(free)[:10]
    answer = app.post("/v1/generate", {"history": [3], "beam_width": 64, "num_results": 64, "deny": denied})
    assert answer["returned"] == 64
    assert not set(items_of(answer)) & set(denied)
    few = app.post("/v1/generate", {"history": [3], "beam_width": 64, "allow": [9, 10, 11]})
    assert sorted(items_of(few)) == [9, 10, 11]
    assert few["underflow"] == "catalog_exhausted"
    assert few["returned"] < few["requested"]
    none = app.post("/v1/generate", {"history": [3], "allow": []})
    assert (none["results"], none["returned"], none["underflow"]) == ([], 0, "catalog_exhausted")


def test_items_are_capped_by_row_and_in_all(app: App) -> None:
    answer = app.post(
        "/v1/generate", {"history": [3], "beam_width": 64, "max_items": 5, "max_items_per_sid": 1}
    )
    assert len(items_of(answer)) == 5
    assert max(len(row["items"]) for row in answer["results"]) == 1


def test_a_seed_samples_and_repeats(app: App) -> None:
    asked = {"history": [3], "beam_width": 8}
    plain = app.post("/v1/generate", asked)
    sampled = app.post("/v1/generate", {**asked, "seed": 7})
    assert app.post("/v1/generate", {**asked, "seed": 7})["results"] == sampled["results"]
    assert [row["sid"] for row in sampled["results"]] != [row["sid"] for row in plain["results"]]


BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 422, "invalid_request", "token_ids"),
    ({"history": [1], "token_ids": [1]}, 422, "invalid_request", "history"),
    ({"token_ids": []}, 422, "invalid_request", "token_ids"),
    ({"token_ids": [1, SHAPE.vocab_size]}, 422, "invalid_request", "token_ids[1]"),
    ({"token_ids": [1] * 385}, 422, "too_long", "token_ids"),
    ({"history": [1], "beam_width": 1025}, 422, "too_wide", "beam_width"),
    ({"history": [1], "beam_width": 0}, 422, "request", "beam_width"),
    ({"history": [1], "beam_width": [4, 4]}, 422, "invalid_request", "beam_width"),
    ({"history": [1], "num_results": 2000}, 422, "too_wide", "num_results"),
    ({"history": [1], "normalization": "softmax"}, 422, "request", "normalization"),
    ({"history": ["one"]}, 422, "invalid_request", "history[0]"),
    ({"history": [ITEMS + 5], "unknown_items": "reject"}, 422, "invalid_request", "history[0]"),
    ({"history": [ITEMS + 5]}, 422, "invalid_request", "history"),
    ({"history": [1], "filters": ["fresh"]}, 422, "invalid_request", "filters[0]"),
    ({"history": [1], "allow": ["x"]}, 422, "invalid_request", "allow[0]"),
    ({"history": [1], "deny": [1] * 100_001}, 422, "invalid_request", "deny"),
    ({"history": [1], "deadline_ms": 10**9}, 422, "request", "deadline_ms"),
    ({"history": [1], "seed": -1}, 422, "request", "seed"),
    ({"history": [1], "beams": 3}, 422, "request", ""),
    ({"text": "hello"}, 422, "invalid_request", "text"),
    ({"user": "nobody-knows"}, 422, "invalid_request", "user"),
    ({"user": "a\x00b"}, 422, "request", "user"),
]


@pytest.mark.parametrize(("body", "status", "code", "field"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_bad_requests_are_named(app: App, body: dict[str, Any], status: int, code: str, field: str) -> None:
    error_of(app.call("POST", "/v1/generate", body), status, code, field)


def test_a_deleted_users_prompt_is_gone(app: App) -> None:
    appended(app, "dan", [1, 2, 3])
    app.post("/v1/generate", {"user": "dan"})
    assert app.call("DELETE", "/v1/users/dan").json()["entries"] >= 1
    appended(app, "dan", [1, 2, 3])
    assert app.post("/v1/generate", {"user": "dan"})["cached_tokens"] == 0


def test_series_of_generation(app: App) -> None:
    app.post("/v1/generate", {"history": [1, 2], "beam_width": 4, "allow": [5]})
    app.call("POST", "/v1/generate", {"history": [1], "beam_width": 5000})
    assert app.service.generation is not None
    scheduler = app.service.generation.scheduler
    await_true(lambda: scheduler.load().running == 0)  # its thread gives answers before it says that it rests
    text = app.call("GET", "/metrics").text
    found = {
        sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples
    }
    for name in (
        *(
            "requests_total",
            "rejected_total",
            "underflow_total",
            "prompt_tokens_total",
            "unknown_items_total",
        ),
        *("queue_seconds_count", "formation_seconds_count", "prefill_seconds_count", "round_seconds_count"),
        *("round_forward_seconds_count", "round_selection_seconds_count", "round_preparation_seconds_count"),
        *("seconds_count", "group_requests_count", "group_rows_count", "kv_bytes_count", "unique_sids_count"),
        *("candidates_count", "queue_depth", "running", "prompt_bytes", "beam_bytes"),
    ):
        assert f"relaygr_generate_{name}" in found, name
    assert found["relaygr_catalog_info"].labels["version"]
    assert found["relaygr_catalog_age_seconds"].value > 0
    assert found["relaygr_generate_running"].value == 0


def test_models_name_the_generator(app: App) -> None:
    card = app.call("GET", "/v1/models").json()["generator"]
    assert card["catalogue"] == app.call("GET", "/v1/catalogues").json()["serving"]
    assert (card["prompt_tokens"], card["prompt_items"], card["beam_width"]) == (384, 128, 1024)
    assert card["model"] == app.post("/v1/generate", {"history": [1]})["model_version"]


def test_without_a_generator(tmp_path: Path) -> None:
    save_model(tmp_path)
    with running(settings(tmp_path)) as app:
        assert app.call("GET", "/v1/status").json()["generation"] is None
        error_of(app.call("POST", "/v1/generate", {"user": "x"}), 404, "no_generator")
        error_of(app.call("GET", "/v1/catalogues"), 404, "no_generator")


def test_catalogues_are_loaded_withdrawn_from_and_rolled_back(tmp_path: Path) -> None:
    config = generating(tmp_path)
    second = save_catalogue(tmp_path / "second", seed=1)
    with running(config) as app:
        first = app.call("GET", "/v1/catalogues").json()
        assert (first["sids"] <= ITEMS, first["items"], first["levels"]) == (True, ITEMS, [8, 8, 8])
        loaded = app.post("/v1/catalogues/load", {"path": str(tmp_path / "second")})
        assert (loaded["serving"], loaded["kept"]) == (second, [first["serving"], second])
        answer = app.post("/v1/generate", {"history": [1], "beam_width": 4})
        assert answer["catalog_version"] == second
        best = items_of(answer)[0]
        assert app.post("/v1/catalogues/withdraw", {"items": [best]})["withdrawn"] == 1
        assert best not in items_of(app.post("/v1/generate", {"history": [1], "beam_width": 4}))
        assert app.post("/v1/catalogues/restore", {"items": [best]})["withdrawn"] == 0
        assert best in items_of(app.post("/v1/generate", {"history": [1], "beam_width": 4}))
        (tmp_path / "second" / "items.npy").write_bytes(b"damaged")
        (tmp_path / "empty").mkdir()
        for path in (tmp_path / "second", tmp_path / "empty", tmp_path / "nowhere", Path("/etc/passwd")):
            error_of(app.call("POST", "/v1/catalogues/load", {"path": str(path)}), 422, "catalogue", "path")
        status = app.call("GET", "/v1/catalogues").json()
        assert (status["serving"], bool(status["error"]), status["failures"]) == (second, True, 4)
        assert app.post("/v1/catalogues/rollback")["serving"] == first["serving"]
        error_of(app.call("POST", "/v1/catalogues/rollback"), 409, "no_version")


def test_a_swap_under_load_fails_and_mixes_nothing(tmp_path: Path) -> None:
    config = generating(tmp_path)
    save_catalogue(tmp_path / "second", seed=1)
    codes = {"first": item_codes(0), "second": item_codes(1)}
    with running(config) as app, ThreadPoolExecutor(4) as threads:
        names = {app.call("GET", "/v1/catalogues").json()["serving"]: "first"}
        asked = [{"history": [1 + i % 9], "beam_width": 4 + i % 5, "deny": [i]} for i in range(40)]
        answers = [threads.submit(app.call, "POST", "/v1/generate", body) for body in asked]
        swaps = 0
        while not all(answer.done() for answer in answers):
            loaded = app.post("/v1/catalogues/load", {"path": str(tmp_path / "second")})
            names[loaded["serving"]] = "second"
            app.post("/v1/generate", {"history": [1]})  # some are asked while it serves
            app.post("/v1/catalogues/rollback")
            swaps += 1
        assert swaps > 1
        seen = set()
        for future in answers:
            answer = future.result()
            assert answer.status_code == 200, answer.text
            name = names[answer.json()["catalog_version"]]
            seen.add(name)
            for row in answer.json()["results"]:
                assert all(codes[name][item - 1].tolist() == row["sid"] for item in row["items"])
        assert seen == {"first", "second"}


def test_catalogues_belong_to_whoever_may_change_what_is_served(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from relaygr.config.settings import ApiKey

    config = generating(tmp_path)
    keys = (ApiKey(key="k" * 20, tenant="shop"), ApiKey(key="a" * 20, tenant="shop", admin=True))
    config = replace(config, serving=replace(config.serving, keys=keys))
    with running(config) as app:
        plain, admin = ({"authorization": f"Bearer {char * 20}"} for char in "ka")
        assert app.call("POST", "/v1/generate", {"history": [1]}, headers=plain).status_code == 200
        for path, body in (
            ("load", {"path": "x"}),
            ("rollback", None),
            ("withdraw", {"items": [1]}),
            ("restore", {"items": [1]}),
        ):
            error_of(app.call("POST", f"/v1/catalogues/{path}", body, headers=plain), 403, "admin")
        assert app.call("POST", "/v1/catalogues/withdraw", {"items": [1]}, headers=admin).status_code == 200


def test_users_and_items_of_events_that_are_longer_than_a_prompt(app: App) -> None:
    history = events(300)
    history["items"] = [1 + i % ITEMS for i in range(300)]
    app.post("/v1/events", {"user": "eve", **history})
    answer = app.post("/v1/generate", {"user": "eve"})
    assert 0 < answer["prompt_tokens"] <= 384
    assert answer["prompt_tokens"] % 3 == 0


def test_a_text_is_a_prompt_where_the_model_has_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    config = generating(tmp_path)
    vocabulary = {f"t{i}": i for i in range(SHAPE.vocab_size)}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="t0")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "decoder" / "tokenizer.json"))
    with running(config) as app:
        spoken = app.post("/v1/generate", {"text": "t3 t9 t17", "beam_width": 4})
        tokens = app.post("/v1/generate", {"token_ids": [3, 9, 17], "beam_width": 4})
        assert spoken["results"] == tokens["results"]
        error_of(app.call("POST", "/v1/generate", {"text": ""}), 422, "invalid_request", "text")
        long = app.call("POST", "/v1/generate", {"text": "t3 " * 5000})
        assert error_of(long, 422, "too_long", "text")["limit"] == 32 * 384


def test_catalogues_of_another_shape_are_refused_by_their_path(tmp_path: Path) -> None:
    config = generating(tmp_path)
    index = build_index(Rows(item_ids=np.arange(1, ITEMS + 1), codes=item_codes()), SIZES).index
    template = PromptTemplate(before=(-1,))
    write_catalogue(tmp_path / "beyond", make_catalogue(index, tokens=stacked(SIZES, 9)))
    write_catalogue(tmp_path / "around", make_catalogue(index, tokens=stacked(SIZES, 1), template=template))
    with running(config) as app:
        for path in ("a\0b", str(tmp_path / "beyond"), str(tmp_path / "around")):
            error_of(app.call("POST", "/v1/catalogues/load", {"path": path}), 422, "catalogue", "path")
        assert app.post("/v1/generate", {"history": [1]})["returned"]


def test_a_user_deleted_while_a_request_is_made_leaves_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.service.generation is not None
    generator = app.service.generation.generator
    check, asked, deleted = generator.check, threading.Event(), threading.Event()

    def slow(request: Any) -> Any:
        asked.set()
        assert deleted.wait(20)
        return check(request)

    for path, more in (("generate", {}), ("prefix", {"generate": True})):
        appended(app, "fay", [1, 2, 3])
        asked.clear()
        deleted.clear()
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as threads:
            patch.setattr(generator, "check", slow)
            answer = threads.submit(app.call, "POST", f"/v1/{path}", {"user": "fay", **more})
            assert asked.wait(20)
            assert app.call("DELETE", "/v1/users/fay").status_code == 200
            deleted.set()
            if path == "generate":
                error_of(answer.result(), 409, "cancelled")
            assert answer.result().status_code in (200, 409)
        appended(app, "fay", [1, 2, 3])
        assert app.post("/v1/generate", {"user": "fay"})["cached_tokens"] == 0


def test_a_warm_up_needs_no_more_than_requests_do(tmp_path: Path) -> None:
    # A page of 256 tokens is all of the memory; a first time takes longer than a request may.
    tight = {
        "device_bytes": MIB,
        "page_tokens": 256,
        "max_prompt_tokens": 384,
        "deadline_ms": 1,
        "deadline_max_ms": 1,
    }
    with running(generating(tmp_path, **tight)) as app:
        error_of(app.call("POST", "/v1/generate", {"history": [1]}), 504, "deadline")
    # Of 1,024 beams the catalogue has at most 64 prefixes to feed.
    with running(generating(tmp_path, beam_width=1024, beam_bytes=1 << 16)) as app:
        assert app.post("/v1/generate", {"history": [1]})["returned"] > 64
    with pytest.raises(ConfigError, match=r"beam_width: 8 must be at most generator\.max_results = 4"):
        generating(tmp_path, max_results=4)
