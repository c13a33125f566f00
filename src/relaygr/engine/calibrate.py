"""Time a model on this machine, through a real engine, and fit its latency model."""

from __future__ import annotations

import logging
import math
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path as FilePath

import msgspec
import torch

from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.units import MIB
from relaygr.engine.engine import Engine
from relaygr.engine.ladder import TENANT, Ladder, ladders
from relaygr.engine.requests import PrefetchResult, RankRequest
from relaygr.kernels.cpu import BlockedKernel
from relaygr.kernels.threads import usable_cores
from relaygr.relay.calibration import Build, Calibration, Point, load_calibration, save_calibration
from relaygr.relay.latency import Pass

log = logging.getLogger("relaygr.engine")

SHORT_S, LONG_S, MAX_S = 3.0, 20.0, 600.0
MAX_TIMES = 200  # of one shape; enough, however they differ
# Times of one shape whose median is further above the least are taken to be disturbed.
_QUIET_SPREAD = 1.05
_LEAST_ROUNDS, _LEAST_TIMES = 3, 5
_ROUNDS_SHARE = 0.6  # of the time; the rest goes to what was disturbed

Timer = Callable[[], float]


def describe_build(engine: Engine) -> Build:
    """What a calibration of `engine` holds for."""
    kernel = engine.choice.kernel
    parts = [kernel.name, f"torch {torch.__version__}"]
    if isinstance(kernel, BlockedKernel):
        parts[1:1] = [kernel.route.name, *(["bitwise"] if kernel.bitwise else [])]
    return Build(
        model=engine.model_fp.hex(),
        dtype=engine.choice.dtype_name,
        kernel=" ".join(parts),
        threads=torch.get_num_threads(),
        machine=f"{_processor()}, {usable_cores()} cores",
    )


def calibrate(engine: Engine, seconds: float = SHORT_S, timer: Timer = time.perf_counter) -> Calibration:
    """Time the model of `engine` for about `seconds`, at most `SHORT_S` of them on a coarse grid.

    A second engine runs the passes, so that the cache and the counters of `engine` stay as they are.

    Raises:
        ConfigError: `seconds` is outside (0, `MAX_S`].
        BackendError: the model gives scores that are not finite.
    """
    if not 0 < seconds <= MAX_S:
        raise ConfigError("seconds", f"{seconds} is outside (0, {MAX_S:g}]")
    calibration = Calibration.of(describe_build(engine), measure(_aside(engine), seconds, timer))
    error = statistics.median(abs(calibration.error(point)) for point in calibration.points)
    log.info("calibrated on %d shapes, median error %.0f %%", len(calibration.points), 100 * error)
    return calibration


def calibrated(engine: Engine, file: FilePath | None, seconds: float = SHORT_S) -> Calibration:
    """The calibration in `file` if it was measured on this build and machine, else a new one, written there.

    Raises:
        ConfigError: the file is there and no calibration, or cannot be written.
    """
    if file is not None and file.exists():
        stored = load_calibration(file)
        try:
            stored.check(describe_build(engine))
        except ConfigError as error:
            log.info("calibrating again: %s", error)
        else:
            log.info("calibration read from %s", file)
            return stored
    calibration = calibrate(engine, seconds)
    if file is not None:
        save_calibration(file, calibration)
    return calibration


def measure(engine: Engine, seconds: float, timer: Timer = time.perf_counter) -> tuple[Point, ...]:
    """Time requests of growing users on `engine`, and forget these.

    All shapes take turns, so that a slow second hits all of them alike; what is left of the time goes to
    the ones whose times differ most. Lengths that would not fit in the time are left out.
    """
    run = _Run(engine, timer, seconds)
    grid = ladders(engine.model_config, engine.config.max_candidates, dense=seconds > SHORT_S)
    try:
        chosen = run.warm(grid)
        while run.spent() < _ROUNDS_SHARE or run.rounds < _LEAST_ROUNDS:
            if not run.round(chosen) or run.rounds == MAX_TIMES:
                break
        while (disturbed := run.most_disturbed(chosen)) is not None:
            run.climb(disturbed)
    finally:
        for rung in grid:
            for ladder in rung:
                engine.forget(TENANT, ladder.user)
    return run.points()


class _Run:
    """Times by shape, as the engine served it: the shape is what it says it computed, not what was asked."""

    def __init__(self, engine: Engine, timer: Timer, seconds: float) -> None:
        self.rounds = 0
        self._engine, self._timer, self._seconds = engine, timer, seconds
        self._start_s = timer()
        self._times: dict[Pass, deque[float]] = {}
        self._shapes: dict[str, set[Pass]] = {}  # by user
        self._cost: dict[str, float] = {}  # by user, share of the time

    def spent(self) -> float:
        """Share of the time."""
        return (self._timer() - self._start_s) / self._seconds

    def warm(self, grid: list[list[Ladder]]) -> list[Ladder]:
        """Run the lengths once, as long as a further one is likely to fit; returns what was run.

        Raises:
            BackendError: no pass took any time.
        """
        chosen: list[Ladder] = []
        cost, events = 0.0, 0
        self.climb(grid[0][0])  # the very first pass of a process says nothing about the others
        for rung in grid:
            # A cold pass grows faster than its length, the warm ones behind it hardly at all.
            growth = 1.5 * rung[0].events / events if events else 0.0
            if self.spent() + cost * growth > 1:
                log.info("calibration: %d events and more take too long", rung[0].events)
                break
            before = self.spent()
            for ladder in rung:
                self.climb(ladder)
            chosen += rung
            cost, events = self.spent() - before, rung[0].events
        if not self._times:
            raise BackendError("calibration: the clock did not move during any pass")
        return chosen

    def round(self, chosen: list[Ladder]) -> bool:
        """Every ladder once that still fits; False if one does not."""
        skipped = 0
        for ladder in chosen:
            if self._fits(ladder):
                self.climb(ladder)
            else:
                skipped += 1
        self.rounds += 1
        return not skipped

    def climb(self, ladder: Ladder) -> None:
        """Run a ladder from its cold start."""
        before = self.spent()
        self._engine.forget(TENANT, ladder.user)
        for request in ladder.requests:
            start_s = self._timer()
            served = self._serve(request)
            ms = (self._timer() - start_s) * 1e3
            shape = Pass(
                new_tokens=served.tokens_computed + served.tokens_provisional,
                cached_tokens=served.tokens_cached,
                candidates=len(request.candidates),
                chunk=not len(request.candidates),
            )
            # Models that keep nothing have no pre-inference; a clock may be too coarse for a short pass.
            if shape.rows and ms > 0:
                self._times.setdefault(shape, deque(maxlen=MAX_TIMES)).append(ms)
                self._shapes.setdefault(ladder.user, set()).add(shape)
        self._cost[ladder.user] = self.spent() - before

    def most_disturbed(self, chosen: list[Ladder]) -> Ladder | None:
        """The ladder with the fewest or the most different times that still fits; None if all are quiet."""
        spreads = [(self._spread(ladder), ladder) for ladder in chosen if self._fits(ladder)]
        spread, ladder = max(spreads, key=lambda pair: pair[0], default=(1.0, None))
        return ladder if spread > _QUIET_SPREAD else None

    def points(self) -> tuple[Point, ...]:
        return tuple(map(self._point, self._times))

    def _serve(self, request: RankRequest) -> PrefetchResult:
        if not len(request.candidates):
            return self._engine.prefetch(request.history)
        return self._engine.rank(request).served

    def _spread(self, ladder: Ladder) -> float:
        points = [self._point(shape) for shape in self._shapes.get(ladder.user, ())]
        counts = [len(point.times_ms) for point in points]
        if min(counts, default=0) < _LEAST_TIMES:
            return math.inf
        if max(counts) >= MAX_TIMES - 1:
            return 1.0
        return max(point.median_ms / min(point.times_ms) for point in points)

    def _point(self, shape: Pass) -> Point:
        """A shape with its times; without the first, which met cold caches, where there are enough."""
        times = tuple(self._times[shape])
        return Point(shape=shape, times_ms=times[1:] if len(times) > _LEAST_ROUNDS else times)

    def _fits(self, ladder: Ladder) -> bool:
        return self.spent() + self._cost[ladder.user] <= 1


def _aside(engine: Engine) -> Engine:
    """An engine for the same model with room for two of the longest users, if `engine` itself has it."""
    pages = 2 * engine.layout.pages_for(engine.model_config.max_seq_len)
    size = min(max(pages * engine.layout.page_bytes, MIB), engine.config.device_bytes)
    config = msgspec.structs.replace(engine.config, device_bytes=size)
    return Engine(engine.model, engine.model_fp, engine.choice, config)


def _processor() -> str:
    try:
        lines = FilePath("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
