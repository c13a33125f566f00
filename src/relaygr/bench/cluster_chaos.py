"""The part `chaos` of `bench cluster`: one shape under load while its members and its model change."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from relaygr.bench.cluster_caller import Connect, LapError
from relaygr.bench.cluster_report import Phase, ShapeReport
from relaygr.bench.cluster_shape import Shape
from relaygr.bench.cluster_spec import ClusterSpec
from relaygr.bench.cluster_tally import (
    Visit,
    affinity_share,
    failed,
    hit_share,
    hung,
    moved_share,
    owners,
    percentile_ms,
    unsettled_s,
)
from relaygr.bench.cluster_visit import SPARE_MS, Asked, Visitor
from relaygr.bench.soak_check import wrong_rankings
from relaygr.bench.soak_people import Sample
from relaygr.core.errors import BackendError
from relaygr.engine import Engine

Tell = Callable[[str], None]


def run_chaos(
    name: str,
    spec: ClusterSpec,
    shape: Shape,
    connect: Connect,
    alone: str,
    update: Path,
    engines: Mapping[str, Engine],
    tell: Tell,
) -> ShapeReport:
    """Load `shape`, which changes to the model at `update`.

    Args:
        alone: URL of one server of the first model, with which the shape is compared.
        engines: of both models, in float32, by the fingerprint of their weights.

    Raises:
        BackendError: a server did not start.
    """
    run = _Run(spec, shape, connect, tell)
    asyncio.run(run.all(alone, update))
    wrong = wrong_rankings(run.samples, engines)
    phases = run.phases
    alone_ms, through_ms = ([one.took_ms for one in side if not one.error] for side in run.turns)
    hop = statistics.median(through_ms) - statistics.median(alone_ms) if alone_ms and through_ms else None
    return ShapeReport(
        shape=name,
        policy=shape.policy,
        phases=[_phase(name, visits, spec) for name, visits in phases.items()],
        hop_ms=hop,
        affinity_share=affinity_share(phases["steady"]),
        failed_after_kill=failed(phases["kill"]),
        hung_after_kill=hung(phases["kill"], spec.deadline_ms + SPARE_MS),
        unsettled_after_kill_s=unsettled_s(phases["kill"], run.acted_s["kill"]),
        failed_in_add=failed(phases["add"]),
        moved_share_after_add=moved_share(owners(phases["recovered"]), owners(phases["added"])),
        # One is added to those that are left of a kill.
        moved_share_wanted=1 / (spec.replicas + (1 if shape.replaces else 0)),
        failed_in_update=failed(phases["update"]),
        mixed_versions=len(wrong),
        checked=len(run.samples),
        versions=dict(Counter(one.model for one in run.samples)),
        wrong=wrong[:20],
    )


def _phase(name: str, visits: list[Visit], spec: ClusterSpec) -> Phase:
    return Phase(
        name=name,
        visits=len(visits),
        failed=failed(visits),
        hung=hung(visits, spec.deadline_ms + SPARE_MS),
        affinity_share=affinity_share(visits),
        hit_share=hit_share(visits),
        p50_ms=percentile_ms(visits, 0.5),
        p99_ms=percentile_ms(visits, 0.99),
        longest_ms=percentile_ms(visits, 1.0),
    )


class _Run:
    def __init__(self, spec: ClusterSpec, shape: Shape, connect: Connect, tell: Tell) -> None:
        self._spec, self._shape, self._connect, self._tell = spec, shape, connect, tell
        self._random = random.Random(spec.seed)
        self.phases: dict[str, list[Visit]] = {}
        self.acted_s: dict[str, float] = {}
        self.turns: tuple[list[Visit], list[Visit]] = ([], [])  # of the server alone, of the shape
        self.samples: list[Sample] = []

    async def all(self, alone: str, model: Path) -> None:
        spec, shape = self._spec, self._shape
        asked = Asked(
            events=spec.events, candidates=spec.candidates, deadline_ms=spec.deadline_ms, seed=spec.seed
        )
        single = Visitor(asked, self._connect, lambda: [alone])
        async with single, Visitor(asked, self._connect, lambda: shape.addresses) as visitor:
            await self._compare(single, visitor)
            await self._load(visitor, "steady")
            await self._load(visitor, "kill", lambda: asyncio.to_thread(shape.kill))
            await self._load(visitor, "recovered")
            await self._load(visitor, "add", lambda: asyncio.to_thread(shape.add))
            await self._load(visitor, "added")
            await self._load(visitor, "update", lambda: shape.update(model, self._reload))
        self.samples = visitor.samples

    async def _reload(self, url: str, model: Path) -> None:
        client = self._connect(url)
        try:
            await client.reload(str(model))
        except LapError as error:
            raise BackendError(f"{url} did not change its model: {error}") from error
        finally:
            await client.close()

    async def _compare(self, single: Visitor, visitor: Visitor) -> None:
        """Every other visit goes to the server alone, so that both see the same moods of the machine."""
        self._tell("one server alone, by turns")
        sides = itertools.cycle((single, visitor))
        due = (side.visit(self._draw()) for side in itertools.islice(sides, self._count))
        found = await self._paced(due)
        self.turns = found[::2], found[1::2]

    async def _load(
        self, visitor: Visitor, name: str, event: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """Visits at the rate for a phase, or until `event` is over, which begins after a quarter of it."""
        self._tell(name)
        acting: asyncio.Task[None] | None = None

        def due() -> Iterator[Coroutine[Any, Any, Visit]]:
            nonlocal acting
            for number in itertools.count():
                if event is not None and number == self._count // 4:
                    self.acted_s[name] = visitor.now_s()
                    acting = asyncio.create_task(event())
                if number >= self._count and (acting is None or acting.done()):
                    return
                yield visitor.visit(self._draw(), sample=name == "update")

        self.phases[name] = await self._paced(due())
        if acting is not None:
            await acting

    async def _paced(self, due: Iterator[Coroutine[Any, Any, Visit]]) -> list[Visit]:
        """Open loop: each is begun when it is due, whatever became of the ones before."""
        begin_s = time.perf_counter()
        tasks: list[asyncio.Task[Visit]] = []
        for number, visit in enumerate(due):
            await asyncio.sleep(max(0.0, begin_s + number / self._spec.rate - time.perf_counter()))
            tasks.append(asyncio.create_task(visit))
        return list(await asyncio.gather(*tasks))

    @property
    def _count(self) -> int:
        return round(self._spec.rate * self._spec.phase_s)

    def _draw(self) -> int:
        return self._random.randrange(self._spec.users)
