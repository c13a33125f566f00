"""The load itself: what is sent, that nothing waits for answers, and what becomes of every visit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from serve_stub import Stub, answering, holding

from relaygr.bench import serve
from relaygr.bench.serve_load import Load, remove_users, store_users
from relaygr.bench.serve_report import LoadResult, ServeReport
from relaygr.bench.serve_spec import LoadSpec, SloSpec
from relaygr.bench.serve_users import Crowd
from relaygr.core.errors import BackendError

SPEC = LoadSpec(
    url="http://stub",
    rate=100,
    duration_s=0.4,
    warmup_s=0.1,
    users=5,
    history=10,
    candidates=3,
    new_events=2,
    lead_ms=20,
    deadline_ms=60_000,
    timeout_ms=20_000,
)


def load(spec: LoadSpec, prepare: Callable[[Stub], None] = lambda stub: None) -> tuple[Stub, LoadResult]:
    async def run() -> tuple[Stub, LoadResult]:
        stub = Stub()
        prepare(stub)
        async with stub.running() as url:
            there = replace(spec, url=url)
            async with serve.connect(there) as wire:
                return stub, await Load(wire, Crowd(there), there).run()

    return asyncio.run(run())


def failures(result: LoadResult) -> dict[tuple[str, str], int]:
    return {(failure.stage, failure.what): failure.count for failure in result.failures}


def test_a_visit_is_events_a_signal_and_a_ranking() -> None:
    stub, result = load(SPEC)
    assert result.failures == []
    assert stub.counts["rank"] == stub.counts["prefix"] == stub.counts["events"] > result.visits > 0
    assert result.good == result.visits
    assert result.models == ["ab"]
    assert result.tokens_cached_share == 0.75
    for body in stub.bodies["rank"]:
        assert len(body["candidates"]) == 3
        assert body["deadline_ms"] == 60_000
    assert {len(body["items"]) for body in stub.bodies["events"]} == {2}
    by_user: dict[str, list[int]] = {}
    for body in stub.bodies["events"]:
        by_user.setdefault(body["user"], []).extend(body["timestamps"])
    assert len(by_user) == 5
    for times in by_user.values():
        assert len(set(times)) == len(times)


def test_the_warm_up_is_not_counted() -> None:
    stub, result = load(SPEC)
    ranked = result.latency("rank")
    assert ranked is not None
    assert ranked.count == result.visits < stub.counts["rank"]


def test_what_is_not_asked_for_is_not_sent() -> None:
    stub, result = load(replace(SPEC, prefix=False, new_events=0))
    assert set(stub.counts) == {"rank"}
    assert {row.stage for row in result.latencies} == {"rank"}


def test_nothing_waits_for_answers() -> None:
    """Nobody is answered before twenty have asked, which a client that waits for answers would never see."""

    def prepare(stub: Stub) -> None:
        stub.rank = holding(lambda: stub.counts["rank"] >= 20, stub.hit)

    stub, result = load(replace(SPEC, connections=400), prepare)
    assert stub.counts["rank"] >= 20
    assert result.good == result.visits


def test_what_is_missed_is_told() -> None:
    """Two connections, held until the load is over: every further ranking is due and cannot be sent."""
    spec = replace(SPEC, connections=2, prefix=False, new_events=0, warmup_s=0, timeout_ms=1500)

    def prepare(stub: Stub) -> None:
        stub.rank = holding(lambda: False, stub.hit)

    stub, result = load(spec, prepare)
    assert stub.counts["rank"] == 2
    assert result.missed == result.visits - 2 > 0
    assert failures(result) == {("rank", "missed"): result.missed, ("rank", "timeout"): 2}
    assert (result.good, result.latencies) == (0, [])


@pytest.mark.parametrize(
    ("status", "body", "what"),
    [
        (503, b"{}", "503"),
        (302, b"", "302"),
        (200, b"no json", "bad answer"),
        (200, b'{"path": "hit"}', "bad answer"),
    ],
)
def test_answers_that_are_none(status: int, body: bytes, what: str) -> None:
    def prepare(stub: Stub) -> None:
        stub.rank = answering(status, body)

    _, result = load(SPEC, prepare)
    assert failures(result) == {("rank", what): result.visits}
    assert result.good_share == 0


def test_connections_that_break() -> None:
    def prepare(stub: Stub) -> None:
        stub.cut = True

    _, result = load(replace(SPEC, prefix=False, new_events=0), prepare)
    assert failures(result) == {("rank", "connection"): result.visits}


def run_all(spec: LoadSpec, slo: SloSpec | None, stub: Stub) -> ServeReport:
    """`bench_serve`, whose loop is its own, against a stub in another one."""

    async def run() -> ServeReport:
        async with stub.running() as url:
            return await asyncio.to_thread(serve.bench_serve, replace(spec, url=url), slo)

    return asyncio.run(run())


def test_users_are_stored_before_and_removed_after() -> None:
    stub = Stub()
    spec = replace(SPEC, history=5000, new_events=0, duration_s=0.1)
    report = run_all(spec, None, stub)
    assert report.load is not None
    assert [len(body["items"]) for body in stub.bodies["events"]].count(4096) == 5
    assert [len(body["items"]) for body in stub.bodies["events"]].count(904) == 5
    users = {body["user"] for body in stub.bodies["events"]}
    assert sorted(stub.removed) == sorted(users)
    assert {body["user"] for body in stub.bodies["rank"]} <= users
    assert (report.users_left, report.search) == (0, None)


def test_users_that_stay_are_told() -> None:
    stub = Stub()
    stub.refuse_removal = True
    assert run_all(replace(SPEC, duration_s=0.1), None, stub).users_left == 5


def test_a_search_asks_with_its_target_as_deadline() -> None:
    stub = Stub()
    spec = replace(SPEC, rate=50, duration_s=0.1, warmup_s=0, new_events=0, prefix=False)
    report = run_all(spec, SloSpec(slo_ms=30_000, most=2), stub)
    assert report.search is not None
    assert [probe.rate for probe in report.search.probes] == [50, 100]
    assert (report.deadline_ms, report.load) == (30_000, None)
    assert {body["deadline_ms"] for body in stub.bodies["rank"]} == {30_000}


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(BackendError, match="POST /v1/events: connection"):
        serve.bench_serve(replace(SPEC, url="http://127.0.0.1:9"))


def test_a_server_that_refuses_the_users() -> None:
    async def run() -> None:
        stub = Stub()
        async with stub.running() as url:
            spec = replace(SPEC, url=url + "/elsewhere")
            async with serve.connect(spec) as wire:
                crowd = Crowd(spec)
                assert await remove_users(wire, crowd) == 5
                await store_users(wire, crowd)

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(run())
    assert "404" in str(serve.first_error(caught.value))
