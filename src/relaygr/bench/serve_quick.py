"""`bench serve --quick`: a server of its own, what HTTP costs and what pre-inference costs the ranking."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from relaygr.bench.cell import random_ranker
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.serve import connect, first_error
from relaygr.bench.serve_interference import Interference, measure_interference
from relaygr.bench.serve_load import Progress, store_users
from relaygr.bench.serve_overhead import Overhead, measure_overhead
from relaygr.bench.serve_process import ServerProcess
from relaygr.bench.serve_spec import LoadSpec
from relaygr.bench.serve_users import Crowd, EventsBody
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.units import MIB
from relaygr.engine import Engine, UserHistory
from relaygr.kernels.select import choose
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker

_RANKED = 8
_QUEUE = 16
# So many prefixes fit beside the ranked ones, which are touched long before they are the oldest. The users
# that are signalled in turn are far more, so that each is evicted when its turn comes again.
_ROOM = 96
_SIGNALLED = 3 * _ROOM
_OWN_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickSpec:
    """What to measure.

    Attributes:
        rate: rankings a second of the interference runs; seconds: of each; pairs: runs with and without.
        samples: pairs of calls behind the overhead.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-small"
    history: int = 1024
    candidates: int = 128
    rate: float = 20.0
    seconds: float = 8.0
    warmup_s: float = 1.0
    pairs: int = 5
    samples: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        config = preset(self.preset)
        for option, value, low, high in (
            ("--history", self.history, 64, config.max_history),
            ("--candidates", self.candidates, 1, config.max_num_candidates),
            ("--rate", self.rate, 0.1, 1000),
            ("--duration", self.seconds, 0.2, 600),
            ("--pairs", self.pairs, 1, 1000),
            ("--samples", self.samples, 3, 1_000_000),
            ("--seed", self.seed, 0, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")
        if config.contextual:
            raise ConfigError("--preset", f"{self.preset!r} has profile slots; users here have none")

    def load(self, url: str, users: int, seed: int) -> LoadSpec:
        return LoadSpec(
            url=url,
            rate=self.rate,
            duration_s=self.seconds,
            warmup_s=self.warmup_s,
            users=users,
            history=self.history,
            candidates=self.candidates,
            new_events=0,
            prefix=False,
            lead_ms=0.0,
            deadline_ms=10_000.0,
            seed=seed,
        )


class QuickReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench serve --quick --json` writes.

    Attributes:
        overhead_p50_ms: of HTTP over the engine call alone, one request at a time.
        errors: requests that failed.
        chunk_ms: a step of a prefetch, measured.
        interference_ratio: (P99 of ranking beside pre-inference - chunk_ms) / P99 without, median.
    """

    overhead_p50_ms: float
    errors: int
    chunk_ms: float
    interference_ratio: float
    cpu: str
    cores: int
    preset: str
    dtype: str
    history: int
    candidates: int
    overhead: Overhead
    interference: Interference


def bench_quick(spec: QuickSpec, progress: Progress = lambda text: None) -> QuickReport:
    """Measure in a temporary folder, which is gone afterwards.

    Raises:
        BackendError: the server does not start or does not do its work.
    """
    with tempfile.TemporaryDirectory(prefix="relaygr-bench-") as name:
        folder = Path(name)
        progress("a model with random weights")
        dtype = choose("auto", "auto").dtype_name
        save_ranker(random_ranker(preset(spec.preset), torch.float32, spec.seed), folder / "model")
        engine = Engine.load(folder / "model", EngineConfig(dtype=dtype, device_bytes=_OWN_BYTES))  # type: ignore[arg-type]
        progress("starting a server")
        with ServerProcess(folder, _settings(folder, engine, spec)) as server:
            overhead, interference = _measure(server, engine, spec, progress)
            server.check()
    return QuickReport(
        overhead_p50_ms=overhead.overhead_p50_ms,
        errors=interference.errors,
        chunk_ms=interference.chunk_ms,
        interference_ratio=interference.interference_ratio,
        cpu=cpu_model(),
        cores=usable_cores(),
        preset=spec.preset,
        dtype=dtype,
        history=spec.history,
        candidates=spec.candidates,
        overhead=overhead,
        interference=interference,
    )


def _measure(
    server: ServerProcess, engine: Engine, spec: QuickSpec, progress: Progress
) -> tuple[Overhead, Interference]:
    load = spec.load(server.url, _RANKED, spec.seed)
    ranked, others = Crowd(load), Crowd(spec.load(server.url, _SIGNALLED, spec.seed + 1))
    user, own = _own_user(spec)
    try:
        asyncio.run(_store(load, (ranked, others), own, progress))
        progress(f"overhead, {spec.samples} pairs of calls")
        candidates = [1 + 7 * number for number in range(spec.candidates)]
        overhead = measure_overhead(server.port, engine, user, candidates, spec.samples)
        return overhead, asyncio.run(_interfere(load, ranked, others, spec.pairs, progress))
    except* BackendError as group:
        raise first_error(group) from None


def _settings(folder: Path, engine: Engine, spec: QuickSpec) -> list[str]:
    pages = engine.layout.pages_for(engine.model_config.prefix_tokens(spec.history))
    return [
        f"serving.model={folder / 'model'}",
        "store.url=sqlite://memory",
        f"engine.dtype={engine.choice.dtype_name}",
        f"engine.device_bytes={(_RANKED + _ROOM) * pages * engine.layout.page_bytes}",
        f"scheduler.prefix_queue_max={_QUEUE}",
        # The trigger would refuse what is at no risk, and host memory would give back what was evicted.
        "trigger.admit_all=true",
        "host.host_bytes=0",
    ]


async def _store(spec: LoadSpec, crowds: Sequence[Crowd], own: bytes, progress: Progress) -> None:
    async with connect(spec) as wire:
        await wire.demand("POST", "/v1/events", own)
        for crowd in crowds:
            await store_users(wire, crowd, progress)


async def _interfere(
    spec: LoadSpec, ranked: Crowd, others: Crowd, pairs: int, progress: Progress
) -> Interference:
    async with connect(spec) as wire:
        return await measure_interference(wire, ranked, others, spec, pairs, progress)


def _own_user(spec: QuickSpec) -> tuple[UserHistory, bytes]:
    """A user whose events are known on both sides, and the body that stores them."""
    items = [1 + 7919 * number % 50_000 for number in range(spec.history)]
    times = [1_700_000_000 + 60 * number for number in range(spec.history)]
    body = msgspec.json.encode(EventsBody("bench-own", items, times))
    return UserHistory("bench-own", items, times), body
