"""`bench drift`: what each host format saves, costs and does to the scores of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from relaygr.bench.cell import PAGE_TOKENS, random_ranker
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.timing import Variant, round_robin
from relaygr.config.host import HostConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.drift import Case, Drift, DriftMeter
from relaygr.kernels.select import Choice, choose
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import formats
from relaygr.memory.layout import KvLayout
from relaygr.models.presets import preset
from relaygr.models.ranker import Ranker
from relaygr.models.weights import open_ranker

LOAD_TOKENS, CYCLES = 4096, 50
_PREFIXES, _SUFFIX, _PER_CYCLE = (512, 2048), 32, 2
_LOADS = 9


@dataclass(frozen=True, slots=True)
class DriftSpec:
    """What is measured.

    Attributes:
        model: folder of a ranker; None makes up weights for `preset`.
        dtype: fp32 or bf16, of matrices and of keys and values on the device.
        candidates: of each made-up user.
        seeds: users of each length.
        limit: on the largest difference of a probability.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    preset: str = "hstu-tiny"
    model: Path | None = None
    dtype: str = "fp32"
    candidates: int = 256
    seeds: int = 3
    limit: float = HostConfig().drift_limit

    def __post_init__(self) -> None:
        if self.dtype not in ("fp32", "bf16"):
            raise ConfigError("--dtype", f"{self.dtype!r} must be fp32 or bf16")
        for option, value, high in (("--candidates", self.candidates, 65_536), ("--seeds", self.seeds, 1000)):
            if not 1 <= value <= high:
                raise ConfigError(option, f"{value} is outside [1, {high}]")
        HostConfig.LIMITS["drift_limit"].check("--limit", self.limit)


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """One format; differences are to passes without a cache, the worst of all users.

    Attributes:
        size_ratio: bytes in host memory over bytes on the device.
        logit, probability, mean_share, overlap: see `engine.drift.Drift`; once through host memory.
        load_ms: from host memory into pages, median.
        cycles_logit, cycles_probability: after many turns of host memory and newer events.
        refused: why a server does not take it for this model; empty if it does.
    """

    format: str
    size_ratio: float
    logit: float
    probability: float
    mean_share: float
    overlap: float
    load_ms: float
    cycles_logit: float
    cycles_probability: float
    refused: str


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench drift --json` writes.

    Attributes:
        model: its folder; empty for random weights of `preset`.
        prefixes, suffix, candidates, seeds: the users.
        cycles, cycle_events: the turns, and the newer events of all of them together.
        load_tokens: of `load_ms`.
    """

    cpu: str
    cores: int
    threads: int
    torch: str
    model: str
    preset: str
    dtype: str
    prefixes: tuple[int, ...]
    suffix: int
    candidates: int
    seeds: int
    cycles: int
    cycle_events: int
    load_tokens: int
    limit: float
    rows: list[DriftRow]


def bench_drift(spec: DriftSpec, progress: Callable[[str], None] = lambda text: None) -> DriftReport:
    """Measure every format.

    Raises:
        ConfigError: the preset or the folder is wrong, or the model keeps no prefixes.
        BackendError: the model gives scores that are not finite.
    """
    choice = choose("cpu", spec.dtype)
    model = _model(spec, choice)
    meter = DriftMeter(model, choice.kernel, PAGE_TOKENS)
    found = formats(choice.dtype)
    single, turns = _cases(spec, model)
    progress(f"drift of {len(found)} formats")
    drifts = [Drift()] * len(found)
    for case in single:
        drifts = [one.worst(new) for one, new in zip(drifts, meter.drifts(case, found), strict=True)]
    cycled = []
    for form in found:
        progress(f"{form.name}: {CYCLES} turns")
        cycled.append(meter.cycles(turns, form, CYCLES))
    progress("load times")
    shape = model.config
    layout = KvLayout(shape.num_layers, shape.num_heads, shape.qk_dim, shape.v_dim, choice.dtype, PAGE_TOKENS)
    loads = load_ms(layout, found, LOAD_TOKENS)
    rows = [_row(spec, layout, *each) for each in zip(found, drifts, cycled, loads, strict=True)]
    return DriftReport(
        cpu=cpu_model(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        model="" if spec.model is None else str(spec.model),
        preset=spec.preset if spec.model is None else "",
        dtype=spec.dtype,
        prefixes=tuple(sorted({case.prefix for case in single})),
        suffix=single[0].suffix,
        candidates=single[0].candidates,
        seeds=spec.seeds,
        cycles=CYCLES,
        cycle_events=turns.suffix,
        load_tokens=LOAD_TOKENS,
        limit=spec.limit,
        rows=rows,
    )


def load_ms(layout: KvLayout, found: Sequence[HostFormat], tokens: int) -> list[float]:
    """Median time of bringing `tokens` tokens, keys and values of all layers, from each format into pages."""
    shape = (layout.layers, layout.heads, tokens)
    generator = torch.Generator().manual_seed(0)
    device = [
        torch.randn((*shape, dim), generator=generator).to(layout.dtype)
        for dim in (layout.qk_dim, layout.v_dim)
    ]
    variants = []
    for form in found:
        count = form.tokens_per_row(layout.page_tokens)
        moves = []
        for rows in device:
            grouped = rows.view(*shape[:2], tokens // count, count * rows.shape[3])
            stored = form.empty(tuple(grouped.shape[:3]), grouped.shape[3], layout.dtype)
            form.encode(grouped, stored)
            moves.append(partial(form.decode, stored, grouped))
        variants.append(Variant(form.name, partial(_all, moves)))
    return [timing.median_ms for timing in round_robin(variants, _LOADS)]


def _all(moves: Sequence[Callable[[], None]]) -> None:
    for move in moves:
        move()


def _model(spec: DriftSpec, choice: Choice) -> Ranker:
    if spec.model is not None:
        return open_ranker(spec.model, choice.dtype)[0]
    return random_ranker(preset(spec.preset), choice.dtype, seed=0)


def _cases(spec: DriftSpec, model: Ranker) -> tuple[list[Case], Case]:
    """Users of each length that the model has room for, and the one who comes and goes."""
    shape = model.config
    candidates = min(spec.candidates, shape.max_num_candidates)
    suffix = min(_SUFFIX, max(shape.max_history // 8, 1))
    lengths = sorted({max(min(prefix, shape.max_history - suffix), 1) for prefix in _PREFIXES})
    single = [Case(length, suffix, candidates, seed) for length in lengths for seed in range(spec.seeds)]
    newer = min(_PER_CYCLE * CYCLES, shape.max_history // 2)
    return single, Case(max(min(_PREFIXES[0], shape.max_history - newer), 1), newer, candidates, 0)


def _row(
    spec: DriftSpec, layout: KvLayout, form: HostFormat, drift: Drift, cycled: Drift, load: float
) -> DriftRow:
    refused = ""
    if not max(drift.probability, cycled.probability) <= spec.limit and not form.exact:
        refused = "above the limit"
    elif form.tokens_per_row(layout.page_tokens) > 1:
        refused = "scale of a page"
    return DriftRow(
        format=form.name,
        size_ratio=form.page_bytes(layout) / layout.page_bytes,
        logit=drift.logit,
        probability=drift.probability,
        mean_share=drift.mean_share,
        overlap=drift.overlap,
        load_ms=load,
        cycles_logit=cycled.logit,
        cycles_probability=cycled.probability,
        refused=refused,
    )
