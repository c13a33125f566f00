"""The phases of a cluster's load, over a shape that only pretends: what is planted is what is reported."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from relaygr.bench.cluster_caller import LapError, Ranking, Signal
from relaygr.bench.cluster_chaos import run_chaos
from relaygr.bench.cluster_shape import Reload, Setup, Shape
from relaygr.bench.cluster_shapes import SHAPES
from relaygr.bench.cluster_spec import ClusterSpec
from relaygr.core.errors import BackendError

SPEC = ClusterSpec(replicas=3, users=60, rate=200, phase_s=0.5, events=4, candidates=2, deadline_ms=50)
URL, ALONE = "http://shape", "http://alone"


class Pretended(Shape):
    """Members own users by their number; one that was killed is found out after `blind_s`."""

    policy = "none"

    def __init__(self, setup: Setup, blind_s: float = 0.0, broken: bool = False) -> None:
        super().__init__(setup)
        self.members, self.dead, self.models = ["r0", "r1", "r2"], "", ["old"] * 4
        self._blind_s, self._broken, self._killed_s = blind_s, broken, 0.0

    addresses = property(lambda self: [URL])
    replica_bytes = None

    def start(self) -> None:
        """Nothing has to."""

    def kill(self) -> None:
        self.dead, self._killed_s = "r0", time.monotonic()

    def add(self) -> None:
        if self._broken:
            raise BackendError("no room")
        time.sleep(0.8)  # longer than a phase
        self.members.append("r3")

    async def update(self, model: Path, reload: Reload) -> None:
        for name in self.members:
            await reload(f"{URL}/{name}", model)
            await asyncio.sleep(0.05)

    def owner(self, user: str) -> str:
        if self.dead in self.members and time.monotonic() > self._killed_s + self._blind_s:
            self.members.remove(self.dead)
        return self.members[int(user.removeprefix("user-")) % len(self.members)]


@dataclass
class Answer:
    owner: str
    model: str = "old"
    path: str = "hit"
    hint: None = None
    served_tokens: int = 4
    scores: list[list[float]] = field(default_factory=lambda: [[0.0]])


@dataclass
class Client:
    """As good as what it asks, except for users that are not."""

    url: str
    shape: Pretended
    split: frozenset[str] = frozenset()
    models: dict[str, str] = field(default_factory=dict)
    refuses: str = ""
    closed: bool = False

    async def prefix(self, user: str, items: list[int], times: list[int], deadline_ms: float) -> Signal:
        return self._answer(user)

    async def rank(
        self, user: str, items: list[int], times: list[int], candidates: list[int], deadline_ms: float,
        signal: Signal,
    ) -> Ranking:  # fmt: skip
        await asyncio.sleep(0.02 if self.url == URL else 0.01)
        answer = self._answer(user)
        if user in self.split:
            answer.owner, answer.path = "elsewhere", "full"
        return answer

    def _answer(self, user: str) -> Answer:
        owner = "alone" if self.url == ALONE else self.shape.owner(user)
        if owner == self.shape.dead:
            raise LapError("UnavailableError")
        return Answer(owner, self.models.get(owner, "old"))

    async def reload(self, model: str) -> None:
        name = self.url.rsplit("/", 1)[1]
        if name == self.refuses:
            raise LapError("RequestRejectedError")
        self.models[name] = model

    async def close(self) -> None:
        self.closed = True


class Clients:
    def __init__(self, shape: Pretended, split: frozenset[str] = frozenset(), refuses: str = "") -> None:
        self.shape, self.split, self.refuses = shape, split, refuses
        self.all: list[Client] = []
        self.models: dict[str, str] = {}

    def __call__(self, url: str) -> Client:
        self.all.append(Client(url, self.shape, self.split, self.models, self.refuses))
        return self.all[-1]


def setup(folder: Path) -> Setup:
    return Setup(folder=folder, settings=(), count=3, budget_ms=50)


def test_every_phase_sees_what_happened_in_it(tmp_path: Path) -> None:
    shape = Pretended(setup(tmp_path), blind_s=0.2)
    clients, told = Clients(shape, frozenset({"user-1"})), []
    report = run_chaos("pretended", SPEC, shape, clients, ALONE, Path("new"), {}, told.append)
    phases = {one.name: one for one in report.phases}
    assert list(phases) == ["steady", "kill", "recovered", "add", "added", "update"]
    assert all(phases[name].visits == 100 for name in ("steady", "kill", "recovered", "added"))
    assert phases["add"].visits >= 180  # until the new one is there
    # A third of the users for 0.2 of 0.5 seconds, and those on their way.
    assert 5 <= report.failed_after_kill <= 50
    assert report.failed_after_kill == phases["kill"].failed == sum(one.failed for one in report.phases)
    assert 0.05 <= report.unsettled_after_kill_s <= 0.5
    assert phases["steady"].affinity_share == report.affinity_share
    assert 0.9 < report.affinity_share < 1  # one user of 60 is split
    assert phases["steady"].hit_share == report.affinity_share
    # Of numbers modulo 2 and modulo 3, two in three differ.
    assert 0.5 <= report.moved_share_after_add <= 0.8
    assert report.moved_share_wanted == pytest.approx(1 / 3)  # one of three is killed, one is added to two
    assert 5 <= report.hop_ms <= 15
    # Nobody has these models, so that every ranking of the update is wrong.
    assert set(report.versions) == {"old", "new"}
    assert report.mixed_versions == report.checked == phases["update"].visits
    assert "which is no model of this run" in report.wrong[0]
    assert clients.models == dict.fromkeys(("r1", "r2", "r3"), "new")
    assert all(one.closed for one in clients.all)
    assert told == ["one server alone, by turns", *phases]


def test_who_is_added_to_more_takes_less(tmp_path: Path) -> None:
    """A killed replica that was replaced is there again when one is added."""
    shape = Pretended(setup(tmp_path))
    shape.replaces = True  # type: ignore[misc]
    report = run_chaos("pretended", SPEC, shape, Clients(shape), ALONE, Path("new"), {}, str)
    assert report.moved_share_wanted == pytest.approx(1 / 4)
    assert [name for name, one in SHAPES.items() if one.replaces] == ["ray"]


@pytest.mark.parametrize(
    "said", ["no room", "http://shape/r1 did not change its model: RequestRejectedError"]
)
def test_what_goes_wrong_in_an_event_ends_the_run(said: str, tmp_path: Path) -> None:
    shape = Pretended(setup(tmp_path), broken=said == "no room")
    clients = Clients(shape, refuses="r1")
    with pytest.raises(BackendError, match=said):
        run_chaos("pretended", SPEC, shape, clients, ALONE, Path("new"), {}, str)
    assert all(one.closed for one in clients.all)
