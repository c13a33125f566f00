"""What a host format does to a model's scores: measured on made-up users, against passes without a cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relaygr.config.host import HostConfig
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.engine.batch import Work, score
from relaygr.engine.checker import Checker
from relaygr.engine.engine import Engine
from relaygr.engine.ladder import Climb
from relaygr.engine.residency import Residency
from relaygr.kernels.interface import Kernel
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import INT8
from relaygr.memory.layout import KvLayout
from relaygr.memory.stores import PrivateKv
from relaygr.models.ranker import Ranker

log = logging.getLogger("relaygr.engine")

TOP = 10
_START_EVENTS, _START_SUFFIX, _START_CANDIDATES, _START_SEEDS = 512, 32, 64, 2


@dataclass(frozen=True, slots=True)
class Drift:
    """How far scores are from those of a pass without a cache; the worst of what was measured.

    Attributes:
        logit, probability: largest difference; the value of a regression, which has no probability, counts as
            a share of the largest one if that is above 1.
        mean_share: mean difference of a logit, over the standard deviation of the task's logits.
        overlap: share of the best ten that are among the best ten, mean of the tasks.
    """

    logit: float = 0.0
    probability: float = 0.0
    mean_share: float = 0.0
    overlap: float = 1.0

    def worst(self, other: Drift) -> Drift:
        return Drift(
            max(self.logit, other.logit),
            max(self.probability, other.probability),
            max(self.mean_share, other.mean_share),
            min(self.overlap, other.overlap),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A made-up user: `prefix` events that were in host memory, `suffix` newer ones, candidates."""

    prefix: int
    suffix: int
    candidates: int
    seed: int


class DriftMeter:
    """One model and kernel; keeps nothing between calls. Raises ConfigError for a model without prefixes."""

    def __init__(self, model: Ranker, kernel: Kernel, page_tokens: int) -> None:
        shape = model.config
        if shape.cacheable != "append":
            raise ConfigError("model", f"is cacheable per {shape.cacheable}: no prefix of it is kept")
        self._model, self._kernel = model, kernel
        self._settings = EngineConfig(page_tokens=page_tokens)
        self._checker = Checker(model, Fingerprint(bytes(16)), self._settings)
        self._layout = KvLayout(
            shape.num_layers, shape.num_heads, shape.qk_dim, shape.v_dim, model.compute_dtype, page_tokens
        )

    @torch.inference_mode()
    def drifts(self, case: Case, formats: Sequence[HostFormat]) -> list[Drift]:
        """Of each format, once through host memory.

        Raises:
            BackendError: the model gives scores that are not finite.
        """
        work = self._work(case)
        store = PrivateKv(self._layout, work.tokens)
        wanted = self._scores(work, store, 0)
        found = []
        for form in formats:
            copy, kept = PrivateKv(self._layout, work.tokens), self._tokens(case.prefix)
            _through(form, store, copy, kept)
            found.append(self._drift(self._scores(work, copy, kept), wanted))
        return found

    @torch.inference_mode()
    def cycles(self, case: Case, form: HostFormat, cycles: int) -> Drift:
        """After so many turns of: to host memory and back, then a share of the newer events computed.

        Raises:
            BackendError: the model gives scores that are not finite.
        """
        work = self._work(case)
        wanted = self._scores(work, PrivateKv(self._layout, work.tokens), 0)
        store = PrivateKv(self._layout, work.tokens)
        kept = self._advance(work, store, 0, case.prefix)
        for turn in range(1, cycles + 1):
            _through(form, store, store, kept)
            kept = self._advance(work, store, kept, case.prefix + case.suffix * turn // cycles)
        _through(form, store, store, kept)
        return self._drift(self._scores(work, store, kept), wanted)

    def _work(self, case: Case) -> Work:
        user = Climb(self._model.config, "drift", case.prefix + case.suffix, case.seed)
        return self._checker.work(0, user.rank(case.candidates))

    def _tokens(self, events: int) -> int:
        return self._model.config.prefix_tokens(events)

    def _advance(self, work: Work, store: PrivateKv, kept: int, events: int) -> int:
        """Compute the tokens behind `kept` up to so many events; returns how many tokens there are then."""
        tokens = self._tokens(events)
        if tokens > kept:
            part = replace(work, stop=work.start + events, tokens=tokens, candidates=work.candidates[:0])
            self._scores(part, store, kept)
        return tokens

    def _scores(self, work: Work, store: PrivateKv, cached: int) -> Tensor:
        held = [Residency(store, cached, "")]
        return score(self._model, self._kernel, [work], held, self._settings.microbatch)[0].double()

    def _drift(self, found: Tensor, wanted: Tensor) -> Drift:
        if not bool(wanted.isfinite().all()):
            raise BackendError("the model gives scores that are not finite")
        off = (found - wanted).abs()  # [m, tasks]
        if not bool(off.isfinite().all()):
            return Drift(torch.inf, torch.inf, torch.inf, 0.0)
        spread = wanted.std(0, correction=0).clamp_min(1e-12)
        top = min(TOP, len(wanted))
        best = [set(column.topk(top).indices.tolist()) for column in found.T]
        right = [set(column.topk(top).indices.tolist()) for column in wanted.T]
        shared = sum(len(one & other) for one, other in zip(best, right, strict=True))
        return Drift(
            float(off.max()),
            float(self._served(found, wanted, off).max()),
            float((off.mean(0) / spread).max()),
            shared / (top * len(best)),
        )

    def _served(self, found: Tensor, wanted: Tensor, off: Tensor) -> Tensor:
        """Differences of what a caller reads, by task: probabilities, or shares of a regression's values."""
        shape = self._model.config
        moved = (found.sigmoid() - wanted.sigmoid()).abs()
        for column, task in enumerate(shape.tasks):
            if task in shape.regressions:
                moved[:, column] = off[:, column] / wanted[:, column].abs().max().clamp_min(1.0)
        return moved


def start_drift(engine: Engine, form: HostFormat) -> Drift:
    """The drift of `form` on a few users of bounded length: a fraction of a second for a small model.

    Raises:
        BackendError: the model gives scores that are not finite.
    """
    shape = engine.model_config
    suffix = min(_START_SUFFIX, shape.max_history // 8)
    prefix = max(min(_START_EVENTS, shape.max_history // 2) - suffix, 1)
    candidates = min(_START_CANDIDATES, shape.max_num_candidates)
    meter = DriftMeter(engine.model, engine.choice.kernel, engine.layout.page_tokens)
    found = Drift()
    for seed in range(_START_SEEDS):
        found = found.worst(meter.drifts(Case(prefix, suffix, candidates, seed), [form])[0])
    return found


def check_drift(engine: Engine, host: HostConfig) -> Drift | None:
    """Refuse the host format of `engine` if it moves a probability further than `host.drift_limit`.

    Returns what was measured; None where nothing is rounded, or no prefix is kept.

    Raises:
        ConfigError: naming the format, what was measured and the limit.
        BackendError: the model gives scores that are not finite.
    """
    form = engine.host_format
    if form.exact or engine.model_config.cacheable != "append":
        return None
    drift = start_drift(engine, form)
    if not drift.probability <= host.drift_limit:
        raise ConfigError(
            "host.host_dtype",
            f"{host.host_dtype!r} moves a probability of this model by {drift.probability:.3g}, "
            f"host.drift_limit is {host.drift_limit:g}",
        )
    log.info(
        "host tier in %s: moves a probability by up to %.2g (limit %g), a logit by %.2g",
        form.name,
        drift.probability,
        host.drift_limit,
        drift.logit,
    )
    return drift


def say_format(engine: Engine, host: HostConfig) -> None:
    """Where states are kept as they are in the same memory as the device's, say what int8 would hold."""
    kept = host.host_bytes and engine.model_config.cacheable == "append"
    if not kept or not engine.host_format.exact or engine.layout.dtype == torch.float64:
        return
    ratio = engine.layout.token_bytes / INT8.token_bytes(engine.layout)
    log.info("the host tier keeps states as they are: host.host_dtype=int8 holds %.1fx more users", ratio)


def _through(form: HostFormat, source: PrivateKv, target: PrivateKv, tokens: int) -> None:
    """The first `tokens` rows of `source`, as they come back from host memory in `form`, into `target`."""
    if not tokens:
        return
    layout = source.layout
    parts = [source.read(layer, tokens) for layer in range(layout.layers)]
    keys, values = (torch.stack(part) for part in zip(*parts, strict=True))  # [Y, H, whole pages, D]
    count = form.tokens_per_row(layout.page_tokens)
    for rows in (keys, values):
        grouped = rows.view(*rows.shape[:2], rows.shape[2] // count, count * rows.shape[3])
        stored = form.empty(grouped.shape[:3], grouped.shape[3], layout.dtype)
        form.encode(grouped, stored)
        form.decode(stored, grouped)
    for layer in range(layout.layers):
        target.write(
            layer, 0, keys[layer, :, :tokens].transpose(0, 1), values[layer, :, :tokens].transpose(0, 1)
        )
