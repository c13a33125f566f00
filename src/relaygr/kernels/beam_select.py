"""Choose the decoder kernel once, at start: route and mode table measured here, logged with the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.beam_modes import BeamShape, ModeCell, ModeTable
from relaygr.kernels.beams import BeamKernel, KeysValues, Mode
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.kernels.cpu.heap import keep_freed_memory
from relaygr.kernels.cpu.parts import FlashRoute, PartRoute, TiledRoute
from relaygr.kernels.reference.beams import ReferenceBeams

log = logging.getLogger("relaygr.kernels")

WIDTHS = (8, 64, 256, 1024)
PROMPTS = (16, 64, 128, 256, 512, 1024)
BUDGET_S = 2.0  # a quiet machine needs half a second; on a busy one, start-up must not hang here
LARGEST_PAIRS = 1 << 19  # beams x prompt tokens of a measured cell; beyond lies what its neighbour says
_REPEATS = 5
_PROBE_ROWS, _PROBE_TOKENS = 256, 1024
# Largest accepted difference between a route and float64, relative to the result's scale.
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}


@dataclass(frozen=True, slots=True)
class RouteProbe:
    """One measured route: best of a few milliseconds of a block of queries on a prompt."""

    route: str
    best_ms: float


@dataclass(frozen=True, slots=True)
class BeamChoice:
    """What was chosen and why; probes and table are missing where nothing had to be measured."""

    kernel: BeamKernel
    reason: str
    probes: tuple[RouteProbe, ...]
    table: ModeTable | None


def choose_beams(
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    kernel: str = "auto",
    depth: int = 2,
    widths: Sequence[int] = WIDTHS,
    prompts: Sequence[int] = PROMPTS,
    budget_s: float = BUDGET_S,
    bitwise: bool = True,
) -> BeamChoice:
    """Pick and measure the back-end for one model shape, at the process's thread count.

    Args:
        kernel: "auto" or "cpu" for the blocked kernel, "reference" for the obvious one.
        depth: slots a beam owns in the measured steps, T of most requests.
        widths, prompts: the measured cells; their cross product up to `LARGEST_PAIRS`.
        budget_s: seconds after which no further cell is begun.
        bitwise: fixed tiles of prompt rows (see `CpuBeams`).

    Raises:
        ConfigError: an unknown name.
        BackendError: no route computes the dtype within tolerance on this machine.
    """
    if kernel not in ("auto", "cpu", "reference"):
        raise ConfigError("engine.kernel", f"{kernel!r} is not one of auto, cpu, reference")
    if kernel == "reference":
        return BeamChoice(ReferenceBeams(), "the reference kernel was asked for", (), None)
    if dtype not in _TOLERANCE:
        raise BackendError(f"beams are not computed in {dtype}")
    keep_freed_memory()
    routes: list[PartRoute] = [*([FlashRoute()] if FlashRoute.available() else []), TiledRoute()]
    probes = [
        (RouteProbe(route.name, _route_ms(route, heads, kv_heads, dim, dtype)), route)
        for route in routes
        if _error(route, heads, kv_heads, dim, dtype) <= _TOLERANCE[dtype]
    ]
    if not probes:
        raise BackendError(f"no route computes beams in {dtype} within tolerance on this machine")
    best, chosen = min(probes, key=lambda p: p[0].best_ms)
    shape = BeamShape(heads, kv_heads, dim, depth, str(dtype).removeprefix("torch."), torch.get_num_threads())
    table = measure_modes(CpuBeams(chosen), shape, dtype, widths, prompts, budget_s)
    measured = ", ".join(f"{probe.route} {probe.best_ms:.2f} ms" for probe, _ in probes)
    ends = ", ".join(f"W {w}: {_told(table.crossover(w))}" for w in table.widths)
    reason = f"route {best.route}: fastest of {measured}; split from P on: {ends}"
    log.info("beam kernel cpu for %s: %s", shape, reason)
    return BeamChoice(CpuBeams(chosen, table, bitwise), reason, tuple(probe for probe, _ in probes), table)


def measure_modes(
    kernel: BeamKernel,
    shape: BeamShape,
    dtype: torch.dtype,
    widths: Sequence[int],
    prompts: Sequence[int],
    budget_s: float = BUDGET_S,
) -> ModeTable:
    """Time one layer's step of every cell in both modes, in turn, and keep the best of each.

    The small cells come first: where the budget ends early, large steps go by their nearest neighbour.

    Raises: ValueError if no cell is asked for.
    """
    pairs = {(w, p) for w in widths for p in prompts if w * p <= LARGEST_PAIRS}
    deadline = time.perf_counter() + budget_s
    cells: list[ModeCell] = []
    for width, tokens in sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair)):
        if cells and time.perf_counter() >= deadline:
            log.warning("%d of %d beam modes measured in %.1f s", len(cells), len(pairs), budget_s)
            break
        times = time_modes(kernel, shape, dtype, width, tokens, ("split", "joint"), _REPEATS)
        cells.append(ModeCell(width, tokens, *times))
    return ModeTable(shape, tuple(cells))


@torch.inference_mode()
def time_modes(
    kernel: BeamKernel,
    shape: BeamShape,
    dtype: torch.dtype,
    width: int,
    prompt_tokens: int,
    modes: Sequence[Mode],
    repeats: int,
) -> tuple[float, ...]:
    """Best milliseconds of one layer's step in each mode; the modes take turns, so that drift hits all.

    With one thread it is processor time, which other processes hardly disturb.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    g = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=g).to(dtype)

    q = draw(width, shape.heads, shape.dim)
    shared: KeysValues = (
        draw(shape.kv_heads, prompt_tokens, shape.dim),
        draw(shape.kv_heads, prompt_tokens, shape.dim),
    )
    own_k, own_v = (draw(shape.depth * width, shape.kv_heads, shape.dim) for _ in range(2))
    anc = torch.randint(0, width, (width, shape.depth), generator=g, dtype=torch.int32)
    anc += torch.arange(0, shape.depth * width, width, dtype=torch.int32)
    best = [float("inf")] * len(modes)
    for turn in range(repeats + 1):
        for i, mode in enumerate(modes):
            start = clock()
            kernel.beams(q, shared, prompt_tokens, own_k, own_v, anc, mode)
            if turn:  # the first turn generates code and touches memory
                best[i] = min(best[i], (clock() - start) * 1e3)
    return tuple(best)


def _block(heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    rows = _PROBE_ROWS * heads // kv_heads
    sizes = ((1, kv_heads, rows, dim), *[(1, kv_heads, _PROBE_TOKENS, dim)] * 2)
    return tuple(torch.randn(size, generator=g).to(dtype) for size in sizes)


@torch.inference_mode()
def _error(route: PartRoute, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> float:
    """Largest difference to float64 of average and log-sum-exp; infinite where the route cannot run."""
    q, k, v = _block(heads, kv_heads, dim, dtype)
    try:
        out, lse = route.attend(q, k, v)
    except RuntimeError as error:
        log.warning("route %s cannot run %s: %s", route.name, dtype, str(error).splitlines()[0])
        return float("inf")
    scores = q.double() @ k.double().transpose(-1, -2) * dim**-0.5
    want = scores.softmax(-1) @ v.double()
    # A base-2 log-sum-exp, which some kernels return, is off by 44 %.
    lse_error = float((lse.double() - scores.logsumexp(-1)).abs().max())
    return max(float((out.double() - want).abs().max() / want.abs().max()), lse_error)


@torch.inference_mode()
def _route_ms(route: PartRoute, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> float:
    q, k, v = _block(heads, kv_heads, dim, dtype)
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        route.attend(q, k, v)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times[1:])


def _told(tokens: int | None) -> str:
    return "never" if tokens is None else str(tokens)
