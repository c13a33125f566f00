"""What `generate` sends, and how its answer is read."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from client_server import Ask, Script, refusal

from relaygr.client import Door, RequestRejectedError

DOOR = Door("http://server")
ANSWER = {
    "results": [
        {"sid": [1, 2], "score": -0.5, "items": [7, 9]},
        {"sid": [1, 3], "score": -1.5, "items": [9, "x"]},
    ],
    "normalization": "level",
    "catalog_version": "c",
    "model_version": "m",
    "requested": 3,
    "returned": 2,
    "prompt_tokens": 9,
    "cached_tokens": 3,
    "unknown_items": 0,
    "timings": {"total_ms": 1.0},
    "request_id": "r",
    "underflow": "beam_exhausted",
    "of_a_newer_server": True,
}


def test_only_what_is_given_is_sent(ask: Ask) -> None:
    script = Script([httpx.Response(200, json=ANSWER)])
    calls = [
        ("generate", ("u",), {}),
        ("generate", ("u",), {"exclude_seen": False}),
        ("generate", ("u",), {"exclude_seen": True}),
        (
            "generate",
            (),
            {
                "history": np.array([3, 5]),
                "beam_width": (4, 8),
                "allow": iter([1, 2]),
                "deny": range(2),
                "exclude_seen": True,
                "filters": ("fresh",),
            },
        ),
    ]
    answer = ask.each(DOOR, calls, script.transport)[-1]
    assert script.bodies() == [
        {"user": "u"},
        {"user": "u"},
        {"user": "u", "exclude_seen": True},
        {
            "history": [3, 5],
            "beam_width": [4, 8],
            "allow": [1, 2],
            "deny": [0, 1],
            "exclude_seen": True,
            "filters": ["fresh"],
        },
    ]
    assert {str(request.url) for request in script.seen} == {"http://server/v1/generate"}
    assert answer.items == [7, 9, "x"]
    assert [(row.sid, row.score) for row in answer.results] == [([1, 2], -0.5), ([1, 3], -1.5)]
    assert (answer.returned, answer.underflow) == (2, "beam_exhausted")


def test_a_refusal_names_the_field(ask: Ask) -> None:
    script = Script([refusal(422, "invalid_request", field="exclude_seen")])
    with pytest.raises(RequestRejectedError) as caught:
        ask(DOOR, "generate", token_ids=[1], exclude_seen=True, transport=script.transport)
    assert (caught.value.code, caught.value.field) == ("invalid_request", "exclude_seen")
    assert script.bodies() == [{"token_ids": [1], "exclude_seen": True}]
