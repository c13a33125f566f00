"""Two instances over one store: what a router says makes one of them see what the other has written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving_apps import App, close_scores, events, offline, running, settings
from test_users import OWNER, Slow, batch, with_users

from relaygr.data.stores import open_store
from relaygr.engine import RankRequest, UserHistory
from relaygr.serving import service
from relaygr.serving.users import Users

CANDIDATES = [3, 1, 2]
WHOLE = events(40)


def part(first: int, stop: int) -> dict[str, Any]:
    return {name: values[first:stop] for name, values in WHOLE.items()}


class Shared:
    """A store of two services, which neither closes."""

    def __init__(self) -> None:
        self.store = open_store("sqlite://memory")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def close(self) -> None:
        """The other one may still need it."""


@pytest.fixture(scope="module")
def pair(model_folder: Path) -> Iterator[tuple[App, App]]:
    shared = Shared()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "open_store", lambda *_: shared)
        with running(settings(model_folder)) as one, running(settings(model_folder)) as other:
            yield one, other
    shared.store.close()


def rank(app: App, user: str, **headers: str) -> Any:
    body = {"user": user, "candidates": CANDIDATES}
    return app.post(
        "/v1/rank", body, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


def written_elsewhere(pair: tuple[App, App], user: str) -> App:
    """The instance that ranked the user first, and does not know what the other one was told."""
    one, other = pair
    one.post("/v1/events", {"user": user, **part(0, 25)})
    assert rank(one, user)["served_tokens"] == 25
    other.post("/v1/events", {"user": user, **part(25, 40)})
    return one


def right(folder: Path, answer: dict[str, Any], user: str) -> None:
    assert answer["served_tokens"] == 40
    history = UserHistory(user, *WHOLE.values())
    close_scores(answer["scores"], offline(folder).rank(RankRequest(history, CANDIDATES)).logits)


def test_r15_a_user_who_was_elsewhere_is_read_again(pair: tuple[App, App], model_folder: Path) -> None:
    one = written_elsewhere(pair, "moved")
    bystander = written_elsewhere(pair, "bystander")
    before = one.service.users.held(("default", "bystander"))
    right(model_folder, rank(one, "moved", x_relay_moved="1"), "moved")
    assert bystander.service.users.held(("default", "bystander")) is before


@pytest.mark.parametrize("lap", ["prefix", "state", "infer"])
def test_r15_on_every_way(pair: tuple[App, App], lap: str) -> None:
    one = written_elsewhere(pair, lap)
    told = {"x-relay-moved": "1"}
    if lap == "prefix":
        assert one.post("/v1/prefix", {"user": lap}, headers=told)["tokens"] == 40
    elif lap == "state":
        assert one.call("GET", f"/v1/users/{lap}/state", headers=told).json()["events"] == 40
    else:
        inputs = [
            {"name": "user", "shape": [1], "datatype": "BYTES", "data": [lap]},
            {"name": "candidates", "shape": [3], "datatype": "INT64", "data": CANDIDATES},
        ]
        one.post("/v2/models/ranker/infer", {"inputs": inputs}, headers=told)
        assert len(one.service.users.held(("default", lap)) or ()) == 40


def test_r15_after_a_change_of_the_members_everybody_is_read_again(
    pair: tuple[App, App], model_folder: Path
) -> None:
    for epoch, user in ((3, "first"), (4, "second")):  # the first that it hears of, too
        one = written_elsewhere(pair, user)
        right(model_folder, rank(one, user, x_relay_epoch=str(epoch)), user)
        assert one.call("GET", "/v1/relay/feedback").json()["epoch"] == epoch
    held = one.service.users.held(("default", "second"))
    for known in ("4", "2", "0", "-1", "x", "9" * 30, ""):
        rank(one, "second", x_relay_epoch=known)
    assert one.service.users.held(("default", "second")) is held


def test_a_load_that_is_doubted_while_it_runs_is_not_kept() -> None:
    async def test(users: Users, store: Slow) -> None:
        store.inner.append(*OWNER, batch(1, 2))
        store.gate.clear()
        early = asyncio.ensure_future(users.get(OWNER))
        while not store.loads:
            await asyncio.sleep(0.001)
        store.inner.append(*OWNER, batch(3))  # by another instance
        users.distrust()
        late = asyncio.ensure_future(users.get(OWNER))
        await asyncio.sleep(0.01)
        store.gate.set()
        assert len(await early) == 2
        assert len(await late) == 3
        assert len(users.held(OWNER) or ()) == 3
        assert store.loads == 2

    with_users(test)


def test_a_load_of_another_user_is_not_kept_either_but_right() -> None:
    async def test(users: Users, store: Slow) -> None:
        store.inner.append(*OWNER, batch(1, 2))
        store.gate.clear()
        loading = asyncio.ensure_future(users.get(OWNER))
        while not store.loads:
            await asyncio.sleep(0.001)
        users.distrust(("t", "somebody else"))
        store.gate.set()
        assert len(await loading) == 2
        assert len(await users.get(OWNER)) == 2

    with_users(test)


def test_an_append_behind_what_another_instance_wrote() -> None:
    async def test(users: Users, store: Slow) -> None:
        await users.append(OWNER, batch(1, 2), None)
        assert len(await users.get(OWNER)) == 2
        store.inner.append(*OWNER, batch(3))
        await users.append(OWNER, batch(4), None)
        assert len(await users.get(OWNER)) == 4

    with_users(test)
