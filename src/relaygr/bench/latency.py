"""Prefix-hit and prefill latency in this process, per thread count, alone and beside a busy process.

`bench threads` runs it as a child (`python -m relaygr.bench.latency JSON`), because OpenMP reads its wait
policy once, when a process starts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch

from relaygr.bench.cell import Cell, random_ranker
from relaygr.bench.timing import Timing, Variant, round_robin
from relaygr.kernels.cpu import BlockedKernel
from relaygr.kernels.select import choose
from relaygr.models.presets import preset

_MOST_ROUNDS = 2000
_LEAST_ROUNDS = 2
# The spinner ends by itself even if its parent is killed.
_SPIN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


class LatencyJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a child measures: every thread count, alone and beside a busy process, `cell_s` seconds each."""

    preset: str
    history: int
    candidates: int
    dtype: str
    threads: tuple[int, ...]
    cell_s: float
    seed: int


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles by nearest rank; with few samples P99 is the slowest one."""

    threads: int
    busy: bool
    wait_policy: str
    dtype: str
    route: str
    hit_p50_ms: float
    hit_p99_ms: float
    prefill_p50_ms: float
    prefill_p99_ms: float
    samples: int


@contextmanager
def busy_process(limit_s: float) -> Iterator[None]:
    """A process that takes one core until the block ends, at most `limit_s` seconds."""
    with subprocess.Popen([sys.executable, "-c", _SPIN, str(limit_s)]) as process:
        try:
            yield
        finally:
            process.kill()


def measure(job: LatencyJob, wait_policy: str) -> list[Latency]:
    """One entry per thread count and load."""
    choice = choose("cpu", job.dtype)
    assert isinstance(choice.kernel, BlockedKernel)
    model = random_ranker(preset(job.preset), choice.dtype, job.seed)
    cell = Cell(model, choice.kernel, job.history, job.candidates, job.seed)
    found = []
    for threads in job.threads:
        torch.set_num_threads(threads)
        cell.full()
        cell.hit()
        for busy in (False, True):
            if busy:
                # Far more than the cell should take; its end is a safety net, not the rule.
                with busy_process(10 * job.cell_s + 10):
                    hit, prefill = _time(cell, job.cell_s)
            else:
                hit, prefill = _time(cell, job.cell_s)
            found.append(
                Latency(
                    threads=threads,
                    busy=busy,
                    wait_policy=wait_policy,
                    dtype=choice.dtype_name,
                    route=choice.kernel.route.name,
                    hit_p50_ms=hit.percentile_ms(50),
                    hit_p99_ms=hit.percentile_ms(99),
                    prefill_p50_ms=prefill.percentile_ms(50),
                    prefill_p99_ms=prefill.percentile_ms(99),
                    samples=len(hit.times_ms),
                )
            )
    return found


def _time(cell: Cell, limit_s: float) -> tuple[Timing, Timing]:
    variants = (Variant("hit", cell.hit), Variant("prefill", cell.prefill))
    hit, prefill = round_robin(variants, _MOST_ROUNDS, limit_s, _LEAST_ROUNDS)
    return hit, prefill


def main(arguments: list[str]) -> None:
    """Child entry: the job and the wait policy's name in, a JSON list of `Latency` out."""
    job = msgspec.json.decode(arguments[0], type=LatencyJob)
    sys.stdout.buffer.write(msgspec.json.encode(measure(job, arguments[1])) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
