"""Loads of the relay benchmark: open loop, counted from the schedule, on a server whose times are known."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from relay_stub import RelayStub

from relaygr.bench.relay_loads import Loads, Order
from relaygr.bench.relay_play import UNSENT, Played, Player, forget, store
from relaygr.bench.relay_point import Point, make_point
from relaygr.bench.relay_script import Kind, Limits, Script, write_script
from relaygr.bench.relay_users import People
from relaygr.bench.relay_wire import Door, new_loop, post
from relaygr.core.errors import BackendError
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import INLINE_FULL, RELAY_FULL, Variant, variant
from relaygr.sim.workload import generate

# Far above the stub's times, so that a busy machine fails no test; STRICT is for loads that are to be late.
LIMITS = Limits(tau_ms=10.0, b_rank_ms=1000.0, b_pipe_ms=3000.0)
STRICT = Limits(tau_ms=10.0, b_rank_ms=60.0, b_pipe_ms=3000.0)
PEOPLE = People(512, 4, 1000, 0)
TRAFFIC = Traffic(rate=100.0, requests=40, warmup=4, tau_s=0.01, length=64)


def play(
    how: Variant,
    stub: RelayStub,
    traffic: Traffic = TRAFFIC,
    *,
    bad_most: int | None = None,
    idle_s: float | None = None,
    limits: Limits = LIMITS,
) -> tuple[Script, Played, Point]:
    script = write_script(how, generate(traffic), PEOPLE, limits, "r")

    async def run() -> Played:
        async with stub.door() as door:
            await store([door], script)
            played = await Player([door], script, bad_most=bad_most, idle_s=idle_s).run()
            await forget([door], script)
            return played

    with asyncio.Runner(loop_factory=new_loop) as runner:
        played = runner.run(run())
    return script, played, make_point(played, script, how, traffic)


def paths(point: Point) -> dict[str, int]:
    return {one.name: one.count for one in point.paths}


def test_a_request_is_a_signal_and_a_ranking_at_their_times() -> None:
    stub = RelayStub()
    script, _, point = play(RELAY_FULL, stub)
    assert point.requests == point.good == point.valid == 40
    assert paths(point) == {"hit": 40}
    assert [one.name for one in point.signals] == ["admitted"]
    assert point.share.passes
    assert point.served_mean == 64
    assert stub.counts["rank"] == stub.counts["prefix"] == 44
    assert stub.counts["DELETE"] == stub.counts["GET"] == 44
    assert not stub.tokens
    lead = {r.user: r.lead_s for r in script.requests}
    began = {user: at for at, what, user in stub.seen if what == "prefix"}
    for at, what, user in stub.seen:
        if what == "rank":
            assert at - began[user] == pytest.approx(lead[int(user.split("-")[1])], abs=0.2)
    for body in stub.bodies["rank"]:
        assert len(body["candidates"]) == 4
        assert body["budget_ms"] == 1000.0
        assert 2950.0 <= body["deadline_ms"] < 3000.0
    assert {body["candidates"] for body in stub.bodies["prefix"]} == {4}


def test_inline_sends_no_signal_and_no_budget() -> None:
    stub = RelayStub()
    _, _, point = play(INLINE_FULL, stub)
    assert stub.counts["prefix"] == 0
    assert all("budget_ms" not in body for body in stub.bodies["rank"])
    assert point.signals == ()
    assert paths(point) == {"full": 40}


def test_latency_counts_from_the_schedule_whatever_the_server_does() -> None:
    """Twice the load that the worker bears: the last waits for the excess of all before it."""
    stub = RelayStub(full_ms=40.0)
    _, played, point = play(INLINE_FULL, stub, limits=STRICT)
    assert point.latency.max > 300
    assert point.good < 20
    assert point.requests == 40
    # Nothing was held back: all was sent within the schedule's time.
    sent = [one.sent_s for one in played.heard]
    due = [one.due_s for one in played.heard]
    assert max(sent) - min(sent) < max(due) - min(due) + 0.3


@pytest.mark.parametrize(
    ("served", "path", "good", "valid"),
    [(64, "full", 40, 40), (32, "truncated", 0, 40), (0, "degraded", 0, 0), (32, "full", 0, 40)],
)
def test_shortened_is_late(served: int, path: str, good: int, valid: int) -> None:
    stub = RelayStub()
    stub.truncate, stub.path = served, path
    _, _, point = play(RELAY_FULL, stub)
    assert (point.good, point.valid) == (good, valid)


def test_a_baseline_that_shortens_is_asked_for_its_time_only() -> None:
    stub = RelayStub()
    stub.truncate = 16
    _, _, point = play(variant("inline_truncated"), stub)
    assert (point.good, point.served_mean) == (40, 16.0)


@pytest.mark.parametrize(("status", "name"), [(504, "504"), (0, "no connection")])
def test_what_is_not_answered_is_neither_good_nor_valid(status: int, name: str) -> None:
    stub = RelayStub()
    stub.fail = status
    _, _, point = play(INLINE_FULL, stub)
    assert paths(point) == {name: 40}
    assert (point.good, point.valid) == (0, 0)
    assert point.latency.p99 == 0.0


def test_a_load_that_cannot_pass_is_given_up() -> None:
    long = msgspec.structs.replace(TRAFFIC, rate=20.0, requests=100, warmup=0)
    _, played, point = play(INLINE_FULL, RelayStub(full_ms=80.0), long, bad_most=2, limits=STRICT)
    assert played.ended
    assert point.requests < 100
    assert point.planned == 100
    assert not point.share.passes
    assert point.share.good == 0.0
    assert any(one.status == UNSENT for one in played.heard)


def test_idle_time_is_left_out_and_nothing_else() -> None:
    slow = Traffic(rate=0.5, requests=8, warmup=0, tau_s=0.1, length=64)
    stub = RelayStub()
    script, played, point = play(RELAY_FULL, stub, slow, idle_s=0.01)
    assert played.seconds + played.skipped_s == pytest.approx(script.steps[-1].at_s, abs=2.0)
    assert played.seconds < 0.5 * script.steps[-1].at_s
    assert point.good == 8
    # Leads are kept: from the signal to the ranking there is no idle time.
    began = {user: at for at, what, user in stub.seen if what == "prefix"}
    for at, what, user in stub.seen:
        if what == "rank":
            assert at - began[user] >= script.requests[int(user.split("-")[1])].lead_s - 0.1
    # The order is that of the schedule.
    ranks = [user for _, what, user in stub.seen if what == "rank"]
    due = [step for step in script.steps if step.kind is Kind.RANK]
    assert ranks == [f"r-{script.requests[step.number].user}" for step in due]


def test_requests_that_overlap_overlap_also_where_idle_time_is_left_out() -> None:
    """With a worker at half load about as many rankings find it busy as in the whole schedule."""
    traffic = Traffic(rate=25.0, requests=40, warmup=0, tau_s=0.01, length=64)
    near = []
    for _ in range(4):  # a machine that others use holds up one or the other
        whole, short = (
            play(INLINE_FULL, RelayStub(full_ms=20.0), traffic, idle_s=idle_s)[2] for idle_s in (None, 0.005)
        )
        assert whole.skipped_s == 0 < short.skipped_s
        near.append(short.queue.p90 == pytest.approx(whole.queue.p90, abs=20.0))
        if near[-1]:
            break
    assert any(near)


def test_sessions_append_what_is_new_before_the_user_comes_back() -> None:
    again = Traffic(
        regime="sessions", rate=60.0, requests=60, warmup=0, warmup_taus=20, tau_s=0.01, length=200
    )
    stub = RelayStub()
    script, _, point = play(RELAY_FULL, stub, again)
    assert point.events_failed == 0
    assert point.good == point.requests == 60
    appended = [body for body in stub.bodies["events"] if len(body["items"]) < 50]
    assert len(appended) == sum(not request.first for request in script.requests)
    for body in stub.bodies["events"]:
        assert body["timestamps"] == sorted(body["timestamps"])
    counts = {body["user"]: 0 for body in stub.bodies["events"]}
    times: dict[str, int] = {}
    for body in stub.bodies["events"]:
        assert body["timestamps"][0] > times.get(body["user"], 0)
        times[body["user"]] = body["timestamps"][-1]
        counts[body["user"]] += len(body["items"])
    assert max(counts.values()) <= 200


def test_an_answer_that_has_to_be_good_and_is_not_is_an_error() -> None:
    stub = RelayStub()
    stub.fail = 503

    async def run() -> None:
        async with stub.door() as door:
            await door.ask(post("/v1/rank", b'{"user":"u","candidates":[1]}'))

    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(BackendError, match="/v1/rank: 503"):
        runner.run(run())


def test_a_load_knows_its_variant() -> None:
    """The runner of loads gives every one new users and forgets them."""
    stub = RelayStub()

    class _Servers:
        def __init__(self, door: Door) -> None:
            self.door, self.asked = door, []

        async def doors(self, settings: tuple[str, ...], count: int) -> tuple[Door, ...]:
            self.asked.append(settings)
            return (self.door,)

        def check(self) -> None:
            pass

    class _Site:
        def of(self, how: Variant) -> tuple[str, ...]:
            return (how.name,)

    async def run() -> tuple[Point, Point]:
        async with stub.door() as door:
            loads = Loads(_Site(), _Servers(door), PEOPLE, LIMITS)  # type: ignore[arg-type]
            first = await loads.run(Order(variant=RELAY_FULL, traffic=TRAFFIC))
            return first, await loads.run(Order(variant=RELAY_FULL, traffic=TRAFFIC))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        first, second = runner.run(run())
    assert (first.good, second.good) == (40, 40)
    assert len({user for _, what, user in stub.seen if what == "rank"}) == 88
    assert not stub.tokens
