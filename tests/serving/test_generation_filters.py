"""Filters over HTTP: what was seen, and flags of the catalogue by name, both inside decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from generation_apps import ITEMS, SIZES, generating, item_codes
from msgspec.structs import replace
from serving_apps import App, error_of, running

from relaygr.client import AsyncClient, Door
from relaygr.generation.catalogue.artefact import make_catalogue, write_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked

WIDE = {"beam_width": 512, "max_items": 10_000}
CODES = [tuple(sid) for sid in item_codes().tolist()]  # of the items from 1 on
# More events than a model reads: the first items are in none of the windows.
EVENTS = [*range(1, 121), *(101 + at % 20 for at in range(200))]
SEEN = set(EVENTS)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    config = generating(tmp_path_factory.mktemp("filtering"), max_filter_items=40)
    with running(replace(config, serving=replace(config.serving, max_history=400))) as app:
        times = [1_700_000_000 + at for at in range(len(EVENTS))]
        app.post("/v1/events", {"user": "ann", "items": EVENTS, "timestamps": times})
        yield app


def generated(app: App, **asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = app.post("/v1/generate", asked)
    return answer


def by_sid(answer: dict[str, Any]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(row["sid"]): row["items"] for row in answer["results"]}


def of_codes(items: set[int]) -> dict[tuple[int, ...], list[int]]:
    """Items of each id, by the table that the catalogue was made of."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for item in sorted(items):
        found[CODES[item - 1]].append(item)
    return dict(found)


def test_all_events_of_a_stored_user_are_excluded(app: App) -> None:
    held = app.do(app.service.users.get(("default", "ann")))
    assert not {1, 50, 100} & set(held.items.tolist())
    answer = generated(app, user="ann", exclude_seen=True, **WIDE)
    assert by_sid(answer) == of_codes(set(range(1, ITEMS + 1)) - SEEN)
    assert answer["underflow"] == "catalog_exhausted"
    # Some ids hold both, and lost their seen item only.
    assert any(len(items) < CODES.count(sid) for sid, items in by_sid(answer).items())
    plain = generated(app, user="ann", **WIDE)
    assert by_sid(plain) == of_codes(set(range(1, ITEMS + 1)))
    assert generated(app, user="ann", exclude_seen=False, **WIDE)["results"] == plain["results"]


def test_the_seen_take_no_place_of_the_others(app: App) -> None:
    """As many rows as were asked for, however many of the best were seen: the ones without them, in order."""
    best = [tuple(row["sid"]) for row in generated(app, user="ann", **WIDE)["results"]]
    few = generated(app, user="ann", exclude_seen=True, num_results=30, beam_width=512)
    left = of_codes(set(range(1, ITEMS + 1)) - SEEN)
    assert [tuple(row["sid"]) for row in few["results"]] == [sid for sid in best if sid in left][:30]
    assert set(best[:30]) - set(left)


def test_new_events_count_at_once_and_deleted_ones_no_more(app: App) -> None:
    app.post("/v1/events", {"user": "bob", "items": [1, 2], "timestamps": [1, 2]})
    assert by_sid(generated(app, user="bob", exclude_seen=True, **WIDE)) == of_codes({*range(3, ITEMS + 1)})
    app.post("/v1/events", {"user": "bob", "items": [9, 7], "timestamps": [3, 4]})
    left = {*range(3, ITEMS + 1)} - {7, 9}
    assert by_sid(generated(app, user="bob", exclude_seen=True, **WIDE)) == of_codes(left)
    app.call("DELETE", "/v1/users/bob")
    app.post("/v1/events", {"user": "bob", "items": [5], "timestamps": [5]})
    left = {*range(1, ITEMS + 1)} - {5}
    assert by_sid(generated(app, user="bob", exclude_seen=True, **WIDE)) == of_codes(left)


def test_a_history_that_comes_along_is_excluded_whole(app: App) -> None:
    # 128 items are in a prompt, and 40 in a list; the other items are unknown.
    history = [*range(1, 151), 10**9, 10**9 + 1, *range(1, 151)]
    answer = generated(app, history=history, exclude_seen=True, **WIDE)
    assert by_sid(answer) == of_codes({*range(151, ITEMS + 1)})
    both = generated(app, history=history, exclude_seen=True, deny=[*range(151, 161), 3], **WIDE)
    assert by_sid(both) == of_codes({*range(161, ITEMS + 1)})
    only = generated(app, history=history, exclude_seen=True, allow=[*range(141, 160)], **WIDE)
    assert by_sid(only) == of_codes({*range(151, 160)})


def test_one_answer_equals_the_list_of_what_was_seen(app: App) -> None:
    history = list(range(20, 60))
    differs = 0
    for more in ({"beam_width": [4, 9, 64]}, {"beam_width": 3, "normalization": "valid"}, {"seed": 5}):
        seen = generated(app, history=history, exclude_seen=True, **more)
        listed = generated(app, history=history, deny=history, **more)
        assert seen["results"] == listed["results"]
        differs += seen["results"] != generated(app, history=history, **more)["results"]
    assert differs


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"token_ids": [1], "exclude_seen": True}, "invalid_request", "exclude_seen"),
        ({"text": "hello", "exclude_seen": True}, "invalid_request", "exclude_seen"),
        ({"history": [1], "exclude_seen": 1}, "request", "exclude_seen"),
        ({"history": [1], "exclude_seen": None}, "request", "exclude_seen"),
        ({"history": ["x", *range(1, 200)], "exclude_seen": True}, "invalid_request", "history[0]"),
        ({"history": [1] * 401, "exclude_seen": True}, "too_long", "history"),
        ({"history": [1] * 401}, "too_long", "history"),
        ({"history": [1], "exclude_seen": True, "deny": [1] * 41}, "invalid_request", "deny"),
        ({"user": "nobody-yet", "exclude_seen": True}, "invalid_request", "user"),
    ],
)
def test_bad_requests_are_named(app: App, body: dict[str, Any], code: str, field: str) -> None:
    error = error_of(app.call("POST", "/v1/generate", body), 422, code, field)
    if code == "too_long":
        assert error["limit"] == 400


def test_the_client_excludes_what_was_seen(app: App) -> None:
    async def ask() -> list[Any]:
        door, transport = Door("http://test", timeout_ms=60_000), httpx.ASGITransport(app=app.app)
        async with AsyncClient(door, transport) as client:
            options = {"beam_width": 512, "max_items": 10_000}
            seen = await client.generate("ann", exclude_seen=True, **options)
            plain = await client.generate("ann", **options)
            return [seen, plain]

    seen, plain = app.do(ask())
    assert set(seen.items) == set(range(1, ITEMS + 1)) - SEEN
    assert set(plain.items) == set(range(1, ITEMS + 1))


def test_named_filters_act_inside_decoding(app: App, tmp_path: Path) -> None:
    asked = {"history": [3, 8], "beam_width": 8, "num_results": 8}
    error_of(app.call("POST", "/v1/generate", {**asked, "filters": ["fresh"]}), 422, "invalid_request")
    best = generated(app, **asked)
    stale = {item for row in best["results"] for item in row["items"]}
    # Of two items of one id one is fresh: the id stays, with that one.
    pair = next(sid for sid, found in by_sid(best).items() if len(found) > 1)
    stale.remove(by_sid(best)[pair][0])
    items = np.arange(1, ITEMS + 1)
    flags = {"fresh": ~np.isin(items, sorted(stale)), "even": items % 2 == 0}
    index = build_index(Rows(item_ids=items, codes=item_codes(), flags=flags), SIZES).index
    flagged = make_catalogue(index, tokens=stacked(SIZES, 1), as_of_s=1_700_000_001.0)
    write_catalogue(tmp_path / "flagged", flagged)
    app.post("/v1/catalogues/load", {"path": str(tmp_path / "flagged")})
    try:
        assert generated(app, **asked)["results"] == best["results"]
        fresh = generated(app, **asked, filters=["fresh"])
        # A filter behind decoding would leave one row of the eight.
        assert fresh["returned"] == 8
        assert "underflow" not in fresh
        assert by_sid(fresh)[pair] == [by_sid(best)[pair][0]]
        assert not {item for row in fresh["results"] for item in row["items"]} & stale
        assert fresh["results"] == generated(app, **asked, deny=sorted(stale))["results"]
        both = generated(app, history=[3, 8], filters=["fresh", "even"], exclude_seen=True, **WIDE)
        left = {item for item in items.tolist() if item % 2 == 0 and item not in stale} - {8}
        assert by_sid(both) == of_codes(left)
        assert both["underflow"] == "catalog_exhausted"
        wrong = app.call("POST", "/v1/generate", {**asked, "filters": ["fresh", "new"]})
        error_of(wrong, 422, "invalid_request", "filters[1]")
    finally:
        app.post("/v1/catalogues/rollback")
