"""Members that a cluster starts and stops: some are active at once, some drain, some are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx
from gateway_app import play

from relaygr.config.relay import RouterConfig
from relaygr.config.settings import BudgetConfig, Config, ServingConfig
from relaygr.relay.membership import State
from relaygr.relay.route import Route
from relaygr.serving.crew import Crew
from relaygr.serving.ingress import Ingress
from relaygr.serving.links import Answer, AwayError, Letter, Transport
from relaygr.serving.roster import Roster, the_roster

WORD = b'{"ready": true, "draining": false, "build": "b", "page_tokens": 32, "load": 0}'


class Calls(Transport):
    """A cluster in which everybody answers at once, except whom a test names."""

    def __init__(self) -> None:
        self.full: set[str] = set()
        self.dead: set[str] = set()
        self.sent: list[tuple[str, str]] = []

    def open(self) -> None:
        """Nothing is to be opened."""

    async def close(self) -> None:
        """Nor to be closed."""

    async def send(
        self,
        member: str,
        url: str,
        sent: Letter,
        more: Mapping[str, str] = {},
        timeout_s: float | None = None,
    ) -> Answer:
        if member in self.dead:
            raise AwayError(member, "ended", refused=True, sent=True)
        if sent.target == "/v1/relay/feedback":
            return Answer(200, [], WORD)
        if member in self.full:
            raise AwayError(member, "full", refused=False, sent=False, busy=True)
        self.sent.append((member, sent.target))
        if sent.target == "/metrics":
            text = f"# HELP a_total As\n# TYPE a_total counter\na_total {len(member)}.0\n"
            return Answer(200, [], text.encode())
        if sent.target == "/v1/prefix":
            return Answer(200, [], b'{"user": "u", "admission": "admitted", "reason": ""}')
        return Answer(200, [], b'{"path": "hit", "user": "u"}')


class Scene:
    def __init__(self, roster: Roster, calls: Calls, crew: Crew, client: httpx.AsyncClient) -> None:
        self.roster, self.calls, self.crew, self.client = roster, calls, crew, client

    def states(self) -> dict[str, State]:
        return {one.member.id: one.state for one in self.crew.router.members}

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not done():
                await asyncio.sleep(0.005)

    async def post(self, path: str, user: str = "u", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json={"user": user, "candidates": [1]}, headers=named)


@asynccontextmanager
async def scene(*names: str, ramp_s: float = 60.0) -> AsyncIterator[Scene]:
    config = Config(
        router=RouterConfig(poll_s=0.02, ramp_s=ramp_s),
        budgets=BudgetConfig(drain_ms=600.0, t_life_ms=50.0),
        serving=ServingConfig(drain_s=1.0),
    )
    roster, calls = Roster(), Calls()
    roster.update(frozenset(names))
    crew = Crew(config, roster, calls)
    ingress = Ingress(config, crew, "front")
    await ingress.start()
    transport = httpx.ASGITransport(app=ingress)
    async with httpx.AsyncClient(transport=transport, base_url="http://ingress", timeout=30) as client:
        try:
            yield Scene(roster, calls, crew, client)
        finally:
            await ingress.drain(1.0)


def test_who_is_there_at_the_start_is_active_at_once_and_agrees_with_another_router() -> None:
    async def scenario() -> None:
        async with scene("a", "b", "c") as one, scene("c", "a", "b") as other:
            assert one.states() == dict.fromkeys("abc", State.ACTIVE)
            for number in range(50):
                user = f"user-{number}"
                owners = [
                    (await there.post("/v1/rank", user)).headers["x-relay-owner"] for there in (one, other)
                ]
                assert owners[0] == owners[1]

    play(scenario)


def test_who_stops_ranks_for_its_users_gets_no_prefix_and_is_forgotten() -> None:
    async def scenario() -> None:
        async with scene("a", "b") as there:
            owner = (await there.post("/v1/prefix")).headers["x-relay-owner"]
            [other] = {"a", "b"} - {owner}
            there.roster.update(frozenset(other))
            await there.until(lambda: there.states()[owner] is State.DRAINING)
            assert (await there.post("/v1/rank", x_relay_owner=owner)).headers["x-relay-owner"] == owner
            assert (await there.post("/v1/prefix")).headers["x-relay-owner"] == other
            await there.until(lambda: owner not in there.states())
            assert (await there.post("/v1/rank", x_relay_owner=owner)).headers["x-relay-owner"] == other
            router = there.crew.router
            assert {member for _, member in router.counts.requests} == {other}
            # Back under the same name: a member like any other.
            there.roster.update(frozenset(("a", "b")))
            await there.until(lambda: there.states().get(owner) in (State.ACTIVE, State.JOINING))

    play(scenario)


def test_who_comes_back_while_it_drains_is_active_again() -> None:
    async def scenario() -> None:
        async with scene("a", "b") as there:
            there.roster.update(frozenset("b"))
            await there.until(lambda: there.states()["a"] is State.DRAINING)
            there.roster.update(frozenset(("a", "b")))
            await there.until(lambda: there.states()["a"] is State.ACTIVE)

    play(scenario)


def test_who_died_is_down_before_the_cluster_says_so_and_who_comes_later_ramps() -> None:
    async def scenario() -> None:
        async with scene("a", "b", ramp_s=0.05) as there:
            await there.until(lambda: there.states() == dict.fromkeys("ab", State.ACTIVE))
            there.calls.dead.add("a")
            there.roster.die("a")
            await there.until(lambda: there.states()["a"] is State.DOWN)
            await asyncio.sleep(0.1)
            there.roster.update(frozenset(("b", "c")))
            await there.until(lambda: there.states() == dict.fromkeys("bc", State.ACTIVE))

    play(scenario)


def test_a_full_owner_loses_the_ranking_not_its_place_and_a_prefix_goes_nowhere() -> None:
    async def scenario() -> None:
        async with scene("a", "b") as there:
            owner = (await there.post("/v1/rank")).headers["x-relay-owner"]
            [other] = {"a", "b"} - {owner}
            there.calls.full.add(owner)
            dropped = await there.post("/v1/prefix")
            assert (dropped.json()["admission"], dropped.json()["reason"]) == ("rejected", "load")
            assert (await there.post("/v1/rank")).headers["x-relay-owner"] == other
            router = there.crew.router
            assert {str(reason): count for reason, count in router.counts.spills.items()} == {"refused": 1}
            assert there.states()[owner] is State.ACTIVE
            assert [router.inflight(name) for name in "ab"] == [0, 0]

    play(scenario)


def test_what_is_in_flight_keeps_a_member_from_being_forgotten() -> None:
    async def scenario() -> None:
        async with scene("a") as there:
            router = there.crew.router
            route = router.route_any(there.crew.now_s())
            assert isinstance(route, Route)
            there.roster.update(frozenset())
            await there.until(lambda: there.states()["a"] is State.LEFT)
            await asyncio.sleep(0.1)
            assert "a" in there.states()
            router.done("a")
            await there.until(lambda: there.states() == {})
            assert (await there.post("/v1/rank")).status_code == HTTPStatus.SERVICE_UNAVAILABLE

    play(scenario)


def test_pages_of_all_and_of_one() -> None:
    async def scenario() -> None:
        async with scene("a", "bb") as there:
            text = (await there.client.get("/metrics")).text
            assert 'a_total{replica="a"} 1.0\na_total{replica="bb"} 2.0\n' in text
            assert text.count("# TYPE a_total counter") == 1
            assert 'relaygr_router_members{replica="front",state="active"} 2.0' in text
            one = await there.client.get("/v1/status", params={"replica": "bb"})
            assert (one.status_code, one.headers["x-relay-owner"]) == (200, "bb")
            assert (await there.client.get("/v1/status")).headers["x-relay-owner"] == "a"
            unknown = await there.client.get("/v1/status", params={"replica": "z"})
            assert (unknown.status_code, unknown.json()["error"]["field"]) == (404, "replica")
            assert "<html" in (await there.client.get("/")).text
            there.calls.dead.add("bb")
            assert 'replica="bb"' not in (await there.client.get("/metrics")).text.replace('member="bb"', "")

    play(scenario)


def test_tickets_are_there_until_they_are_closed() -> None:
    roster = Roster()
    number, ticket = roster.open("a")
    assert (roster.ticket(number), len(roster)) == (ticket, 1)
    roster.close(number)
    assert (roster.ticket(number), len(roster)) == (None, 0)
    assert the_roster() is the_roster()
    roster.die("a")
    assert (roster.take_died(), roster.take_died()) == (frozenset("a"), frozenset())
