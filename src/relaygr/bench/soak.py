"""`bench soak`: many mixed requests to a server of its own, and whether anything is wrong or left of them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from relaygr.bench.cell import random_ranker
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.serve_load import Progress
from relaygr.bench.serve_process import ServerProcess
from relaygr.bench.serve_wire import Wire
from relaygr.bench.soak_check import wrong_rankings
from relaygr.bench.soak_people import Person
from relaygr.bench.soak_report import Held, SoakReport
from relaygr.bench.soak_work import Findings, Worker
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.engine import Engine
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker

_POOL_BYTES = 16 * MIB
_TIMEOUT_MS = 60_000.0
_WARM_SHARE = 0.25
_QUIET_S = 15.0
_MOST_SHOWN = 20
_SPARE_FILES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSpec:
    """How long, and how much is looked at.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    requests: int = 20_000
    workers: int = 8
    users: int = 64
    preset: str = "hstu-tiny"
    sample: float = 0.1
    max_growth_bytes: int = 256 * MIB
    seed: int = 0

    def __post_init__(self) -> None:
        for option, value, low, high in (
            ("--requests", self.requests, 10, 100_000_000),
            ("--workers", self.workers, 1, 256),
            ("--users", self.users, self.workers, 1_000_000),
            ("--sample", self.sample, 0, 1),
            ("--seed", self.seed, 0, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")
        shape = preset(self.preset)
        if shape.contextual or shape.tokens_per_event != 1 or shape.cacheable != "append":
            raise ConfigError(
                "--preset", f"{self.preset!r} has profile slots or is not cacheable by appending"
            )


class _Pool(msgspec.Struct, frozen=True):
    leases: int
    pinned_bytes: int


class _Queue(msgspec.Struct, frozen=True):
    ranks: int
    flights: int
    busy: bool
    in_progress: int


class _Status(msgspec.Struct, frozen=True):
    pool: _Pool
    queue: _Queue


def bench_soak(spec: SoakSpec, progress: Progress = lambda text: None) -> SoakReport:
    """Run in a temporary folder, which is gone afterwards.

    Raises:
        BackendError: the server does not start, or ends in the middle.
    """
    with tempfile.TemporaryDirectory(prefix="relaygr-soak-") as name:
        folder = Path(name)
        progress("two models with random weights")
        paths = [folder / "first", folder / "second"]
        for number, path in enumerate(paths):
            model = random_ranker(preset(spec.preset), torch.float32, spec.seed + number)
            save_ranker(model, path)
        progress("starting a server")
        with ServerProcess(folder, _settings(folder, paths[0])) as server:
            soak = _Soak(spec, server, paths, progress)
            begin_s = time.perf_counter()
            asyncio.run(soak.run())
            seconds = time.perf_counter() - begin_s
            server.check()
        progress(f"scoring {len(soak.found.samples)} rankings again")
        config = EngineConfig(dtype="fp32", device_bytes=_POOL_BYTES)
        engines = [Engine.load(path, config) for path in paths]
        wrong = wrong_rankings(soak.found.samples, {e.model_fp.hex(): e for e in engines})
    return _report(spec, soak, wrong, seconds)


def _settings(folder: Path, model: Path) -> list[str]:
    return [
        f"serving.model={model}",
        f"store.url=sqlite:///{folder.absolute() / 'events.db'}",
        "engine.dtype=fp32",
        f"engine.device_bytes={_POOL_BYTES}",
        f"scheduler.rank_deadline_ms={_TIMEOUT_MS:.0f}",
    ]


class _Soak:
    """The run itself."""

    def __init__(self, spec: SoakSpec, server: ServerProcess, models: list[Path], progress: Progress) -> None:
        self._spec, self._server, self._models, self._progress = spec, server, models, progress
        self.found = Findings()
        self.reloads = 0
        self.before: Held | None = None
        self.after: Held | None = None
        self._left = 0

    async def run(self) -> None:
        spec = self._spec
        async with Wire(self._server.url, spec.workers + 2, _TIMEOUT_MS) as wire:
            workers = [self._worker(wire, number) for number in range(spec.workers)]
            warm = round(spec.requests * _WARM_SHARE)
            await self._all(workers, warm)
            self.before = await self._quiet(wire)
            part = (spec.requests - warm) // 3
            for model in reversed(self._models):
                await asyncio.gather(self._all(workers, part), self._reload(wire, model))
            await self._all(workers, spec.requests - warm - 2 * part)
            self.after = await self._quiet(wire)

    def _worker(self, wire: Wire, number: int) -> Worker:
        spec = self._spec
        people = [Person(f"soak-{place}") for place in range(number, spec.users, spec.workers)]
        return Worker(wire, self._server.url, people, self.found, spec.sample, spec.seed + number)

    async def _all(self, workers: list[Worker], requests: int) -> None:
        """So many requests, shared among the workers as each is done with its last."""
        self._left = requests

        async def work(worker: Worker) -> None:
            while self._left > 0:
                self._left -= 1
                if self._left % 100 == 0:
                    self._show()
                await worker.one()

        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(work(worker))

    async def _reload(self, wire: Wire, model: Path) -> None:
        sent = await wire.send(
            "POST", "/v1/models/reload", msgspec.json.encode({"path": str(model.absolute())})
        )
        if sent.ok:
            self.reloads += 1
        else:
            self.found.fail("reload", sent)

    async def _quiet(self, wire: Wire) -> Held:
        """What is held once nothing waits or runs, or after a while although something does."""
        end_s = time.monotonic() + _QUIET_S
        while True:
            status = msgspec.json.decode(await wire.demand("GET", "/v1/status"), type=_Status)
            queue = status.queue
            # One request is in progress: the one that asks.
            waiting = queue.ranks + queue.flights + queue.busy + max(queue.in_progress - 1, 0)
            if not (waiting or status.pool.leases) or time.monotonic() > end_s:
                break
            await asyncio.sleep(0.1)
        return Held(
            rss_bytes=self._server.rss_bytes,
            files=self._server.open_files,
            leases=status.pool.leases,
            pinned_bytes=status.pool.pinned_bytes,
            waiting=waiting,
        )

    def _show(self) -> None:
        done, found = self.found.counts.total(), self.found
        self._progress(f"{done} of {self._spec.requests}, {found.failed} failed, {found.wrong} wrong")


def _report(spec: SoakSpec, soak: _Soak, wrong: list[str], seconds: float) -> SoakReport:
    assert soak.before is not None
    assert soak.after is not None
    found = soak.found
    report = SoakReport(
        cpu=cpu_model(),
        cores=usable_cores(),
        preset=spec.preset,
        seed=spec.seed,
        requests=found.counts.total(),
        seconds=seconds,
        counts=dict(sorted(found.counts.items())),
        failed=found.failed,
        wrong=found.wrong + len(wrong),
        checked=len(found.samples),
        reloads=soak.reloads,
        before=soak.before,
        after=soak.after,
        violations=[],
    )
    problems = [*found.problems, *wrong][:_MOST_SHOWN]
    return msgspec.structs.replace(report, violations=[*violations(spec, report), *problems])


def violations(spec: SoakSpec, report: SoakReport) -> list[str]:
    """What of a run must not be, a line each."""
    lines = []
    after, before = report.after, report.before
    if report.failed:
        lines.append(f"{report.failed} well-formed requests failed")
    if report.wrong:
        lines.append(f"{report.wrong} answers are wrong")
    if report.reloads != 2:
        lines.append(f"{report.reloads} of 2 reloads worked")
    if after.leases or after.pinned_bytes or after.waiting:
        lines.append(
            f"{after.leases} leases, {after.pinned_bytes} pinned bytes and {after.waiting} jobs are left over"
        )
    grown = report.grown_bytes
    if grown is not None and grown > spec.max_growth_bytes:
        lines.append(f"the server has gained {grown} bytes, limit {spec.max_growth_bytes}")
    if before.files is not None and after.files is not None and after.files > before.files + _SPARE_FILES:
        lines.append(f"the server has {after.files} open files, {before.files} before")
    return lines
