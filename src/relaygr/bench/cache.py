"""`bench cache`: users who come back, on real engines that keep their states in different ways."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from relaygr.bench.cache_arm import Arm, Setup
from relaygr.bench.cache_control import ControlSpec, bench_control
from relaygr.bench.cache_report import CacheArm, CacheReport, Latency, Workload
from relaygr.bench.cache_users import Visitors, stretch
from relaygr.bench.cell import random_ranker
from relaygr.bench.machine import MatrixGflopsByRoute, MatrixProbe, describe_machine
from relaygr.bench.rank import TOLERANCE
from relaygr.bench.timing import Timing
from relaygr.config.host import HostConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.kernels.select import Choice, choose
from relaygr.kernels.threads import serve_with_threads
from relaygr.memory.formats import host_format
from relaygr.memory.layout import KvLayout
from relaygr.models.cost import cost
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig, preset
from relaygr.models.ranker import Ranker
from relaygr.sim.cache.compare import SHARES
from relaygr.sim.cache.curve import Capacity, Curve, draw
from relaygr.sim.cache.events import Visits
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import Costs, hits
from relaygr.sim.cache.reader import read_trace
from relaygr.sim.cache.trace import Ints, Trace

NONE, DEVICE, DEVICE_HOST, DEVICE_HOST_INT8 = "none", "device", "device_host", "device_host_int8"
DEVICE_HOST_DISK = "device_host_disk"
PAGE_TOKENS = 32
_REQUESTS_A_DAY = TraceSpec().sessions_per_day * TraceSpec().session_requests
_RATE_REPEATS = 4
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What to measure.

    Attributes:
        traces: files of one trace of real users each; a generated one comes first.
        visits: of each trace, the last ones; users: of the generated one.
        device_share: of what all users take, what the device holds.
        minutes: what a trace may take; it ends early then, and says so.
        rounds: parts of a trace over which medians are taken.
        control: what the books are measured with.
        policies: replayed for the table of policies; none leaves it out. policy_users: of its trace.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-small"
    dtype: str = "auto"
    traces: tuple[Path, ...] = ()
    visits: int = 600
    users: int = 48
    candidates: int = 128
    max_history: int = 4096
    device_share: float = 0.25
    minutes: float = 10.0
    rounds: int = 5
    policies: tuple[str, ...] = ("lru", "gd_cost")
    policy_users: int = 20_000
    threads: int = 0
    seed: int = 0
    control: ControlSpec = field(default_factory=ControlSpec)

    def __post_init__(self) -> None:
        config = self.config
        for option, value, low, high in (
            ("--visits", self.visits, 2, 1_000_000),
            ("--users", self.users, 1, 100_000),
            ("--candidates", self.candidates, 1, config.max_num_candidates),
            ("--max-history", self.max_history, PAGE_TOKENS, config.max_history),
            ("--device-share", self.device_share, 0.001, 1.0),
            ("--minutes", self.minutes, 0.01, 1440.0),
            ("--rounds", self.rounds, 1, self.visits),
            ("--threads", self.threads, 0, 1024),
            ("--seed", self.seed, 0, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")

    @property
    def config(self) -> AnyConfig:
        return preset(self.preset)


def bench_cache(spec: CacheSpec, progress: Progress = lambda text: None) -> CacheReport:
    """Measure all of it.

    Raises:
        BackendError: reuse changed scores by more than rounding does.
        ConfigError, DataError: a trace cannot be read.
    """
    serve_with_threads(spec.threads)
    traces = [_generated(spec), *(_read(spec, file) for file in spec.traces)]
    progress("kernel and matrix rate")
    choice = choose("auto", spec.dtype)
    probe = MatrixProbe(choice.dtype_name)
    probe.measure(_RATE_REPEATS)
    model = random_ranker(spec.config, choice.dtype, spec.seed)
    workloads = []
    for trace in traces:
        with tempfile.TemporaryDirectory(prefix="relaygr-bench-") as folder:
            workloads.append(_Course(spec, model, choice, trace, Path(folder) / "states").run(progress))
    probe.measure(_RATE_REPEATS)
    progress("books")
    control = bench_control(spec.control)
    rates = MatrixGflopsByRoute(**{choice.dtype_name: probe.rates()})
    first = workloads[0]
    ours, none = first.arm(DEVICE_HOST), first.arm(NONE)
    return CacheReport(
        machine=describe_machine(rates),
        preset=spec.preset,
        dtype=choice.dtype_name,
        kernel=choice.reason,
        candidates=spec.candidates,
        seed=spec.seed,
        speedup_device_host=ours.speedup,
        hit_ratio=ours.hits,
        ceiling=first.ceiling,
        p99_ratio=ours.latency.p99_ms / none.latency.p99_ms,
        workloads=workloads,
        control=control,
        policies=_policies(spec, progress),
    )


def _generated(spec: CacheSpec) -> Trace:
    """As many visits as are wanted, of users who come as often as usual."""
    hours = 1.5 * 24 * spec.visits / (spec.users * _REQUESTS_A_DAY)
    trace = generate(
        TraceSpec(users=spec.users, hours=max(hours, 1.0), max_length=spec.max_history, seed=spec.seed)
    )
    return stretch(trace, 0, spec.visits)


def _read(spec: CacheSpec, file: Path) -> Trace:
    trace = read_trace([file], "auto", Visits(max_length=spec.max_history))
    if int(trace.length.max()) > spec.max_history:
        raise ConfigError(
            "--trace", f"{file.name} has a history of {int(trace.length.max())}, limit {spec.max_history}"
        )
    return stretch(trace, max(len(trace) - spec.visits, 0), spec.visits)


def _policies(spec: CacheSpec, progress: Progress) -> Curve | None:
    if not spec.policies:
        return None
    trace = generate(TraceSpec(users=spec.policy_users, seed=spec.seed))
    capacities = [Capacity(f"{100 * share:g}%", share=share) for share in SHARES]
    return draw(trace, spec.policies, capacities, progress=progress)


class _Course:
    """One trace through all arms, which take turns at every visit."""

    def __init__(self, spec: CacheSpec, model: Ranker, choice: Choice, trace: Trace, folder: Path) -> None:
        self._spec, self._trace = spec, trace
        price = cost(model.config, choice.dtype.itemsize)
        self._costs = Costs(t1=1.0, t2=price.attention_flops_per_pair / price.dense_flops_per_token)
        self._limit = TOLERANCE[choice.dtype_name]
        shape = model.config
        layout = KvLayout(
            shape.num_layers, shape.num_heads, shape.qk_dim, shape.v_dim, choice.dtype, PAGE_TOKENS
        )
        pages = -(-trace.peaks // PAGE_TOKENS)
        self._footprint = int(pages.sum()) * layout.page_bytes
        longest = (int(pages.max()) + 1) * layout.page_bytes
        # Half of it is room for whoever comes next, the other for those who may come back.
        self._device_bytes = max(int(spec.device_share * self._footprint), 2 * longest, MIB)
        # What is not free when it is wanted is evicted at once, whether the host has it or not.
        self._clean = min(max(HostConfig().clean_target, longest / self._device_bytes), 0.9)
        items = shape.items.rows - 1 if isinstance(shape, HstuConfig) and shape.items is not None else 1 << 20
        self.arms = [
            Arm(setup, model, choice, Visitors(trace, items, spec.candidates, spec.seed), spec.candidates)
            for setup in self._setups(layout, folder)
        ]

    def run(self, progress: Progress) -> Workload:
        """Visit by visit, until the trace or the time is over."""
        began, spread = time.monotonic(), 0.0
        planned, made = len(self._trace), 0
        for place in range(planned):
            if place > self._spec.rounds and time.monotonic() - began > 60 * self._spec.minutes:
                break
            progress(f"{self._trace.name}: visit {place + 1} of {planned}")
            self._visit(place)
            wanted = self.arms[0].logits
            assert wanted is not None, "the first arm has ranked"
            spread = max(spread, float(wanted.std()))
            for arm in self.arms[1:]:
                exact = arm.setup.host.host_dtype == "same"
                arm.compare(wanted, self._limit * max(float(wanted.std()), 0.1) if exact else None)
            made += 1
        report = self._workload(stretch(self._trace, 0, made), planned, spread)
        for arm in self.arms:
            arm.close()
        return report

    def _visit(self, place: int) -> None:
        """All arms once; who is first changes, since the first finds the processor's caches cold."""
        count = len(self.arms)
        for turn in range(count):
            self.arms[(place + turn) % count].visit(place)

    def _setups(self, layout: KvLayout, folder: Path) -> list[Setup]:
        chunk = HostConfig().run_chunk_tokens
        tokens = int((-(-self._trace.peaks // chunk)).sum() + 1) * chunk
        # What a host keeps free of its own accord comes on top.
        room = 1.1

        def host(dtype: str) -> HostConfig:
            nbytes = int(room * tokens * host_format(dtype, layout.dtype).token_bytes(layout))
            return HostConfig(host_bytes=nbytes, host_dtype=dtype, clean_target=self._clean)  # type: ignore[arg-type]

        full = host("same")
        # Host memory of the size of the device, and room for everybody below it, twice over: segments that
        # hold what is no longer needed leave as wholes.
        disk = replace(
            full,
            host_bytes=min(max(self._device_bytes, full.host_bytes // 4), full.host_bytes),
            disk_bytes=2 * full.host_bytes + 64 * MIB,
            disk_path=str(folder),
        )
        return [
            Setup(NONE),
            Setup(DEVICE, self._device_bytes),
            Setup(DEVICE_HOST, self._device_bytes, full),
            Setup(DEVICE_HOST_INT8, self._device_bytes, host("int8")),
            Setup(DEVICE_HOST_DISK, self._device_bytes, disk),
        ]

    def _workload(self, trace: Trace, planned: int, spread: float) -> Workload:
        returning = np.flatnonzero(~trace.first)
        rounds = [part.tolist() for part in np.array_split(returning, self._spec.rounds) if len(part)]
        every = np.ones(len(trace), np.bool_)
        return Workload(
            name=trace.name,
            planned=planned,
            visits=len(trace),
            returning=len(returning),
            users=trace.users,
            mean_tokens=float(trace.length.mean()),
            footprint_bytes=self._footprint,
            clean_target=self._clean,
            ceiling=hits(trace, trace.same, self._costs, every),
            returning_ceiling=hits(trace, trace.same, self._costs, ~trace.first),
            rounds=len(rounds),
            arms=[self._arm(arm, trace, rounds, spread) for arm in self.arms],
        )

    def _arm(self, arm: Arm, trace: Trace, rounds: list[list[int]], spread: float) -> CacheArm:
        stats, none = arm.engine.cache_stats(), self.arms[0]
        ratios = [none.spent_ms(places) / arm.spent_ms(places) for places in rounds]
        reused: Ints = np.array(arm.cached, np.int64)
        loaded, stored = arm.engine.copied_bytes
        copies = arm.engine.copy_stats()
        every = np.ones(len(trace), np.bool_)
        times = Timing(arm.setup.name, tuple(arm.ms[place] for places in rounds for place in places))
        return CacheArm(
            name=arm.setup.name,
            device_bytes=stats.total_bytes if arm.setup.reuses else 0,
            host_bytes=stats.host.total_chunks * stats.host.chunk_bytes if stats.host is not None else 0,
            host_dtype=arm.setup.host.host_dtype,
            per_s=statistics.median(1000 * len(places) / arm.spent_ms(places) for places in rounds),
            speedup=statistics.median(ratios),
            speedup_least=min(ratios),
            speedup_most=max(ratios),
            latency=Latency(
                mean_ms=statistics.fmean(times.times_ms),
                p50_ms=times.median_ms,
                p99_ms=times.percentile_ms(99),
            ),
            spill_share=sum(arm.spill_ms) / (sum(arm.ms) + sum(arm.spill_ms)),
            hits=hits(trace, reused, self._costs, every),
            returning=hits(trace, reused, self._costs, ~trace.first),
            tiers=arm.tiers(trace.length),
            decisions=arm.decisions,
            late_loads=copies.late_loads,
            declined_loads=copies.declined_loads,
            fetched_bytes=arm.engine.below.copied_bytes[0],
            saved_bytes=arm.engine.below.copied_bytes[1],
            loaded_bytes=loaded,
            stored_bytes=stored,
            lost_tokens=stats.host.lost_tokens if stats.host is not None else None,
            max_score_diff=arm.furthest,
            score_spread=spread,
        )
