"""Slates over the scores of one ranking: nothing here asks the ranker again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import numpy as np

from relaygr.config.slate import SlateConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import BackendError, ConfigError, RequestError
from relaygr.engine.requests import RankResult
from relaygr.engine.slate.opening import (
    needed,
    open_items,
    open_rules,
    open_slates,
    read_by_models,
    vectors_read_by,
)
from relaygr.engine.slate.request import Known, SlateRequest, known, rules_of, shown_of
from relaygr.listwise.arrays import Float64
from relaygr.listwise.items import ItemTable
from relaygr.listwise.masks import NoRules
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.result import SlateResult
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import Slates

_LEAST_MS = 0.001  # of a request whose time is over: the fallback is made, nothing else


@dataclass(frozen=True, slots=True)
class Order:
    """A request that was checked, before anything is computed for it."""

    ask: SlateAsk
    candidates: Known


@dataclass(frozen=True, slots=True)
class Made:
    """A list, and what it was made from.

    Attributes:
        values: float64 [C], pointwise values of the candidates.
    """

    result: SlateResult
    pool: Pool
    values: Float64
    unknown: int


class SlateMaker:
    """The list layer of a server; threads may share it.

    Args:
        slates: the serving loop.
        rules: of every request; None for none.
        table: what is known of items; None leaves it to requests.
        config: defaults and limits.
    """

    def __init__(
        self, slates: Slates, rules: RuleSet | None, table: ItemTable | None, config: SlateConfig
    ) -> None:
        self.slates, self.rules, self.table, self.config = slates, rules, table, config
        self._lock, self._mode = threading.Lock(), Mode(config.mode)

    @classmethod
    def open(cls, config: SlateConfig, heads: tuple[Head, ...], clock: Clock | None = None) -> SlateMaker:
        """Read all that the settings name.

        Raises:
            ConfigError: naming the setting, what is wrong with it, and the limit.
        """
        slates, rules, table = open_slates(config, heads, clock), open_rules(config), open_items(config)
        if table is not None:
            for attribute, who in needed(slates, rules).items():
                if attribute not in table.attributes:
                    have = ", ".join(table.attributes) or "none"
                    raise ConfigError(
                        config.key("items"),
                        f"{config.items} lacks {attribute!r}, which {who} reads; has {have}",
                    )
            reader = vectors_read_by(slates)
            if reader is not None and table.vectors is None:
                raise ConfigError(config.key("items"), f"{config.items} has no vectors, which {reader} reads")
        return cls(slates, rules, table, config)

    @property
    def mode(self) -> Mode:
        """Of requests that name none; while it is `off` of all of them."""
        return self._mode

    def switch(self, mode: Mode) -> Mode:
        """Another mode from the next request on; the one before is returned.

        Raises:
            RequestError: the mode needs a step model, and there is none.
        """
        if mode is not Mode.OFF and self.slates.step is None:
            raise RequestError("mode", f"{mode} needs a step model, and this server has none")
        with self._lock:
            before, self._mode = self._mode, mode
        return before

    def fits(self, heads: tuple[Head, ...]) -> None:
        """ConfigError if a ranker has other heads than the value function was bound to."""
        if heads != self.slates.value.heads:
            raise ConfigError(
                "model.tasks", f"{heads} are not those of the value function, {self.slates.value.heads}"
            )

    def order(self, request: SlateRequest) -> Order:
        """Check a request against limits, models and rules, before it is ranked.

        Raises:
            RequestError: naming the field, the value and the limit.
        """
        config, count = self.config, len(request.candidates.ids)
        if not 1 <= count <= config.max_candidates:
            raise RequestError("candidates", f"{count} candidates, wanted from 1 to {config.max_candidates}")
        if request.length > config.max_length:
            raise RequestError("length", f"{request.length} positions, limit {config.max_length}")
        candidates = known("", request.candidates, self.table)
        rules = rules_of(self.rules, request.rules)
        mode = self.mode if request.mode is None or self.mode is Mode.OFF else request.mode
        if mode is not Mode.OFF and self.slates.step is None:
            raise RequestError("mode", f"{mode} needs a step model, and this server has none")
        shown = None
        if request.shown is not None:
            given = request.candidates.vectors is not None
            shown = shown_of(request.shown, known("shown.", request.shown, self.table), candidates, given)
        ask = SlateAsk(
            request_id=request.request_id,
            length=request.length,
            rules=NoRules() if rules is None else rules,
            shown=shown,
            slots=request.slots,
            consumed=request.consumed,
            mode=mode,
            unrestricted=request.unrestricted,
            allow_short=request.allow_short,
            explore=request.explore,
        )
        self._check_facts(request, candidates, mode)
        return Order(ask, candidates)

    def make(self, order: Order, ranked: RankResult, budget_ms: float | None) -> Made:
        """The list, from the scores of one ranking of exactly the order's candidates.

        Args:
            budget_ms: time that the list layer may take; None for no limit.

        Raises:
            RequestError: the request does not fit the models, or no list satisfies the rules.
            BackendError: even the fallback violates a rule, or scores are not finite.
        """
        heads, candidates, ask = self.slates.value.heads, order.candidates, order.ask
        outputs = np.asarray(ranked.logits, dtype=np.float32)
        if not np.isfinite(outputs).all():
            raise BackendError("ranker: scores are not finite")
        for column, task in enumerate(ranked.tasks):
            if task in ranked.regressions:
                outputs = outputs.copy()
                outputs[:, column] = np.maximum(outputs[:, column], 0.0)
        pool = Pool(
            ids=candidates.ids,
            heads=heads,
            outputs=outputs,
            attributes=candidates.attributes,
            vectors=candidates.vectors,
        )
        limited = replace(ask, budget_ms=None if budget_ms is None else max(budget_ms, _LEAST_MS))
        result = self.slates.serve(limited, pool)
        return Made(result, pool, self.slates.value(pool.natural()), candidates.unknown)

    def _check_facts(self, request: SlateRequest, candidates: Known, mode: Mode) -> None:
        """What models read must be there, or every such request would end in the fallback."""
        if mode is Mode.OFF or self.slates.step is None:
            return
        for name, who in read_by_models(self.slates).items():
            if name not in candidates.attributes:
                raise RequestError("attributes", f"lack {name!r}, which {who} reads")
        reader = vectors_read_by(self.slates)
        if reader is not None and candidates.vectors is None:
            raise RequestError("vectors", f"are missing, and {reader} reads them")
