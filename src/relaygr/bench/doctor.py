"""`doctor`: what this machine is, what the kernel chose and why, and which settings would hurt."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from relaygr.bench.machine import (
    Machine,
    MatrixGflopsByRoute,
    MatrixProbe,
    RouteGflops,
    describe_machine,
    memory_bytes,
    usable_cores,
)
from relaygr.core.errors import BackendError
from relaygr.kernels.cpu import BlockedKernel
from relaygr.kernels.interface import AttentionSpec, Segment
from relaygr.kernels.reference import ReferenceKernel
from relaygr.kernels.select import Choice, choose

_OMP_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_DYNAMIC",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
)
_CHECK_SPEC = AttentionSpec(heads=2, qk_dim=32, v_dim=32, alpha=32**-0.5, divisor=64.0)
_CHECK_SEGMENTS = (Segment(0, 77, 9), Segment(0, 300, 33))
# Largest accepted difference to the float64 reference, over the largest result.
_CHECK_TOLERANCE = {"fp32": 1e-5, "bf16": 3e-2}


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """The start-up choice and its self-check; `problem` is empty when everything is well."""

    kernel: str
    route: str
    dtype: str
    reason: str
    relative_error: float | None
    problem: str


class ThreadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Thread settings; `cpu_limit` is the cgroup's limit in cores, None without one."""

    intra_op: int
    inter_op: int
    cores: int
    cpu_limit: float | None
    omp: dict[str, str]  # the variables that are set, by their own names


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor --json` writes."""

    machine: Machine
    implementation: str
    kernel: KernelReport
    memory_available_bytes: int | None
    threads: ThreadReport
    warnings: list[str]

    @property
    def healthy(self) -> bool:
        return not self.kernel.problem


def examine(matrix_size: int = 2048) -> DoctorReport:
    """Look at this machine; never raises for a kernel that does not work, but reports it."""
    kernel = check_kernel()
    threads = thread_report(os.environ)
    rates = {dtype: _rates(dtype, matrix_size) for dtype in ("fp32", "bf16")}
    machine = describe_machine(MatrixGflopsByRoute(fp32=rates["fp32"], bf16=rates["bf16"]))
    return DoctorReport(
        machine=machine,
        implementation=platform.python_implementation(),
        kernel=kernel,
        memory_available_bytes=memory_bytes()[1],
        threads=threads,
        warnings=thread_warnings(threads),
    )


def _rates(dtype: str, size: int) -> RouteGflops:
    probe = MatrixProbe(dtype, size)
    probe.measure(3)
    return probe.rates()


def check_kernel() -> KernelReport:
    """Choose as serving does, then compare one ragged batch to the float64 reference."""
    try:
        choice = choose()
    except BackendError as error:
        return KernelReport(
            kernel="none", route="", dtype="", reason="", relative_error=None, problem=str(error)
        )
    assert isinstance(choice.kernel, BlockedKernel)
    error_, limit = _relative_error(choice), _CHECK_TOLERANCE[choice.dtype_name]
    return KernelReport(
        kernel=choice.kernel.name,
        route=choice.kernel.route.name,
        dtype=choice.dtype_name,
        reason=choice.reason,
        relative_error=error_,
        problem="" if error_ <= limit else f"relative error {error_:.3g} is above {limit:g}",
    )


@torch.inference_mode()
def _relative_error(choice: Choice) -> float:
    generator = torch.Generator().manual_seed(0)
    plan = choice.kernel.plan(_CHECK_SPEC, _CHECK_SEGMENTS, choice.dtype)
    shape = (plan.layout.rows, _CHECK_SPEC.heads, _CHECK_SPEC.qk_dim)
    q, k, v = (torch.randn(shape, generator=generator).to(choice.dtype) for _ in range(3))
    got = choice.kernel.run(plan, 0, q, k, v)
    # The reference packs rows without padding: give it, and compare, the real rows only.
    rows = torch.cat(
        [
            torch.arange(part.start, part.stop)
            for where in plan.layout.segments
            for part in (where.history, where.candidates)
        ]
    )
    reference = ReferenceKernel()
    exact_plan = reference.plan(_CHECK_SPEC, _CHECK_SEGMENTS, torch.float64)
    wanted = reference.run(exact_plan, 0, q[rows].double(), k[rows].double(), v[rows].double())
    return float((got[rows].double() - wanted).abs().max() / wanted.abs().max())


def thread_report(environment: Mapping[str, str]) -> ThreadReport:
    return ThreadReport(
        intra_op=torch.get_num_threads(),
        inter_op=torch.get_num_interop_threads(),
        cores=usable_cores(),
        cpu_limit=cgroup_cpu_limit(),
        omp={name: environment[name] for name in _OMP_VARIABLES if name in environment},
    )


def thread_warnings(threads: ThreadReport) -> list[str]:
    """Settings that cost latency, each with what to do instead."""
    found = []
    if threads.intra_op > threads.cores:
        found.append(
            f"torch uses {threads.intra_op} threads on {threads.cores} cores; "
            f"set engine.threads to at most {threads.cores}"
        )
    if threads.cpu_limit is not None and threads.cpu_limit < threads.intra_op:
        found.append(
            f"the cgroup allows {threads.cpu_limit:g} cores, torch uses {threads.intra_op} threads and will "
            f"be throttled; set engine.threads to {max(int(threads.cpu_limit), 1)}"
        )
    if threads.omp.get("OMP_WAIT_POLICY", "").lower() == "active":
        found.append("OMP_WAIT_POLICY=active keeps waiting threads spinning; unset it or set it to passive")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        value = threads.omp.get(name, "")
        if value.isdigit() and int(value) > threads.cores:
            found.append(f"{name}={value} is more than the {threads.cores} cores; set it to {threads.cores}")
    return found


def cgroup_cpu_limit(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Cores that the tightest cgroup around this process allows; None without a limit or without cgroups."""
    limits = [_quota(*_words(folder / "cpu.max")) for folder in _group_folders(root, membership, "")]
    limits += [
        _quota(*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us"))
        for folder in _group_folders(root / "cpu", membership, "cpu")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _group_folders(root: Path, membership: Path, controller: str) -> list[Path]:
    """The process's group of one hierarchy and all its parents; version 2 has no controller name."""
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            inside = path.strip("/")
            parts: Sequence[str] = inside.split("/") if inside else ()
            return [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return [root]


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""


def _quota(quota: str = "", period: str = "") -> float | None:
    """Quota over period, both in microseconds; `max` and -1 are no limit."""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)
