"""A request through both kinds of cascade, against a server that behaves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from cascade_ask import Both, after_signal, found
from cascade_server import (
    FOUND,
    SIGNAL,
    Seen,
    StubServer,
    answering,
    hanging,
    http,
    ranking,
)

from relaygr.client import (
    Admission,
    DeadlineExceededError,
    Door,
    RequestRejectedError,
    RetryPolicy,
    history,
)


def test_the_answer_of_a_request(both: Both) -> None:
    with StubServer() as server:
        (answer,) = both(server, ("ann", None), retrieve=after_signal, call={"top_k": 2})
    assert (answer.user, answer.items, answer.candidates) == ("ann", [9, 4], FOUND)
    assert answer.ranking is not None
    assert answer.ranking.path == "hit"
    assert (answer.signal.admission, answer.signal.reason) == (Admission.ADMITTED, "")
    assert answer.signal.answer is not None
    assert answer.signal.answer.tokens == 5
    (signal,), (rank,) = server.signals, server.ranks
    assert signal.body == {"user": "ann"}
    assert rank.body == {"user": "ann", "candidates": FOUND, "output": "logits", "top_k": 2}
    assert signal.headers["x-request-id"] == rank.headers["x-request-id"]


def test_all_candidates_are_ordered_without_top_k(both: Both) -> None:
    with StubServer() as server:
        (answer,) = both(server, ("ann", None), retrieve=found)
    assert answer.items == [9, 4, 3]


def test_the_stages_get_what_the_one_before_found(both: Both) -> None:
    calls: list[Any] = []

    def retrieve(user: str, request: Any) -> dict[str, int]:
        calls.append((user, request))
        return {"vectors": 7}

    def preprocess(user: str, request: Any, found: Any) -> np.ndarray[Any, Any]:
        calls.append((user, request, found))
        return np.array([5, 2**62])

    with StubServer() as server:
        (answer,) = both(server, ("ann", [1]), retrieve=retrieve, preprocess=preprocess)
    assert calls == [("ann", [1]), ("ann", [1], {"vectors": 7})]
    assert answer.items == [2**62, 5]


def test_what_both_laps_say(both: Both) -> None:
    sent = history([1, 2], [10, 20])
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    call = {
        "history": sent,
        "request_id": "mine",
        "traceparent": trace,
        "query_time": 30,
        "output": "probabilities",
    }
    with StubServer() as server:
        both(
            server, ("u", 0), retrieve=after_signal, candidates=64, budget_ms=40, deadline_ms=9000, call=call
        )
    (signal,), (rank,) = server.signals, server.ranks
    for lap in (signal, rank):
        assert lap.body["history"] == {"items": [1, 2], "timestamps": [10, 20]}
        assert (lap.headers["x-request-id"], lap.headers["traceparent"]) == ("mine", trace)
    assert (signal.body["candidates"], "budget_ms" in signal.body) == (64, False)
    assert (rank.body["budget_ms"], rank.body["query_time"], rank.body["output"]) == (40, 30, "probabilities")
    assert 0 < rank.body["deadline_ms"] < signal.body["deadline_ms"] <= 9000


def test_the_budget_is_no_more_than_what_is_left(both: Both) -> None:
    with StubServer() as server:
        both(server, ("u", 0), retrieve=found, budget_ms=8000, deadline_ms=4000)
    (rank,) = server.ranks
    assert rank.body["budget_ms"] == rank.body["deadline_ms"] <= 4000


def test_ranking_goes_where_the_signal_was_answered(both: Both) -> None:
    headers = {"x-relay-owner": "rank-3", "x-relay-epoch": "12"}
    with StubServer(signal=answering(SIGNAL, headers=headers)) as server:
        (answer,) = both(server, ("u", 0), retrieve=after_signal)
    assert {name: server.ranks[0].headers[name] for name in headers} == headers
    assert answer.signal.hint is not None
    assert answer.signal.hint.owner == "rank-3"


@pytest.mark.parametrize("word", ["hit", "joined", "rejected", "of_a_newer_server"])
def test_what_the_server_says_of_a_signal(both: Both, word: str) -> None:
    signal = answering({**SIGNAL, "admission": word, "reason": "load" if word == "rejected" else ""})
    with StubServer(signal=signal) as server:
        (answer,), counts = both.counted(server, ("u", 0), retrieve=after_signal)
    newer = word == "of_a_newer_server"
    assert answer.signal.admission == (Admission.OTHER if newer else Admission(word))
    assert answer.signal.reason == {"rejected": "load", "of_a_newer_server": word}.get(word, "")
    assert counts[answer.signal.admission] == 1
    assert sum(counts.values()) == 1


@pytest.mark.parametrize("stage", ["retrieve", "preprocess"])
@pytest.mark.parametrize("nothing", [None, [], (), np.array([], np.int64), range(0)], ids=repr)
def test_nothing_to_rank(both: Both, stage: str, nothing: object) -> None:
    stages = {"retrieve": found, "preprocess": lambda user, request, found: found}
    stages[stage] = lambda *given: nothing
    with StubServer() as server:
        (answer,), counts = both.counted(server, ("u", 0), **stages)
    assert (answer.items, answer.candidates, answer.ranking) == ([], [], None)
    assert (answer.timings.lead_ms, answer.timings.rank_ms) == (None, None)
    assert server.ranks == []
    assert sum(counts.values()) == 1


def test_preprocessing_is_not_asked_about_nothing(both: Both) -> None:
    with StubServer() as server:
        (answer,) = both(server, ("u", 0), retrieve=lambda *given: [], preprocess=lambda *given: 1 / 0)
    assert answer.timings.preprocess_ms is None


def test_switched_off_it_is_plain_ranking(both: Both) -> None:
    with StubServer() as server:
        (answer,), counts = both.counted(server, ("u", 0), retrieve=found, enabled=False)
    assert (answer.items, server.signals) == ([9, 4, 3], [])
    assert (answer.signal.admission, answer.signal.reason) == (Admission.NOT_SENT, "disabled")
    assert counts[Admission.NOT_SENT] == 1


def test_timings(both: Both) -> None:
    def slow(user: str, request: Any) -> list[int]:
        time.sleep(0.03)
        return FOUND

    def slower(user: str, request: Any, found: list[int]) -> list[int]:
        time.sleep(0.05)
        return found

    async def rank(seen: Seen) -> bytes:
        await asyncio.sleep(0.02)
        return await ranking(seen)

    with StubServer(rank=rank) as server:
        (answer,) = both(server, ("u", 0), retrieve=slow, preprocess=slower)
    took = answer.timings
    assert took.retrieve_ms is not None
    assert took.preprocess_ms is not None
    assert took.lead_ms is not None
    assert took.rank_ms is not None
    assert took.retrieve_ms >= 29
    assert took.preprocess_ms >= 49
    assert took.lead_ms >= took.retrieve_ms + took.preprocess_ms
    assert took.rank_ms >= 19
    assert took.total_ms >= took.lead_ms + took.rank_ms


@pytest.mark.parametrize("stage", ["retrieve", "preprocess"])
def test_a_stage_that_raises(both: Both, stage: str) -> None:
    error = KeyError("mine")

    def raising(*given: Any) -> list[int]:
        raise error

    stages = {"retrieve": found, "preprocess": lambda user, request, found: found, stage: raising}
    with StubServer() as server:
        with pytest.raises(KeyError) as caught:
            both(server, ("u", 0), **stages)
        assert caught.value is error
        assert server.ranks == []


def test_a_timeout_of_a_stage_is_its_own(both: Both) -> None:
    def raising(*given: Any) -> list[int]:
        raise TimeoutError("of the index")

    with StubServer() as server, pytest.raises(TimeoutError, match="of the index"):
        both(server, ("u", 0), retrieve=raising, deadline_ms=5000)


@pytest.mark.parametrize("bad", ["words", [1.5], 7, [2**63]])
def test_candidates_that_are_none(both: Both, bad: object) -> None:
    with StubServer() as server:
        with pytest.raises(RequestRejectedError, match="candidates"):
            both(server, ("u", 0), retrieve=lambda *given: bad)
        assert server.ranks == []


@pytest.mark.parametrize("stage", ["retrieve", "preprocess"])
def test_a_stage_that_overruns_the_deadline(both: Both, stage: str) -> None:
    def slow(*given: Any) -> list[int]:
        time.sleep(0.3)
        return FOUND

    stages = {"retrieve": found, "preprocess": lambda user, request, found: found, stage: slow}
    said = {"retrieve": "retrieval", "preprocess": "pre-processing"}[stage]
    with StubServer() as server:
        with pytest.raises(DeadlineExceededError, match=said) as caught:
            both(server, ("u", 0), deadline_ms=120, call={"request_id": "mine"}, **stages)
        assert caught.value.request_id == "mine"
        assert server.ranks == []


def test_ranking_that_overruns_the_deadline(both: Both) -> None:
    with StubServer(rank=hanging) as server, pytest.raises(DeadlineExceededError):
        both(server, ("u", 0), retrieve=found, deadline_ms=200)


def test_signals_that_fail_use_up_no_retries_of_ranking(both: Both) -> None:
    tries = iter([http(503, b"{}")])

    async def rank(seen: Seen) -> bytes:
        return next(tries, None) or await ranking(seen)

    # One retry in all, and none is earned: the signal takes the one of its own.
    policy = RetryPolicy(base_ms=1, cap_ms=2, budget_burst=1, budget_ratio=0)
    with StubServer(signal=answering({}, 503), rank=rank) as server:
        (answer,) = both(server, ("u", 0), door=Door(server.url, retries=policy), retrieve=after_signal)
    assert answer.items == [9, 4, 3]
    assert answer.signal.admission is Admission.FAILED
    assert (len(server.signals), len(server.ranks)) == (2, 2)
