"""`bench transfer`: a ranking whose prefix is in host memory, with its copy beside the pass and before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor

from relaygr.bench.cell import PAGE_TOKENS, random_ranker, random_row
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.timing import Timing, Variant, round_robin
from relaygr.cache.interface import HostRun, LoadPlan
from relaygr.core.clock import MonotonicClock
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref
from relaygr.engine.transfer import Loading
from relaygr.kernels.interface import Kernel
from relaygr.kernels.select import choose
from relaygr.kernels.threads import serve_with_threads
from relaygr.memory.host import HostPool
from relaygr.memory.lane import Rush, Ticket
from relaygr.memory.lanes import thread_lanes
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.staging import Staging
from relaygr.memory.stores import PagedKv
from relaygr.models.presets import AnyConfig, preset
from relaygr.models.ranker import Ranker

_PATIENCE_S = 60.0
_TOLERANCE = 1e-5  # of the logits' scale; the same rows go through the same kernel
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """What to measure.

    Attributes:
        history: events of the user, of which the newest `suffix` are computed and the others loaded.
        rounds: runs of each variant, which take turns.
        threads: that compute; 0 leaves one core free, as a server does.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-small"
    history: int = 4096
    suffix: int = 32
    candidates: int = 256
    dtype: str = "fp32"
    rounds: int = 25
    threads: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        config = self.config
        for option, value, low, high in (
            ("--history", self.history, 1, config.max_history),
            ("--suffix", self.suffix, 0, self.history - 1),
            ("--candidates", self.candidates, 1, config.max_num_candidates),
            ("--rounds", self.rounds, 1, 10_000),
            ("--threads", self.threads, 0, 1024),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")
        if self.dtype not in ("fp32", "bf16"):
            raise ConfigError("--dtype", f"{self.dtype!r} is not one of fp32, bf16")

    @property
    def config(self) -> AnyConfig:
        return preset(self.preset)


class TransferReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench transfer --json` writes; milliseconds are medians.

    Attributes:
        loaded_tokens, loaded_mib: of the prefix, keys and values of all layers.
        layer_wise_ms: the pass begins with the copy, layer i waits for layer i.
        whole_first_ms: all of it is copied on the computing thread, then the pass begins.
        lane_first_ms: all of it is copied on the lane, then the pass begins.
        compute_ms: the pass alone, its prefix there.
        copy_ms, staged_copy_ms: the copy alone, directly and through staging buffers.
        layer_compute_ms, layer_copy_ms: c and t: the pass, embeddings and heads included, and the direct
            copy, each over the layers.
        bound_ms: max(c, t) * layers + min(c, t).
        gib_per_s, staged_gib_per_s: of the direct copy and the staged one.
        max_score_diff: largest difference of a logit between the ways.
    """

    cpu: str
    cores: int
    threads: int
    preset: str
    dtype: str
    history: int
    suffix: int
    candidates: int
    layers: int
    loaded_tokens: int
    loaded_mib: float
    layer_wise_ms: float
    whole_first_ms: float
    lane_first_ms: float
    compute_ms: float
    copy_ms: float
    staged_copy_ms: float
    layer_compute_ms: float
    layer_copy_ms: float
    bound_ms: float
    gib_per_s: float
    staged_gib_per_s: float
    max_score_diff: float
    rounds: int

    @property
    def over_bound(self) -> float:
        return self.layer_wise_ms / self.bound_ms

    @property
    def saved_ms(self) -> float:
        """By which a pass beside its copy is shorter than one behind it."""
        return self.whole_first_ms - self.layer_wise_ms


def bench_transfer(spec: TransferSpec, progress: Callable[[str], None] = lambda text: None) -> TransferReport:
    """Measure every way in turns.

    Raises:
        BackendError: a copy failed, or the ways give different scores.
    """
    progress("building model and prefix")
    threads = serve_with_threads(spec.threads)
    choice = choose("cpu", spec.dtype)
    user = _User(spec, random_ranker(spec.config, choice.dtype, spec.seed), choice.kernel)
    difference = user.check()
    progress(f"{spec.rounds} rounds of 6 variants")
    variants = [Variant(name, call, warm=True) for name, call in user.ways().items()]
    timings = {timing.name: timing for timing in round_robin(variants, spec.rounds)}
    user.close()
    return _report(spec, user, timings, threads, difference)


class _User:
    """One user's prefix in host memory and room for it on pages, with every way of ranking against it."""

    def __init__(self, spec: TransferSpec, model: Ranker, kernel: Kernel) -> None:
        config = model.config
        self._model, self._kernel = model, kernel
        self.layout = KvLayout(
            config.num_layers, config.num_heads, config.qk_dim, config.v_dim, model.compute_dtype, PAGE_TOKENS
        )
        self.tokens, self.loaded = (config.prefix_tokens(spec.history - less) for less in (0, spec.suffix))
        self._row = random_row(config, spec.history, spec.candidates, spec.seed)
        self._pool = PagePool(self.layout, pages=self.layout.pages_for(self.tokens))
        self._host = HostPool(self.layout, self.loaded)
        self._staging = Staging(self.layout, min(8192, self.loaded), self._pool.device)
        self._lanes = thread_lanes(1, MonotonicClock())
        self._pages = tuple(range(self._pool.pages))
        self._fill()

    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            "layer_wise": self.layer_wise,
            "whole_first": self.whole_first,
            "lane_first": self.lane_first,
            "compute": self.compute,
            "copy": lambda: self._await(self._launch(None)),
            "staged_copy": lambda: self._await(self._launch(self._staging)),
        }

    def check(self) -> float:
        """Largest difference of a logit between the ways.

        Raises:
            BackendError: it is more than rounding.
        """
        want = self.compute()
        scale = max(1.0, float(want.abs().max()))
        worst = 0.0
        for way in (self.layer_wise, self.whole_first, self.lane_first):
            self._pool.zero(self._pages)
            worst = max(worst, float((way() - want).abs().max()))
        if not worst <= _TOLERANCE * scale:
            raise BackendError(f"scores differ by {worst:.3g}, limit {_TOLERANCE:g} of their scale")
        return worst

    def layer_wise(self) -> Tensor:
        ticket = self._launch(None)

        def gate(layer: int) -> None:
            if not ticket.wait(layer, _PATIENCE_S):
                raise BackendError(f"layer {layer} did not come: {ticket.reason or 'too late'}")

        return self._run(gate)

    def whole_first(self) -> Tensor:
        Loading(self._pool, self._host, self._plan()).step(_WHOLE)
        return self._run(None)

    def lane_first(self) -> Tensor:
        self._await(self._launch(None))
        return self._run(None)

    def compute(self) -> Tensor:
        return self._run(None)

    def close(self) -> None:
        self._lanes.close()

    @torch.inference_mode()
    def _run(self, gate: Callable[[int], None] | None) -> Tensor:
        store = PagedKv(self._pool, self._pages, self.tokens, clean_tail=True, filled=self.loaded, gate=gate)
        out: Tensor = self._model([replace(self._row, cached=self.loaded, store=store)], self._kernel)[0]
        return out

    @torch.inference_mode()
    def _fill(self) -> None:
        """Compute the prefix once and keep it in host memory; it stays on the pages, too."""
        events = len(self._row.items) - (self.tokens - self.loaded) // self._model.config.tokens_per_event
        alone = replace(
            self._row,
            items=self._row.items[:events],
            timestamps=self._row.timestamps[:events],
            actions=self._row.actions[:events],
            candidates=self._row.candidates[:0],
            store=PagedKv(self._pool, self._pages, self.loaded, clean_tail=True, filled=0),
        )
        self._model([alone], self._kernel)
        runs = self._plan().runs
        for piece in self._host.pieces(self._pool.place(self._pages), runs, 0, self.loaded):
            self._host.store(self._pool, piece)

    def _plan(self) -> LoadPlan:
        """All of the prefix, in one run."""
        nobody = Ref(
            Tenant(""), UserId(""), Fingerprint(bytes(16)), 0, 0, (b"",), (), memoryview(b""), 8, self.loaded
        )
        return LoadPlan(0, nobody, 0, self.loaded, (HostRun(0, self.loaded, 0),), self._pages)

    def _launch(self, staging: Staging | None) -> Ticket:
        loading = Loading(self._pool, self._host, self._plan(), staging)
        ticket = self._lanes.h2d.launch(loading, Rush.RANK, float("inf"))
        if not isinstance(ticket, Ticket):
            raise BackendError(f"the lane declined a copy: {ticket}")
        loading.ticket = ticket
        return ticket

    def _await(self, ticket: Ticket) -> None:
        if not ticket.wait(self.layout.layers - 1, _PATIENCE_S):
            raise BackendError(f"a copy did not come: {ticket.reason or 'too late'}")


def _report(
    spec: TransferSpec, user: _User, timings: dict[str, Timing], threads: int, difference: float
) -> TransferReport:
    ms = {name: timing.median_ms for name, timing in timings.items()}
    layers = user.layout.layers
    nbytes = user.loaded * user.layout.token_bytes
    compute, copy = ms["compute"] / layers, ms["copy"] / layers
    return TransferReport(
        cpu=cpu_model(),
        cores=usable_cores(),
        threads=threads,
        preset=spec.preset,
        dtype=spec.dtype,
        history=spec.history,
        suffix=spec.suffix,
        candidates=spec.candidates,
        layers=layers,
        loaded_tokens=user.loaded,
        loaded_mib=nbytes / (1 << 20),
        layer_wise_ms=ms["layer_wise"],
        whole_first_ms=ms["whole_first"],
        lane_first_ms=ms["lane_first"],
        compute_ms=ms["compute"],
        copy_ms=ms["copy"],
        staged_copy_ms=ms["staged_copy"],
        layer_compute_ms=compute,
        layer_copy_ms=copy,
        bound_ms=max(compute, copy) * layers + min(compute, copy),
        gib_per_s=nbytes / ms["copy"] * 1e3 / (1 << 30),
        staged_gib_per_s=nbytes / ms["staged_copy"] * 1e3 / (1 << 30),
        max_score_diff=difference,
        rounds=len(timings["compute"].times_ms),
    )
