"""The part `scale` of `bench cluster`: throughput of 1, 2, 4 replicas on one machine."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from relaygr.bench.cell import random_ranker
from relaygr.bench.cluster_caller import Connect
from relaygr.bench.cluster_engine import Engines, engines
from relaygr.bench.cluster_report import ScaleReport
from relaygr.bench.cluster_scale_tally import Window, limit_note, points, threads_of, too_large
from relaygr.bench.cluster_shape import Setup, Shape, replica_settings
from relaygr.bench.cluster_shapes import SHAPES
from relaygr.bench.cluster_spec import ScaleSpec
from relaygr.bench.cluster_tally import Visit
from relaygr.bench.cluster_visit import Asked, Visitor
from relaygr.bench.machine import memory_bytes, usable_cores
from relaygr.config.settings import EngineConfig
from relaygr.core.units import MIB
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker

_POOL_BYTES = 256 * MIB
_SETTLE_S = 1.5

Tell = Callable[[str], None]


def run_scale(shape: str, spec: ScaleSpec, connect: Connect, seed: int, tell: Tell) -> ScaleReport:
    """Load deployments by turns, which stand beside one another; BackendError if one does not start."""
    threads = threads_of(usable_cores(), spec.counts[-1])
    asked = Asked(events=spec.events, candidates=spec.candidates, deadline_ms=spec.deadline_ms, seed=seed)
    config = EngineConfig(dtype="fp32", threads=threads, device_bytes=_POOL_BYTES)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaygr-scale-")))
        model = folder / "model"
        save_ranker(random_ranker(preset(spec.preset), torch.float32, seed), model)
        ground = _Ground(shape, spec, folder, model, threads, stack, tell)
        limit = stack.enter_context(engines(max(ground.shapes), model, config, asked))
        run = _Run(spec, ground.shapes, limit, connect, asked, tell)
        asyncio.run(run.all())
    return ScaleReport(
        shape=shape,
        preset=spec.preset,
        events=spec.events,
        candidates=spec.candidates,
        clients=spec.clients,
        threads=threads,
        rounds=spec.rounds,
        window_s=spec.window_s,
        points=points(run.windows, run.limits),
        note=limit_note(usable_cores(), threads, list(ground.shapes)),
        skipped=ground.skipped,
    )


class _Ground:
    """The deployments that fit; the first always stands, so that the others are judged by its memory."""

    def __init__(
        self,
        name: str,
        spec: ScaleSpec,
        folder: Path,
        model: Path,
        threads: int,
        stack: ExitStack,
        tell: Tell,
    ) -> None:
        self.shapes: dict[int, Shape] = {}
        self.skipped: dict[int, str] = {}
        replica_bytes: int | None = None
        for count in spec.counts:
            # As many engines alone stand beside them.
            if self.shapes and (why := too_large(2 * count, replica_bytes, memory_bytes()[1])):
                self.skipped[count] = why
                continue
            tell(f"starting {count} replicas")
            setup = Setup(
                folder=folder / str(count),
                settings=replica_settings(model, threads, _POOL_BYTES),
                count=count,
                budget_ms=spec.deadline_ms,
                spare=0,
                router=(),
            )
            self.shapes[count] = stack.enter_context(SHAPES[name](setup))
            used = self.shapes[count].replica_bytes
            replica_bytes = None if used is None else used + _POOL_BYTES


class _Run:
    def __init__(
        self,
        spec: ScaleSpec,
        shapes: dict[int, Shape],
        limit: Engines,
        connect: Connect,
        asked: Asked,
        tell: Tell,
    ) -> None:
        self._spec, self._shapes, self._limit = spec, shapes, limit
        self._connect, self._asked, self._tell = connect, asked, tell
        self._numbers = itertools.count()  # every visit is of a new user, whose prefix nobody has
        self.windows: dict[int, list[Window]] = {count: [] for count in shapes}
        self.limits: dict[int, list[float]] = {count: [] for count in shapes}

    async def all(self) -> None:
        """There and back again, so that what drifts is no advantage of the first or the last."""
        spec = self._spec
        for number in range(spec.rounds):
            for count in list(self._shapes)[:: -1 if number % 2 else 1]:
                self._tell(f"round {number + 1} of {spec.rounds}, {count} replicas")
                self.windows[count].append(await self._window(count))
                seconds = spec.window_s / 2
                self.limits[count].append(await asyncio.to_thread(self._limit.rps, count, seconds))

    async def _window(self, count: int) -> Window:
        """Closed loop: so many visits are always on their way; the first seconds do not count."""
        shape, spec = self._shapes[count], self._spec
        found: list[Visit] = []
        async with Visitor(self._asked, self._connect, lambda: shape.addresses) as visitor:
            end_s = visitor.now_s() + _SETTLE_S + spec.window_s

            async def client() -> None:
                while visitor.now_s() < end_s:
                    found.append(await visitor.visit(next(self._numbers)))

            await asyncio.gather(*(client() for _ in range(spec.clients * count)))
        return Window([one for one in found if end_s - spec.window_s <= one.at_s < end_s], spec.window_s)
