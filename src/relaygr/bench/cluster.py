"""`bench cluster`: replicas under load, while one is killed, one is added and the model changes."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from relaygr.bench.cell import random_ranker
from relaygr.bench.cluster_ray import RayShape
from relaygr.bench.cluster_shape import FORGETFUL, GatewayShape, PeersShape, Shape
from relaygr.bench.cluster_tally import Visit, affinity_share, failed, hit_share, hung, moved_share, owners
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.soak_check import wrong_rankings
from relaygr.bench.soak_people import Sample
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.engine import Engine
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker

Ints = npt.NDArray[np.int64]


class LapError(Exception):
    """A lap failed for good: the client has done all its retries. Its text is the kind of failure."""


class Signal(Protocol):
    """What the first lap said: who has the prefix, and what brings the second one there."""

    @property
    def owner(self) -> str | None: ...

    @property
    def hint(self) -> Any: ...


class Ranking(Protocol):
    """What the second lap said."""

    @property
    def owner(self) -> str | None: ...

    @property
    def model(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def served_tokens(self) -> int: ...

    @property
    def scores(self) -> Any: ...


class Caller(Protocol):
    """A client with its own policy of retries, at one address. All raise LapError."""

    async def prefix(self, user: str, items: list[int], times: list[int], deadline_ms: float) -> Signal: ...

    async def rank(
        self,
        user: str,
        items: list[int],
        times: list[int],
        candidates: list[int],
        deadline_ms: float,
        signal: Signal,
    ) -> Ranking: ...

    async def reload(self, model: str) -> None: ...

    async def close(self) -> None: ...


Connect = Callable[[str], Caller]
"""Makes a client of a URL."""

SHAPES: dict[str, type[Shape]] = {"gateway": GatewayShape, "peers": PeersShape, "ray": RayShape}
_PRESET = "hstu-tiny"
_LEAD_S = 0.05
_SPARE_MS = 1000.0  # of the client itself, beyond a lap's deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What to run.

    Attributes:
        rate: visits a second, open loop, spread over `users` at random. phase_s: of each phase.
        events: of each user's history. deadline_ms: of each lap.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    shape: str = "gateway"
    replicas: int = 3
    users: int = 1000
    rate: float = 30.0
    phase_s: float = 20.0
    events: int = 128
    candidates: int = 64
    deadline_ms: float = 2000.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ConfigError("--shape", f"{self.shape!r} is none of {', '.join(SHAPES)}")
        for option, value, low, high in (
            ("--replicas", self.replicas, 2, 64),
            ("--users", self.users, 1, 1_000_000),
            ("--rate", self.rate, 0.1, 10_000),
            ("--phase-s", self.phase_s, 0.5, 3600),
            ("--events", self.events, 1, 100_000),
            ("--candidates", self.candidates, 1, 16_384),
            ("--deadline-ms", self.deadline_ms, 1, 600_000),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Visits of a phase; times of rankings from when they were sent."""

    name: str
    visits: int
    failed: int
    hung: int
    affinity_share: float | None
    hit_share: float | None
    p50_ms: float


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench cluster` writes.

    Attributes:
        load: the machine's load average when it ended.
        hop_ms: P50 of rankings in the steady phase, less that of one replica that is asked directly; None
            where replicas send requests on themselves.
        affinity_share: of the steady phase's visits, those with both laps on one replica.
        failed_after_kill, failed_in_update: visits of that phase that failed after the client's retries.
        hung_after_kill: laps that took longer than their deadline and the client's own second.
        moved_share_after_add: of users who were ranked in the phases before and after, those who moved.
        checked, mixed_versions: rankings of the update, and those whose scores are not their model's.
        versions: rankings of the update by model.
        wrong: the first of the mixed ones.
    """

    cpu: str
    cores: int
    load: float
    shape: str
    replicas: int
    users: int
    rate: float
    phases: list[Phase]
    hop_ms: float | None
    affinity_share: float | None
    failed_after_kill: int
    hung_after_kill: int
    moved_share_after_add: float | None
    failed_in_update: int
    mixed_versions: int
    checked: int
    versions: dict[str, int]
    wrong: list[str]


def bench_cluster(spec: ClusterSpec, connect: Connect, tell: Callable[[str], None]) -> ClusterReport:
    """Run in a temporary folder; BackendError if a server does not start."""
    with tempfile.TemporaryDirectory(prefix="relaygr-cluster-") as name:
        folder = Path(name)
        paths = [folder / "first", folder / "second"]
        for number, path in enumerate(paths):
            save_ranker(random_ranker(preset(_PRESET), torch.float32, spec.seed + number), path)
        settings = (
            f"serving.model={paths[0]}",
            "serving.log_level=error",
            "serving.calibrate_s=0",
            "store.url=sqlite://memory",
            "engine.dtype=fp32",
            "engine.threads=1",
            "engine.device_bytes=256MiB",
            "trigger.admit_all=true",
            *FORGETFUL,
        )
        tell("starting servers")
        with SHAPES[spec.shape](folder, settings, spec.replicas, spec.replicas + 1) as shape:
            run = _Run(spec, shape, connect, tell)
            asyncio.run(run.all(paths[1]))
        engines = [Engine.load(p, EngineConfig(dtype="fp32", device_bytes=16 * MIB)) for p in paths]
        wrong = wrong_rankings(run.samples, {e.model_fp.hex(): e for e in engines})
    steady, kill, _, add, update = run.phases
    direct = [one.took_ms for one in run.direct if not one.error]
    through = [one.took_ms for one in steady if not one.error]
    return ClusterReport(
        cpu=cpu_model(),
        cores=usable_cores(),
        load=round(os.getloadavg()[0], 2),
        shape=spec.shape,
        replicas=spec.replicas,
        users=spec.users,
        rate=spec.rate,
        phases=[_phase(name, visits, spec) for name, visits in zip(_NAMES, run.phases, strict=True)],
        hop_ms=statistics.median(through) - statistics.median(direct) if direct and through else None,
        affinity_share=affinity_share(steady),
        failed_after_kill=failed(kill),
        hung_after_kill=hung(kill, spec.deadline_ms + _SPARE_MS),
        moved_share_after_add=moved_share(run.before_add, owners(add)),
        failed_in_update=failed(update),
        mixed_versions=len(wrong),
        checked=len(run.samples),
        versions=dict(Counter(one.model for one in run.samples)),
        wrong=wrong[:20],
    )


_NAMES = ("steady", "kill", "recovered", "add", "update")


def _phase(name: str, visits: list[Visit], spec: ClusterSpec) -> Phase:
    return Phase(
        name=name,
        visits=len(visits),
        failed=failed(visits),
        hung=hung(visits, spec.deadline_ms + _SPARE_MS),
        affinity_share=affinity_share(visits),
        hit_share=hit_share(visits),
        p50_ms=statistics.median(one.took_ms for one in visits),
    )


class _Run:
    def __init__(
        self, spec: ClusterSpec, shape: Shape, connect: Connect, tell: Callable[[str], None]
    ) -> None:
        self._spec, self._shape, self._connect, self._tell = spec, shape, connect, tell
        self._random = random.Random(spec.seed)
        self._clients: dict[str, Caller] = {}
        self._turn = itertools.count()
        self._only: list[str] = []  # in place of the shape's addresses
        self.phases: list[list[Visit]] = []
        self.direct: list[Visit] = []
        self.before_add: dict[str, str] = {}
        self.samples: list[Sample] = []

    async def all(self, model: Path) -> None:
        names = list(self._shape.ports)
        try:
            if self._shape.apart:
                self._only = [self._shape.replicas[names[0]].url]
                await self._load("direct", self._nothing())
                self.direct, self._only = self.phases.pop(), []
            await self._load("steady", self._nothing())
            await self._load("kill", asyncio.to_thread(self._shape.kill, names[0]))
            await self._load("recovered", self._nothing())
            self.before_add = owners(self.phases[-1])
            await asyncio.to_thread(self._shape.add, names[-1])
            await self._load("add", self._nothing())
            await self._load("update", self._update(model), sample=True)
        finally:
            for client in self._clients.values():
                await client.close()

    async def _nothing(self) -> None:
        """A phase in which nothing happens."""

    async def _update(self, model: Path) -> None:
        """One replica after the other."""
        if await asyncio.to_thread(self._shape.update, model):
            return
        for replica in list(self._shape.replicas.values()):
            client = self._connect(replica.url)
            try:
                await client.reload(str(model))
            finally:
                await client.close()

    async def _load(self, name: str, event: Coroutine[Any, Any, None], sample: bool = False) -> None:
        """Visits at the rate, and `event` after a quarter of the phase."""
        self._tell(name)
        spec = self._spec
        count = round(spec.rate * spec.phase_s)
        begin_s = time.perf_counter()
        tasks: list[asyncio.Task[Visit]] = []
        acting: asyncio.Task[None] | None = None
        for number in range(count):
            await asyncio.sleep(max(0.0, begin_s + number / spec.rate - time.perf_counter()))
            if number == count // 4:
                acting = asyncio.create_task(event)
            tasks.append(asyncio.create_task(self._visit(sample)))
        self.phases.append(list(await asyncio.gather(*tasks)))
        if acting is not None:
            await acting

    async def _visit(self, sample: bool) -> Visit:
        spec = self._spec
        number = self._random.randrange(spec.users)
        user = f"user-{number}"
        draw = np.random.default_rng((spec.seed, number))
        items = draw.integers(1, 1 << 20, spec.events)
        times = 1_700_000_000 + 600 * np.arange(spec.events)
        candidates = draw.integers(1, 1 << 20, spec.candidates)
        past = items.tolist(), times.tolist()
        addresses = self._only or self._shape.addresses
        url = addresses[next(self._turn) % len(addresses)]
        if url not in self._clients:
            self._clients[url] = self._connect(url)
        client = self._clients[url]
        first = None
        sent_s = time.perf_counter()
        try:
            signal = await client.prefix(user, *past, spec.deadline_ms)
            first = signal.owner
            await asyncio.sleep(_LEAD_S)
            sent_s = time.perf_counter()
            answer = await client.rank(user, *past, candidates.tolist(), spec.deadline_ms, signal)
        except LapError as error:
            took_ms = 1000 * (time.perf_counter() - sent_s)
            return Visit(user=user, took_ms=took_ms, first=first, error=str(error))
        took_ms = 1000 * (time.perf_counter() - sent_s)
        if sample:
            self._keep(user, items, times, candidates, answer)
        return Visit(user=user, took_ms=took_ms, first=first, second=answer.owner, path=answer.path)

    def _keep(self, user: str, items: Ints, times: Ints, candidates: Ints, answer: Ranking) -> None:
        self.samples.append(
            Sample(
                user=user,
                items=items.tolist(),
                times=times.tolist(),
                events=len(items),
                candidates=candidates.tolist(),
                scores=answer.scores,
                model=answer.model,
                path=answer.path,
                served_tokens=answer.served_tokens,
            )
        )
