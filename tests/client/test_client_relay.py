"""What the two laps of a request tell one another."""

from __future__ import annotations

import httpx
import pytest
from client_server import PATIENT, RANKING, Ask, Script, refusal

from relaygr.client import Door, Hint, RequestRejectedError
from relaygr.core.ids import session_key

DOOR = Door("http://server", retries=PATIENT)
SIGNAL = {
    "user": "u",
    "admission": "admitted",
    "reason": "",
    "tokens": 5,
    "cached": 0,
    "model": "a",
    "request_id": "r",
}


def test_the_expected_number_of_candidates_and_the_budget_are_sent_if_given(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=SIGNAL), httpx.Response(200, json=RANKING)])
    given = [("prefix", ("u",), {"candidates": 128}), ("rank", ("u", [1, 2]), {"budget_ms": 30.5})]
    ask.each(DOOR, given, script.transport)
    assert script.bodies()[0] == {"user": "u", "candidates": 128}
    assert script.bodies()[1] == {"user": "u", "candidates": [1, 2], "budget_ms": 30.5, "output": "logits"}
    script = Script([httpx.Response(200, json=SIGNAL), httpx.Response(200, json=RANKING)])
    ask.each(DOOR, [("prefix", ("u",), {}), ("rank", ("u", [1, 2]), {})], script.transport)
    assert script.bodies()[0] == {"user": "u"}
    assert script.bodies()[1] == {"user": "u", "candidates": [1, 2], "output": "logits"}


@pytest.mark.parametrize(
    ("method", "arguments", "options", "field"),
    [
        ("prefix", ("u",), {"candidates": 2**63}, "candidates"),
        ("prefix", ("u",), {"candidates": 1.5}, "candidates"),
        ("rank", ("u", [1]), {"budget_ms": 0}, "budget_ms"),
        ("rank", ("u", [1]), {"budget_ms": float("nan")}, "budget_ms"),
        ("rank", ("u", [1]), {"hint": Hint("a\r\nx-tenant: other")}, "hint.owner"),
        ("rank", ("u", [1]), {"hint": Hint("")}, "hint.owner"),
    ],
)
def test_what_no_lap_can_carry_is_refused_here(
    ask: Ask, method: str, arguments: tuple[object, ...], options: dict[str, object], field: str
) -> None:
    script = Script([httpx.Response(200, json={})])
    with pytest.raises(RequestRejectedError) as caught:
        ask(DOOR, method, *arguments, transport=script.transport, **options)
    assert (caught.value.field, script.seen) == (field, [])


def test_an_answer_names_the_member_that_gave_it(ask: Ask) -> None:
    headers = {"x-relay-owner": "rank-1", "x-relay-epoch": "7"}
    script = Script([httpx.Response(200, json=SIGNAL, headers=headers)])
    signal = ask(DOOR, "prefix", "u", transport=script.transport)
    assert (signal.owner, signal.epoch, signal.hint) == ("rank-1", 7, Hint("rank-1", 7))
    script = Script([httpx.Response(200, json=RANKING, headers=headers)])
    ranking = ask(DOOR, "rank", "u", [1, 2], hint=signal.hint, transport=script.transport)
    assert (ranking.owner, ranking.epoch) == ("rank-1", 7)
    assert {name: script.seen[0].headers[name] for name in headers} == headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-relay-epoch": "7"},
        {"x-relay-owner": ""},
        {"x-relay-owner": "o" * 257},
        {"x-relay-owner": "a\tb"},
        {"x-relay-owner": "a", "x-relay-epoch": "-1"},
        {"x-relay-owner": "a", "x-relay-epoch": "9" * 5000},
        {"x-relay-owner": "a", "x-relay-epoch": "seven"},
    ],
)
def test_a_member_that_cannot_be_named_is_no_hint(ask: Ask, headers: dict[str, str]) -> None:
    script = Script([httpx.Response(200, json=SIGNAL, headers=headers)])
    assert ask(DOOR, "prefix", "u", transport=script.transport).hint is None


def test_without_a_hint_no_member_is_asked_for(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=RANKING)])
    ask(DOOR, "rank", "u", [1, 2], transport=script.transport)
    assert not [name for name in script.seen[0].headers if name.startswith("x-relay")]


def test_a_member_without_an_epoch(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=SIGNAL, headers={"x-relay-owner": "a"})])
    assert ask(DOOR, "prefix", "u", transport=script.transport).hint == Hint("a", 0)


def test_the_budget_is_never_more_than_what_is_left_of_the_deadline(ask: Ask) -> None:
    script = Script([refusal(503, "overload", retry_after_ms=30.0), httpx.Response(200, json=RANKING)])
    ask(DOOR, "rank", "u", [1, 2], deadline_ms=5000, budget_ms=9000.0, transport=script.transport)
    first, second = script.bodies()
    assert first["budget_ms"] == first["deadline_ms"] > second["deadline_ms"] == second["budget_ms"]
    script = Script([httpx.Response(200, json=RANKING)])
    ask(DOOR, "rank", "u", [1, 2], deadline_ms=5000, budget_ms=50.0, transport=script.transport)
    assert script.bodies()[0]["budget_ms"] == 50


def test_a_session_is_sent_where_it_is_wanted_and_is_the_routers_key(ask: Ask) -> None:
    calls = [("prefix", ("u",), {}), ("rank", ("u", [1, 2]), {}), ("delete", ("u",), {}), ("models", (), {})]
    deleted = {"user": "u", "events": 0, "entries": 0, "request_id": "r"}
    answers = [SIGNAL, RANKING, deleted, {"models": []}]
    for sessions, tenant, wanted in (
        (True, "shop", [session_key("shop", "u")] * 3 + [None]),
        (True, None, [session_key("default", "u")] * 3 + [None]),
        (False, "shop", [None] * 4),
    ):
        script = Script([httpx.Response(200, json=one) for one in answers])
        ask.each(Door("http://server", tenant=tenant, sessions=sessions), calls, script.transport)
        assert [one.headers.get("x-session-id") for one in script.seen] == wanted
