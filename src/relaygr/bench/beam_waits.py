"""`relaygr bench beam --waits`: what the scheduler of generations adds to a request, and to an idle machine.

Requests take turns with calls of the backend itself, so that a slow second of the machine hits both. Most of
a request is computing, whose time varies by more than what is looked for; so what lies outside of its steps
is told apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from relaygr.bench.beam_case import Prompts, make_catalogues, make_decoder, make_generator
from relaygr.bench.beam_load import Door, RatePoint, play
from relaygr.bench.beam_stays import Limits, Stay, longest_free_s
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.timing import Timing
from relaygr.core.units import MIB
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.interface import Step
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.kernels.threads import serve_with_threads
from relaygr.models.decoder.decoder import Decoder

_DEADLINE_MS = 60_000.0
_SETTLE_S = 0.5  # threads of products spin for a while after the last one


@dataclass(frozen=True, slots=True)
class WaitsSpec:
    """What is measured.

    Attributes:
        width, prompt, sids: of each request and of the catalogue.
        runs: requests one at a time, and as many direct calls.
        loads: rates, as shares of what requests one after the other would reach.
        load_requests: sent at each rate, in each kind of scheduling.
        idle_s: how long the processor time of an idle scheduler is counted.
        threads: of the products.
    """

    width: int = 32
    prompt: int = 128
    sids: int = 10_000
    runs: int = 200
    loads: tuple[float, ...] = (0.5, 1.0, 2.0)
    load_requests: int = 100
    idle_s: float = 5.0
    dtype: str = "bf16"
    threads: int = 2
    seed: int = 0


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of milliseconds."""

    p50: float
    p99: float

    def over(self, other: Times) -> Times:
        return Times(p50=self.p50 - other.p50, p99=self.p99 - other.p99)


class Lone(msgspec.Struct, frozen=True, kw_only=True):
    """Requests one at a time, in one way.

    Attributes:
        wait_ms: from the call to the first step: check, admission, and what else there is to wait for.
        outside_ms: of a request, what is no step of it.
        total_ms: from the call to the answer.
    """

    wait_ms: Times
    outside_ms: Times
    total_ms: Times


class LoadedWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at random times.

    Attributes:
        longest_ms: the longest that a request waited at a stretch while it might have started.
        limit_ms: `max_wait_ms`; longest_step_ms: between steps, requests join where scheduling is continuous.
    """

    scheduling: str
    load: float
    point: RatePoint
    longest_ms: float
    limit_ms: float
    longest_step_ms: float


class WaitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured where.

    Attributes:
        closed_wait_ms: from queueing to admission, of requests made while the answer before is given.
        idle_share: processor time of the process over wall time, with an idle scheduler.
    """

    spec: dict[str, Any]
    direct: Lone
    scheduled: Lone
    closed_wait_ms: Times
    loaded: tuple[LoadedWaits, ...]
    idle_share: float
    cores: int
    cpu: str

    @property
    def added_wait_ms(self) -> Times:
        return self.scheduled.wait_ms.over(self.direct.wait_ms)

    @property
    def added_ms(self) -> Times:
        """To the latency, computing left out."""
        return self.scheduled.outside_ms.over(self.direct.outside_ms)


@dataclass(slots=True)
class _Run:
    """One request: its call, the beginning of its first step, its end, and the sum of its steps."""

    called_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    steps_s: float = 0.0

    def step(self, step: Step) -> None:
        """Told when it is over."""
        self.first_s = self.first_s or time.monotonic() - step.seconds
        self.steps_s += step.seconds


@dataclass(slots=True)
class _Ears:
    """What the scheduler tells: steps of the one request that runs, or the longest of all."""

    run: _Run | None = None
    longest_s: float = 0.0

    def started(self, wave: int, joined: int, rows: int, tokens: int, formed_s: float) -> None: ...

    def stepped(self, step: Step) -> None:
        self.longest_s = max(self.longest_s, step.seconds)
        if self.run is not None:
            self.run.step(step)

    def ended(self, job: Any, answer: object) -> None: ...

    def failed(self, kind: str, error: Exception) -> None: ...


@dataclass(slots=True)
class _Bench:
    """Generators over one decoder; requests are numbered, so that no prompt comes twice."""

    spec: WaitsSpec
    decoder: Decoder
    catalogues: Catalogues
    number: int = 0
    prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = Prompts(self.spec.seed)

    def generator(self, **settings: Any) -> Generator:
        small = {"device_bytes": 64 * MIB, "beam_bytes": 64 * MIB}
        return make_generator(self.decoder, self.catalogues, **{**small, **settings})

    def asked(self) -> Asked:
        self.number += 1
        return self.prompts.asked(self.number, self.spec.prompt, self.spec.width)


def bench_waits(spec: WaitsSpec) -> WaitsReport:
    """One request at a time, an idle while, then requests at random times in both kinds of scheduling."""
    serve_with_threads(spec.threads)
    decoder = make_decoder(spec.dtype, spec.seed)
    bench = _Bench(spec, decoder, make_catalogues(spec.sids, spec.seed))
    direct, scheduled, idle_share = _alone(bench)
    rate = 1000 / scheduled.total_ms.p50
    loaded = [_loaded(bench, kind, load, rate) for kind in ("fixed", "continuous") for load in spec.loads]
    return WaitsReport(
        spec=msgspec.to_builtins(spec),
        direct=direct,
        scheduled=scheduled,
        closed_wait_ms=_closed(bench),
        loaded=tuple(loaded),
        idle_share=idle_share,
        cores=usable_cores(),
        cpu=cpu_model(),
    )


def _alone(bench: _Bench) -> tuple[Lone, Lone, float]:
    """Direct calls and scheduled requests in turns; then the processor time of doing nothing."""
    ears, own, behind = _Ears(), bench.generator(), bench.generator()
    scheduler = GenerateScheduler(behind, behind.config, observer=ears)
    try:
        direct, scheduled = list[_Run](), list[_Run]()
        for _ in range(bench.spec.runs + 1):
            direct.append(_direct(own, bench.asked()))
            scheduled.append(_scheduled(scheduler, ears, bench.asked()))
        time.sleep(_SETTLE_S)
        used_s, began_s = time.process_time(), time.monotonic()
        time.sleep(bench.spec.idle_s)
        idle_share = (time.process_time() - used_s) / (time.monotonic() - began_s)
    finally:
        scheduler.close()
        own.close()
        behind.close()
    # The first of each touches memory for the first time.
    return _summed(direct[1:]), _summed(scheduled[1:]), idle_share


def _closed(bench: _Bench) -> Times:
    """One client that asks again in the callback of every answer."""
    left, jobs, over = bench.spec.runs + 1, list[Any](), threading.Event()
    generator = bench.generator()
    scheduler = GenerateScheduler(generator, generator.config)

    def ask(_: object = None) -> None:
        nonlocal left
        left -= 1
        try:
            job = scheduler.generate(bench.asked(), _DEADLINE_MS)
        except BaseException:
            over.set()
            raise
        jobs.append(job)
        job.add_done_callback(ask if left else lambda _: over.set())

    try:
        ask()
        over.wait()
        for job in jobs:
            job.result()
    finally:
        scheduler.close()
        generator.close()
    assert not left, "a request was refused"
    return _times([job.started_s - job.queued_s for job in jobs[1:]])


def _direct(generator: Generator, asked: Asked) -> _Run:
    run = _Run(time.monotonic())
    ask = generator.check(asked)
    seat = generator.seat(ask)
    assert seat is not None
    while seat.outcome is None:
        run.step((generator.round if seat.prefilled else generator.prefill)([seat]))
    seat.close()
    ask.close()
    run.ended_s = time.monotonic()
    return run


def _scheduled(scheduler: GenerateScheduler, ears: _Ears, asked: Asked) -> _Run:
    ears.run = run = _Run(time.monotonic())
    scheduler.generate(asked, _DEADLINE_MS).result()
    run.ended_s = time.monotonic()
    return run


def _summed(runs: Sequence[_Run]) -> Lone:
    return Lone(
        wait_ms=_times([run.first_s - run.called_s for run in runs]),
        outside_ms=_times([run.ended_s - run.called_s - run.steps_s for run in runs]),
        total_ms=_times([run.ended_s - run.called_s for run in runs]),
    )


def _times(seconds: Sequence[float]) -> Times:
    found = Timing("", tuple(1000 * one for one in seconds))
    return Times(p50=found.percentile_ms(50), p99=found.percentile_ms(99))


def _loaded(bench: _Bench, scheduling: str, load: float, rate_per_s: float) -> LoadedWaits:
    spec, ears, jobs = bench.spec, _Ears(), list[Any]()
    generator = bench.generator(scheduling=scheduling)
    config = generator.config
    scheduler = GenerateScheduler(generator, config, observer=ears)

    def send(_: int) -> Future[Any]:
        jobs.append(scheduler.generate(bench.asked(), _DEADLINE_MS))
        return jobs[-1]  # type: ignore[no-any-return]

    try:
        for _ in range(2):
            send(0).result()
        jobs.clear()
        ears.longest_s = 0.0
        seed = (spec.seed, 0)
        point = play(Door(send, 1), load * rate_per_s, spec.load_requests, seed, 0, _DEADLINE_MS)
    finally:
        scheduler.close()
        generator.close()
    limits = Limits(config.max_beam_rows, config.max_batch_tokens, alone=scheduling == "fixed")
    return LoadedWaits(
        scheduling=scheduling,
        load=load,
        point=point,
        longest_ms=1000 * longest_free_s([Stay.of(job) for job in jobs if job.started_s], limits),
        limit_ms=config.max_wait_ms,
        longest_step_ms=1000 * ears.longest_s,
    )
