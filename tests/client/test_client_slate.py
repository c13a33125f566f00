"""What `slate` sends, and how its answer is read: made up, and from a server."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from client_server import Ask, Script, refusal

from relaygr.client import Door, RequestRejectedError, Slate, shown

DOOR = Door("http://server")
TERMS = {
    "heads": {"like": {"base": 1.0, "scale": 1.0, "bias": 0.0, "terms": {"topic": 0.5}, "conditional": 1.5}},
    "value_terms": [0.8],
    "clipping": 0.0,
    "effects": {},
    "value": 0.8,
    "survival": 1.0,
    "contribution": 0.8,
    "exit": {"bias": 0.0, "terms": {}, "heads": 0.0, "logit": None, "probability": 0.0},
}
ANSWER = {
    "user": "u",
    "items": [7],
    "picks": [{"item": 7, "candidate": 1, "pointwise": 0.5, "terms": TERMS}],
    "generator": "beam4",
    "mode": "on",
    "stage_reached": "evaluation",
    "fallback_reason": None,
    "utility": 0.8,
    "unpriced": 0.8,
    "score": 0.8,
    "lower_bound": 0.7,
    "lists": [{"generator": "beam4", "also": ["greedy"], "score": 0.8, "lower_bound": 0.7}],
    "relaxations": [{"rule": "authors", "position": 2, "reason": "too few"}],
    "versions": {"value": "v", "rules": "r", "step": "s", "evaluator": "e"},
    "stage_ms": {"greedy": 1.0},
    "path": "hit",
    "tokens_cached": 3,
    "tokens_computed": 0,
    "served_tokens": 3,
    "unknown_ids": 0,
    "model": "ab",
    "request_id": "r",
    "queue_ms": 0.1,
    "compute_ms": 0.2,
    "of_a_newer_server": True,
}


def test_only_what_is_given_is_sent(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=ANSWER)])
    full = {
        "length": 5,
        "attributes": {"author": np.array([1, 2])},
        "vectors": np.eye(2),
        "shown": shown(np.array([9]), attributes={"author": [4]}, vectors=[[1, 0.0]], watch=(2.5,), page=2),
        "rules": [{"kind": "pin", "name": "p", "item": 7, "position": 0}],
        "slots": range(5),
        "mode": "shadow",
        "unrestricted": True,
        "allow_short": False,
        "seed": 3,
        "explain": False,
        "allow_explore": False,
        "deadline_ms": None,
    }
    calls = [("slate", ("u",), {}), ("slate", ("u", np.array([3, 7])), full)]
    answer: Slate = ask.each(DOOR, calls, script.transport)[-1]
    assert script.bodies() == [
        {"user": "u"},
        {
            "user": "u",
            "candidates": [3, 7],
            "length": 5,
            "attributes": {"author": [1, 2]},
            "vectors": [[1.0, 0.0], [0.0, 1.0]],
            "shown": {
                "ids": [9], "attributes": {"author": [4]}, "vectors": [[1.0, 0.0]], "watch": [2.5], "page": 2,
            },
            "rules": [{"kind": "pin", "name": "p", "item": 7, "position": 0}],
            "slots": [0, 1, 2, 3, 4],
            "mode": "shadow",
            "unrestricted": True,
            "allow_short": False,
            "seed": 3,
            "explain": False,
            "allow_explore": False,
        },
    ]  # fmt: skip
    assert {str(request.url) for request in script.seen} == {"http://server/v1/slate"}
    assert answer.items == [7]
    terms = answer.picks[0].terms
    assert terms is not None
    assert terms.heads["like"].conditional == 1.5
    assert (answer.lists[0].also, answer.relaxations[0].rule) == (["greedy"], "authors")


def test_what_are_no_numbers_is_refused_before_it_is_sent(ask: Ask) -> None:
    script = Script([])
    wrong: list[dict[str, object]] = [
        {"attributes": {"author": [1.5]}},
        {"vectors": [["x"]]},
        {"candidates": ["x"]},
    ]
    for options in wrong:
        with pytest.raises(RequestRejectedError) as caught:
            ask(DOOR, "slate", "u", transport=script.transport, **options)
        assert caught.value.field in ("attributes.author", "vectors", "candidates")
    with pytest.raises(RequestRejectedError, match=r"shown\.watch"):
        shown([1], watch=["x"])  # type: ignore[list-item]
    assert script.seen == []


def test_a_refusal_names_the_field(ask: Ask) -> None:
    script = Script([refusal(422, "request", field="rules[0].name")])
    with pytest.raises(RequestRejectedError) as caught:
        ask(DOOR, "slate", "u", [1], transport=script.transport)
    assert (caught.value.code, caught.value.field) == ("request", "rules[0].name")
