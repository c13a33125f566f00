"""`bench rank`: what a cached history saves, over history x candidates x dtype, against the dense pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from relaygr.bench.cell import APPENDED, Cell, random_ranker
from relaygr.bench.machine import MatrixGflopsByRoute, MatrixProbe, RouteGflops, describe_machine
from relaygr.bench.naive import DensePass, dense_pass
from relaygr.bench.peers import PEER_PRESET, PEER_SOURCE, PeerComparison, compare
from relaygr.bench.report import RankReport, RankRow
from relaygr.bench.stock import StockJob, StockProcess
from relaygr.bench.timing import Timing, Variant, round_robin
from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.cpu import BlockedKernel
from relaygr.kernels.select import Choice, choose
from relaygr.models.cost import cost
from relaygr.models.presets import AnyConfig, preset

# Largest accepted difference of logits, kernel against dense pass, over the spread of the logits.
TOLERANCE = {"fp32": 1e-4, "bf16": 0.15}
_RATE_REPEATS = 4
_NAIVE_BUDGET_MS = 4000.0
# On a loaded machine a row ends early, so that the grid ends at all; the row says how many rounds it got.
_ROW_LIMIT_S = 10.0
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class RankSpec:
    """The grid.

    Attributes:
        histories, candidates: sizes; every pair is one row per dtype.
        dtypes: of fp32 and bf16.
        repeats: most rounds of each row; the dense pass takes part in fewer when it is slow.
        threads: intra-op threads; 0 keeps torch's choice.
        seed: of weights and users.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-small"
    histories: tuple[int, ...] = (512, 1024, 2048, 4096)
    candidates: tuple[int, ...] = (32, 128, 512)
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    repeats: int = 9
    threads: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        config = self.config
        # A row must hold the appended events and something to append them to.
        _check_sizes("--histories", self.histories, APPENDED + 1, config.max_history)
        _check_sizes("--candidates", self.candidates, 1, config.max_num_candidates)
        if not self.dtypes or len(set(self.dtypes)) != len(self.dtypes) or set(self.dtypes) - set(TOLERANCE):
            raise ConfigError("--dtypes", f"{','.join(self.dtypes)!r} must be fp32, bf16 or fp32,bf16")
        for option, value, low, high in (
            ("--repeats", self.repeats, 1, 10_000),
            ("--threads", self.threads, 0, 1024),
            ("--seed", self.seed, 0, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")

    @property
    def config(self) -> AnyConfig:
        return preset(self.preset)


def _check_sizes(option: str, values: tuple[int, ...], low: int, high: int) -> None:
    if not values:
        raise ConfigError(option, "needs at least one number")
    for value in values:
        if not low <= value <= high:
            raise ConfigError(option, f"{value} is outside [{low}, {high}]")


@dataclass(frozen=True, slots=True)
class _Measured:
    """A row before the matrix rate of its dtype is final."""

    history: int
    candidates: int
    timings: dict[str, Timing]
    difference: float
    spread: float


def bench_rank(spec: RankSpec, progress: Callable[[str], None] = lambda text: None) -> RankReport:
    """Measure the grid.

    Raises:
        BackendError: the dense pass and the kernel disagree.
    """
    if spec.threads:
        torch.set_num_threads(spec.threads)
    rows: list[RankRow] = []
    rates: dict[str, RouteGflops] = {}
    reasons: dict[str, str] = {}
    for dtype in spec.dtypes:
        progress(f"{dtype}: matrix rate")
        choice = choose("cpu", dtype)
        probe = MatrixProbe(dtype)
        probe.measure(_RATE_REPEATS)
        with StockProcess(torch.get_num_threads()) as stock:
            measured = _measure_dtype(spec, choice, stock, progress)
        # Once more: a machine that slowed down or sped up meanwhile shows in the median.
        probe.measure(_RATE_REPEATS)
        rates[dtype], reasons[dtype] = probe.rates(), choice.reason
        rows += [_finish(spec, choice, item, rates[dtype]) for item in measured]
    by_route = MatrixGflopsByRoute(fp32=rates.get("fp32"), bf16=rates.get("bf16"))
    return RankReport(
        machine=describe_machine(by_route),
        preset=spec.preset,
        seed=spec.seed,
        kernels=reasons,
        rows=rows,
        peers_source=PEER_SOURCE,
        peers=_compare(spec, rows, by_route),
    )


def _measure_dtype(
    spec: RankSpec, choice: Choice, stock: StockProcess, progress: Callable[[str], None]
) -> list[_Measured]:
    model = random_ranker(spec.config, choice.dtype, spec.seed)
    measured = []
    for history in spec.histories:
        for candidates in spec.candidates:
            progress(f"{choice.dtype_name}: history {history}, candidates {candidates}")
            cell = Cell(model, choice.kernel, history, candidates, spec.seed)
            naive = dense_pass(model, history, candidates)
            job = StockJob(
                preset=spec.preset,
                dtype=choice.dtype_name,
                seed=spec.seed,
                history=history,
                candidates=candidates,
            )
            stock.run(job)  # builds model and mask
            measured.append(_measure(cell, naive, partial(stock.run, job), choice.dtype_name, spec.repeats))
    return measured


@torch.inference_mode()
def _measure(cell: Cell, naive: DensePass, stock: Callable[[], None], dtype: str, repeats: int) -> _Measured:
    start = time.perf_counter()
    wanted = naive(cell.row)
    naive_ms = (time.perf_counter() - start) * 1e3
    spread = float(wanted.std(correction=0))
    difference = max(float((got - wanted).abs().max()) for got in (cell.full(), cell.hit()))
    # One candidate has no spread; a logit of order one is the scale then.
    if not difference <= TOLERANCE[dtype] * max(spread, 0.1):
        raise BackendError(
            f"history {cell.tokens}, {dtype}: kernel and dense pass differ by {difference:.3g}, "
            f"limit {TOLERANCE[dtype]:g} of the logits' spread, {spread:.3g}"
        )
    runs = int(min(max(_NAIVE_BUDGET_MS / naive_ms, min(2, repeats)), repeats))
    timings = round_robin(
        (
            Variant("full", cell.full, warm=True),
            Variant("hit", cell.hit, warm=True),
            Variant("append", cell.append, warm=True),
            Variant("prefill", cell.prefill, warm=True),
            Variant("naive", stock, runs),
            Variant("naive_kept_heap", lambda: naive(cell.row), runs),
        ),
        repeats,
        _ROW_LIMIT_S,
        _LEAST_ROUNDS,
    )
    by_name = {timing.name: timing for timing in timings}
    return _Measured(cell.tokens, len(cell.row.candidates), by_name, difference, spread)


def _finish(spec: RankSpec, choice: Choice, item: _Measured, rate: RouteGflops) -> RankRow:
    assert isinstance(choice.kernel, BlockedKernel)
    full, hit, append, prefill, naive, kept = (
        item.timings[name] for name in ("full", "hit", "append", "prefill", "naive", "naive_kept_heap")
    )
    price = cost(spec.config, choice.dtype.itemsize)
    gflops = price.prefill_flops(item.history) / prefill.median_ms / 1e6
    executed = price.prefetch_flops(item.history) / prefill.median_ms / 1e6
    return RankRow(
        history=item.history,
        candidates=item.candidates,
        dtype=choice.dtype_name,
        route=choice.kernel.route.name,
        full_ms=full.median_ms,
        hit_ms=hit.median_ms,
        append_ms=append.median_ms,
        naive_ms=naive.median_ms,
        naive_kept_heap_ms=kept.median_ms,
        prefill_ms=prefill.median_ms,
        full_min_ms=full.min_ms,
        hit_min_ms=hit.min_ms,
        append_min_ms=append.min_ms,
        naive_min_ms=naive.min_ms,
        prefill_min_ms=prefill.min_ms,
        prefill_efficiency=gflops / rate.best,
        prefill_efficiency_torch_mm=gflops / rate.aten,
        prefill_executed_efficiency=executed / rate.best,
        max_score_diff=item.difference,
        score_spread=item.spread,
        rounds=len(full.times_ms),
        naive_runs=len(naive.times_ms),
    )


def _compare(spec: RankSpec, rows: list[RankRow], rates: MatrixGflopsByRoute) -> list[PeerComparison]:
    if spec.preset != PEER_PRESET:
        return []
    fp32 = None if rates.fp32 is None else rates.fp32.aten
    bf16 = None if rates.bf16 is None else rates.bf16.aten
    found: list[PeerComparison] = []
    for row in rows:
        found += compare("full", row.history, row.candidates, row.dtype, row.full_ms, fp32, bf16)
        found += compare("hit", row.history, row.candidates, row.dtype, row.hit_ms, fp32, bf16)
    return found
