"""What this machine can do: matrix rate by dtype and route, copy bandwidth, processor and memory."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path

import msgspec
import torch

from relaygr.bench.timing import time_ms
from relaygr.kernels.cpu import OneDnnRoute
from relaygr.kernels.select import DTYPES

MATRIX_SIZE = 2048
_COPY_BYTES = 256 << 20
# A route far slower than the rest must not hold the command up.
_ROUTE_LIMIT_MS = 2000.0
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "bf16", "sve")


class RouteGflops(msgspec.Struct, frozen=True, omit_defaults=True):
    """GFLOP/s of one dtype: `aten` is plain `torch.mm`, `onednn` the route of `kernels.cpu`, if it exists."""

    aten: float
    onednn: float | None = None

    @property
    def best(self) -> float:
        return max(self.aten, self.onednn or 0.0)


class MatrixGflops(msgspec.Struct, frozen=True, omit_defaults=True):
    """GFLOP/s of the best route, by dtype; dtypes that were not measured are left out."""

    fp32: float | None = None
    bf16: float | None = None


class MatrixGflopsByRoute(msgspec.Struct, frozen=True, omit_defaults=True):
    """GFLOP/s of every route, by dtype; dtypes that were not measured are left out."""

    fp32: RouteGflops | None = None
    bf16: RouteGflops | None = None

    def best(self) -> MatrixGflops:
        fp32, bf16 = self.fp32, self.bf16
        return MatrixGflops(None if fp32 is None else fp32.best, None if bf16 is None else bf16.best)

    def of(self, dtype: str) -> RouteGflops | None:
        return self.bf16 if dtype == "bf16" else self.fp32 if dtype == "fp32" else None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a result was measured.

    Attributes:
        matrix_gflops, matrix_gflops_by_route: of 2048 x 2048 x 2048, median of all samples in the run.
        copy_gb_s: bytes copied per second, all threads, counted once.
        cores: processors this process may use.
        threads: torch's intra-op threads.
    """

    cpu: str
    features: tuple[str, ...]
    cores: int
    threads: int
    memory_bytes: int | None
    matrix_gflops: MatrixGflops
    matrix_gflops_by_route: MatrixGflopsByRoute
    copy_gb_s: float
    torch: str
    python: str
    system: str


class MatrixProbe:
    """Measures the matrix rate of one dtype, both routes in turn; may be asked again later in a run."""

    def __init__(self, dtype: str, size: int = MATRIX_SIZE) -> None:
        self.dtype = dtype
        generator = torch.Generator().manual_seed(0)
        self._a, self._b = (torch.randn(size, size, generator=generator).to(DTYPES[dtype]) for _ in range(2))
        self._onednn = OneDnnRoute() if OneDnnRoute.available(DTYPES[dtype]) else None
        self._aten_ms: list[float] = []
        self._onednn_ms: list[float] = []

    @torch.inference_mode()
    def measure(self, repeats: int) -> None:
        """Add `repeats` samples of each route, after one untimed run."""
        self._run_aten()
        self._run_onednn()
        spent = 0.0
        for _ in range(max(repeats, 1)):
            self._aten_ms.append(time_ms(self._run_aten))
            spent += self._aten_ms[-1]
            if self._onednn is not None:
                self._onednn_ms.append(time_ms(self._run_onednn))
                spent += self._onednn_ms[-1]
            if spent > _ROUTE_LIMIT_MS:
                break

    def rates(self) -> RouteGflops:
        """Rates by the median of all samples so far."""
        return RouteGflops(
            aten=self._gflops(self._aten_ms),
            onednn=self._gflops(self._onednn_ms) if self._onednn_ms else None,
        )

    def _gflops(self, times_ms: list[float]) -> float:
        return 2 * self._a.shape[0] ** 3 / statistics.median(times_ms) / 1e6

    def _run_aten(self) -> object:
        return torch.mm(self._a, self._b)

    def _run_onednn(self) -> object:
        return None if self._onednn is None else self._onednn.linear(self._a, self._b, None)


def copy_gb_s(repeats: int = 5) -> float:
    """Median GB/s of copying 256 MiB within memory; the bytes are counted once."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    times = [time_ms(lambda: target.copy_(source)) for _ in range(repeats + 1)]
    return _COPY_BYTES / statistics.median(times[1:]) / 1e6


def describe_machine(by_route: MatrixGflopsByRoute) -> Machine:
    """This machine, with matrix rates measured elsewhere in the run."""
    return Machine(
        cpu=cpu_model(),
        features=cpu_features(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=memory_bytes()[0],
        matrix_gflops=by_route.best(),
        matrix_gflops_by_route=by_route,
        copy_gb_s=copy_gb_s(),
        torch=str(torch.__version__),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def usable_cores() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_features() -> tuple[str, ...]:
    """Vector extensions that matter here, as the operating system names them, then what torch uses."""
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    capability = torch.backends.cpu.get_cpu_capability()
    return (*(flag for flag in _FLAGS if flag in flags), f"torch:{capability}")


def memory_bytes() -> tuple[int | None, int | None]:
    """Memory (total, available); None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return _sysconf_bytes("SC_PHYS_PAGES"), _sysconf_bytes("SC_AVPHYS_PAGES")
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if ":" in line}
    total, available = kib.get("MemTotal"), kib.get("MemAvailable")
    return total and total * 1024, available and available * 1024


def _sysconf_bytes(name: str) -> int | None:
    if name not in getattr(os, "sysconf_names", {}):
        return None
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _cpuinfo(key: str) -> str:
    """The first value of `key` in /proc/cpuinfo, or nothing where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")
