"""Clients that go away while their generation waits, and while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from socket import socket

import httpx
import pytest
from generation_apps import SIZES, HeldRounds, generating
from live_service import Live, answer_of, connect, live_service
from prometheus_client.parser import text_string_to_metric_families

from patience import await_true
from relaygr.serving.generation.desk import GenerateDesk

HEAD = b"POST /v1/generate HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: close\r\n"
BODY = json.dumps({"history": list(range(1, 31)), "beam_width": 7, "deadline_ms": 10_000}).encode()
ASK = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_service(generating(tmp_path_factory.mktemp("generating"))) as found:
        yield found


def desk_of(live: Live) -> GenerateDesk:
    assert live.service.generation is not None
    return live.service.generation


def ask(live: Live, count: int) -> list[socket]:
    callers = [connect(live) for _ in range(count)]
    for caller in callers:
        caller.sendall(ASK)
    return callers


def held(live: Live) -> tuple[int, ...]:
    """Seats, bytes of beams and of scratch, pinned pages, pins of catalogues, requests that wait or run."""
    desk = desk_of(live)
    stats, load = desk.generator.stats(), desk.scheduler.load()
    pins = desk.generator.catalogues.status().pins
    memory = stats.seats, stats.beam_bytes, stats.scratch_bytes, stats.pages.pinned_pages
    return *memory, pins, load.waiting, load.running, live.service.admissions.in_progress


NOTHING = (0,) * 8


def counted(live: Live, name: str, **labels: str) -> float:
    text = httpx.get(f"{live.url}/metrics", timeout=30).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return sum(
        one.value for one in samples if one.name == f"relaygr_{name}" and labels.items() <= one.labels.items()
    )


@pytest.mark.parametrize("stage", ["queued", "running"])
def test_a_disconnect_frees_all_that_a_generation_holds(live: Live, stage: str) -> None:
    scheduler, admissions = desk_of(live).scheduler, live.service.admissions
    gone = counted(live, "disconnects_total", stage="generate")
    cancelled = counted(live, "generate_cancelled_total")
    answered = counted(live, "generate_requests_total")
    assert held(live) == NOTHING
    with HeldRounds(desk_of(live).generator) as rounds:
        [first] = ask(live, 1)
        rounds.await_round()
        queued = ask(live, 3)
        await_true(lambda: scheduler.load().waiting == 3)
        seats, beams, scratch, pages, *rest = held(live)
        assert (seats, rest) == (1, [4, 3, 1, 4])
        assert min(beams, scratch, pages) > 0
        leaving, staying = (queued, [first]) if stage == "queued" else ([first], queued)
        for caller in leaving:
            caller.close()
        await_true(lambda: admissions.in_progress == len(staying))
        # With its place among the requests goes that in the queue; what a step computes with stays for now.
        assert scheduler.load().waiting == (0 if stage == "queued" else 3)
        assert desk_of(live).generator.stats().beam_bytes == beams
        assert counted(live, "disconnects_total", stage="generate") == gone + len(leaving)
        assert counted(live, "generate_cancelled_total") == cancelled + len(leaving)
        rounds.release()
        assert all(answer_of(caller).startswith(b"HTTP/1.1 200") for caller in staying)
        await_true(lambda: held(live) == NOTHING)
        # Nobody's round is computed for those who have left, but the one that ran.
        assert rounds.sizes == ([1] * len(SIZES) if stage == "queued" else [1] + [3] * len(SIZES))
    for caller in staying:
        caller.close()
    assert counted(live, "generate_requests_total") == answered + len(staying)


def test_a_client_that_leaves_within_its_body_was_never_a_generation(live: Live) -> None:
    before = counted(live, "generate_cancelled_total")
    with connect(live) as caller:
        caller.sendall(ASK[:-5])
        await_true(lambda: live.service.admissions.in_progress == 1)
    await_true(lambda: held(live) == NOTHING)
    assert counted(live, "generate_cancelled_total") == before


def test_what_was_left_changes_no_answer(live: Live) -> None:
    """Whose memory was given back in the middle of a round is overwritten, not read."""
    body = json.loads(BODY)
    before = httpx.post(f"{live.url}/v1/generate", json=body, timeout=30).json()["results"]
    with HeldRounds(desk_of(live).generator) as rounds:
        leaving = ask(live, 1)
        rounds.await_round()
        leaving[0].close()
        await_true(lambda: live.service.admissions.in_progress == 0)
        rounds.release()
        again = httpx.post(f"{live.url}/v1/generate", json=body, timeout=30).json()
    assert again["results"] == before
    assert again["cached_tokens"] == again["prompt_tokens"]
