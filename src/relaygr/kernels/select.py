"""Choose kernel, route and dtype once, at start: measured here, checked, logged with the reason."""

from __future__ import annotations

import functools
import logging
import statistics
import time
from dataclasses import dataclass

import torch

from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.cpu import AtenRoute, BlockedKernel, MatrixRoute, OneDnnRoute
from relaygr.kernels.cpu.heap import keep_freed_memory
from relaygr.kernels.interface import Kernel
from relaygr.kernels.reference import ReferenceKernel

log = logging.getLogger("relaygr.kernels")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
_HEADS, _ROWS, _KEYS, _DIM, _WIDTH = 4, 256, 2048, 64, 256
# A route is timed so often, but for no longer than this once it has had its least: slow routes differ by more
# than noise, and a server waits for them.
_LEAST_RUNS, _MOST_RUNS, _ENOUGH_MS = 5, 9, 500.0
# Largest accepted difference between a route and a float64 product, relative to the result's scale.
_ROUTE_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured route: milliseconds of a projection plus one attention tile, all heads."""

    dtype: str
    route: str
    median_ms: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen and why; `probes` are empty when nothing had to be measured."""

    kernel: Kernel
    dtype: torch.dtype
    dtype_name: str
    reason: str
    probes: tuple[Probe, ...]


def choose(kernel: str = "auto", dtype: str = "auto", bitwise: bool = False) -> Choice:
    """Pick the back-end.

    Args:
        kernel: "auto" or "cpu" for the blocked kernel, "reference" for the dense one.
        dtype: "auto" takes the faster of fp32 and bf16; or one of them ("fp64" only with "reference").
        bitwise: fixed row tiles (see `BlockedKernel`).

    Raises:
        ConfigError: an unknown name, or a combination that does not exist.
        BackendError: no route computes the dtype within tolerance on this machine.
    """
    if kernel not in ("auto", "cpu", "reference"):
        raise ConfigError("engine.kernel", f"{kernel!r} is not one of auto, cpu, reference")
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError("engine.dtype", f"{dtype!r} is not one of auto, {', '.join(DTYPES)}")
    if kernel == "reference":
        name = "fp32" if dtype == "auto" else dtype
        reason = "the reference kernel was asked for"
        return _logged(Choice(ReferenceKernel(), DTYPES[name], name, reason, ()))
    if dtype == "fp64":
        raise ConfigError("engine.dtype", "fp64 runs on the reference kernel only")
    keep_freed_memory()
    threads = torch.get_num_threads()
    names = ("fp32", "bf16") if dtype == "auto" else (dtype,)
    measured = [pair for name in names for pair in _measured(name, threads)]
    if not measured:
        raise BackendError(f"no matrix route computes {dtype} within tolerance on this machine")
    best, route = min(measured, key=lambda pair: pair[0].median_ms)
    probes = tuple(probe for probe, _ in measured)
    reason = "fastest of " + ", ".join(f"{p.dtype}/{p.route} {p.median_ms:.2f} ms" for p in probes)
    return _logged(Choice(BlockedKernel(route, bitwise), DTYPES[best.dtype], best.dtype, reason, probes))


@functools.cache
def _measured(dtype: str, threads: int) -> tuple[tuple[Probe, MatrixRoute], ...]:
    """The routes that are right, measured once a process, dtype and number of threads.

    A model that is loaded again is computed as the one before; and where no unit of the processor does bf16,
    measuring takes seconds.
    """
    return tuple(
        (Probe(dtype, route.name, _time_ms(route, DTYPES[dtype])), route)
        for route in _routes(DTYPES[dtype])
        if _error(route, DTYPES[dtype]) <= _ROUTE_TOLERANCE[DTYPES[dtype]]
    )


def _logged(choice: Choice) -> Choice:
    route = choice.kernel.route.name if isinstance(choice.kernel, BlockedKernel) else "dense"
    log.info("kernel %s, route %s, dtype %s: %s", choice.kernel.name, route, choice.dtype_name, choice.reason)
    return choice


def _routes(dtype: torch.dtype) -> list[MatrixRoute]:
    return [AtenRoute(), *([OneDnnRoute()] if OneDnnRoute.available(dtype) else [])]


def _inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (_ROWS, _WIDTH),
        (4 * _WIDTH, _WIDTH),
        (_HEADS, _ROWS, _DIM),
        (_HEADS, 2 * _KEYS, _DIM),
        (_HEADS, 2 * _KEYS, _DIM),
    )
    x, weight, q, k, v = ((torch.randn(shape, generator=generator) / 8).to(dtype) for shape in shapes)
    # As a page pool hands them out: each head contiguous, the heads far apart.
    return x, weight, q, k[:, :_KEYS], v[:, :_KEYS]


@torch.inference_mode()
def _error(route: MatrixRoute, dtype: torch.dtype) -> float:
    """Largest relative difference to float64 over the two products the kernel needs."""
    x, weight, q, k, v = _inputs(dtype)
    try:
        got = (route.linear(x, weight, None), route.attend(q, k, v, (), None))
    except RuntimeError as error:
        log.warning("route %s cannot run %s: %s", route.name, dtype, str(error).splitlines()[0])
        return float("inf")
    exact = AtenRoute()
    wanted = (
        exact.linear(x.double(), weight.double(), None),
        exact.attend(q.double(), k.double(), v.double(), (), None),
    )
    return max(float((g.double() - w).abs().max() / w.abs().max()) for g, w in zip(got, wanted, strict=True))


@torch.inference_mode()
def _time_ms(route: MatrixRoute, dtype: torch.dtype) -> float:
    x, weight, q, k, v = _inputs(dtype)
    times: list[float] = []
    while len(times) < _LEAST_RUNS or (len(times) < _MOST_RUNS and sum(times) < _ENOUGH_MS):
        start = time.perf_counter()
        route.linear(x, weight, None)
        route.attend(q, k, v, (), None)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])
