"""`bench threads`: what it costs when OpenMP threads share a core with another busy process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from relaygr.bench.latency import Latency, LatencyJob
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.select import choose
from relaygr.models.presets import preset

_POLICIES = ("default", "passive")
_CHILD_OVERHEAD_S = 60.0


@dataclass(frozen=True, slots=True)
class ThreadsSpec:
    """What to measure.

    Attributes:
        seconds: time of one cell; there are 2 thread counts x 2 loads x 2 wait policies.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-small"
    history: int = 1024
    candidates: int = 128
    dtype: str = "auto"
    seconds: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        config = preset(self.preset)
        for option, value, low, high in (
            ("--history", self.history, 17, config.max_history),
            ("--candidates", self.candidates, 1, config.max_num_candidates),
            ("--seconds", self.seconds, 0.01, 60),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")
        if self.dtype not in ("auto", "fp32", "bf16"):
            raise ConfigError("--dtype", f"{self.dtype!r} is not one of auto, fp32, bf16")


class ThreadsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench threads --json` writes."""

    cpu: str
    cores: int
    preset: str
    history: int
    candidates: int
    cells: list[Latency]
    recommendation: str


def bench_threads(spec: ThreadsSpec, progress: Callable[[str], None] = lambda text: None) -> ThreadsReport:
    """Measure every cell, each wait policy in a process of its own.

    Raises:
        BackendError: a child process failed.
    """
    cores = usable_cores()
    job = LatencyJob(
        preset=spec.preset,
        history=spec.history,
        candidates=spec.candidates,
        # Chosen here once, so that all cells compare.
        dtype=choose("cpu", spec.dtype).dtype_name,
        threads=(1, cores) if cores > 1 else (1,),
        cell_s=spec.seconds,
        seed=spec.seed,
    )
    cells: list[Latency] = []
    for policy in _POLICIES:
        progress(f"wait policy {policy}: {len(job.threads)} thread counts, alone and beside a busy process")
        cells += _child(job, policy)
    return ThreadsReport(
        cpu=cpu_model(),
        cores=cores,
        preset=spec.preset,
        history=spec.history,
        candidates=spec.candidates,
        cells=cells,
        recommendation=recommend(cells, cores),
    )


def _child(job: LatencyJob, policy: str) -> list[Latency]:
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    # A limit on threads in the caller's environment would make both thread counts the same.
    environment.pop("OMP_NUM_THREADS", None)
    if policy != "default":
        environment["OMP_WAIT_POLICY"] = policy
    command = [sys.executable, "-m", "relaygr.bench.latency", msgspec.json.encode(job).decode(), policy]
    limit_s = 10 * job.cell_s * 2 * len(job.threads) + _CHILD_OVERHEAD_S
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=limit_s, check=True)
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"wait policy {policy}: the measuring process ran past {limit_s:.0f} s") from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BackendError(f"wait policy {policy}: the measuring process failed: {''.join(last)}") from error
    return msgspec.json.decode(done.stdout, type=list[Latency])


def recommend(cells: Sequence[Latency], cores: int) -> str:
    """One or two sentences: the setting with the lowest hit P99 alone, and beside a busy process."""
    alone = min((cell for cell in cells if not cell.busy), key=lambda cell: cell.hit_p99_ms)
    shared = min((cell for cell in cells if cell.busy), key=lambda cell: cell.hit_p99_ms)
    worst = max((cell for cell in cells if cell.busy), key=lambda cell: cell.hit_p99_ms)
    text = f"With the {cores} cores to itself: {_setting(alone)}, hit P99 {alone.hit_p99_ms:.1f} ms. "
    text += f"Beside a busy process: {_setting(shared)}, hit P99 {shared.hit_p99_ms:.1f} ms"
    if worst is not shared:
        text += f" (the worst setting, {_setting(worst)}, takes {worst.hit_p99_ms:.1f} ms)"
    return text + ". Threads are set by engine.threads, the wait policy by OMP_WAIT_POLICY at start."


def _setting(cell: Latency) -> str:
    return f"{cell.threads} thread{'s' if cell.threads > 1 else ''}, wait policy {cell.wait_policy}"
