"""The checks of `relaygr verify`: one request served in many ways, and what each way may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from relaygr.bench.verify_probe import Full, Probe, dense_logits
from relaygr.bench.verify_sample import Case
from relaygr.bench.verify_tally import (
    BF16_PATH_TOLERANCE,
    BF16_REFERENCE_TOLERANCE,
    FP32_TOLERANCE,
    Tally,
)
from relaygr.engine.engine import Engine
from relaygr.engine.requests import RankRequest
from relaygr.models.ranker import Ranker

_APPEND_PIECES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Engines:
    """One set of weights behind three engines, and twice in the dense formula.

    Attributes:
        main: a pool that holds every batch.
        micro: scores a few candidates at a time.
        small: the smallest pool.
        dense32, dense64: the model for the reference kernel, which has no cache at all.
        dense_tokens: longest history the dense kernel is asked for; its memory grows with the square.
    """

    main: Engine
    micro: Engine
    small: Engine
    dense32: Ranker
    dense64: Ranker
    dense_tokens: int


class Checks:
    """Runs the checks over cases and keeps a tally of each.

    Attributes:
        edit_effect: largest change of a logit that an edit caused; shows that the check could fail.
        rounding: largest difference of the dense formula between float32 and float64.
    """

    def __init__(self, engines: Engines) -> None:
        self._dense = engines.dense64, engines.dense32
        self._dense_tokens = engines.dense_tokens
        self._main, self._micro, self._small = map(Probe, (engines.main, engines.micro, engines.small))
        exact = engines.main.choice.dtype_name == "fp32"
        paths = FP32_TOLERANCE if exact else BF16_PATH_TOLERANCE
        if engines.main.config.bitwise:
            paths = 0.0
        dense = FP32_TOLERANCE if exact else BF16_REFERENCE_TOLERANCE
        self.cached = Tally("cached", "prefetched, then ranked, against one full pass", paths)
        self.twins = Tally("duplicates", "equal candidates of one request score alike", paths)
        self.micro = Tally("micro-batched", "candidates in small groups", paths)
        self.batched = Tally("batched", "in one batch with strangers, every second one cached", paths)
        self.appended = Tally("appended", "earlier prefix, events appended in pieces, then ranked", paths)
        self.resumed = Tally("resumed", "earlier prefix, the rank call itself computes the rest", paths)
        self.shorter = Tally("earlier cut", "ranked at an earlier time than the cached prefix", paths)
        self.private = Tally("no pool", "the cache has no room, K/V live in a private buffer", paths)
        self.edited = Tally("edited", "an item in the middle changes: nothing stale is served", paths)
        self.dense = Tally("dense fp64", "the dense formula in float64, without any cache", dense)
        self.edit_effect = self.rounding = 0.0

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """In the order in which they are printed."""
        singly = (self.cached, self.twins, self.micro, self.appended, self.resumed, self.shorter)
        return (*singly, self.edited, self.batched, self.private, self.dense)

    def full(self, case: Case) -> Full:
        """Serve a case with nothing cached."""
        request = RankRequest(case.history, case.candidates, case.query_time)
        result = self._main.fresh(self.cached, f"user {case.history.user!r}, full pass", request)
        served = result.served
        return Full(case, request, result.logits, served.tokens_cached + served.tokens_computed)

    def case(self, full: Full) -> None:
        """Every check that serves one case at a time; some start from the cache that the one before left."""
        self._check_cached(full)
        self._check_shorter(full)
        self._check_twins(full)
        self._check_micro(full)
        self._check_appended(full)
        self._check_resumed(full)
        self._check_edited(full)
        self._main.forget(full.user)

    def group(self, group: Sequence[Full]) -> None:
        """Checks that serve several users in one call; every user stands in `group` once."""
        self._check_batched(group)
        self._check_private(group)

    def dense_case(self, case: Case) -> None:
        """Compare with the dense formula on the newest events that it has memory for."""
        request = RankRequest(case.last(self._dense_tokens), case.candidates, case.query_time)
        who = f"user {case.history.user!r}"
        got = self._main.fresh(self.dense, who, request)
        exact, single = (dense_logits(model, request) for model in self._dense)
        self.rounding = max(self.rounding, float(np.abs(exact - single).max()))
        self.dense.compare(who, exact, got.logits)

    def _check_cached(self, full: Full) -> None:
        self._main.forget(full.user)
        self._main.prefetch(self.cached, full.who, full.case.history)
        result = self._main.rank(self.cached, full.who, full.request, full.tokens, full.tokens)
        self.cached.compare(full.who, full.logits, result.logits)

    def _check_shorter(self, full: Full) -> None:
        """The whole prefix is held; ask for a part of it."""
        history = full.case.first(full.case.earlier)
        request = RankRequest(history, full.case.candidates, int(history.timestamps[-1]))
        result = self._main.engine.rank(request)
        wanted = self._main.fresh(self.shorter, full.who, request)
        tokens = wanted.served.tokens_computed
        cached = tokens if self._same_start(full, len(history), tokens) else 0
        self._main.expect(self.shorter, full.who, result.served, tokens, cached)
        self.shorter.compare(full.who, wanted.logits, result.logits)

    def _check_twins(self, full: Full) -> None:
        _, first, inverse = np.unique(full.request.candidates, return_index=True, return_inverse=True)
        self.twins.compare(full.who, full.logits, full.logits[first[inverse]])

    def _check_micro(self, full: Full) -> None:
        self._micro.forget(full.user)
        self._micro.prefetch(self.micro, full.who, full.case.history)
        result = self._micro.rank(self.micro, full.who, full.request, full.tokens, full.tokens)
        self.micro.compare(full.who, full.logits, result.logits)
        self._micro.forget(full.user)

    def _check_appended(self, full: Full) -> None:
        case = full.case
        self._main.forget(full.user)
        history = case.first(case.earlier)
        held = self._main.prefetch(self.appended, full.who, history)
        ends = np.linspace(case.earlier, len(case.history), _APPEND_PIECES + 1).astype(int).tolist()
        for first, end in pairwise(ends):
            more = case.of(case.history.items[first:end], slice(first, end))
            history, held = self._main.append(self.appended, full.who, history, more, held)
        request = RankRequest(history, case.candidates, case.query_time)
        result = self._main.rank(self.appended, full.who, request, full.tokens, held)
        self.appended.compare(full.who, full.logits, result.logits)

    def _check_resumed(self, full: Full) -> None:
        case = full.case
        self._main.forget(full.user)
        held = self._main.prefetch(self.resumed, full.who, case.first(case.earlier))
        cached = held if self._same_start(full, case.earlier, held) else 0
        result = self._main.rank(self.resumed, full.who, full.request, full.tokens, cached)
        self.resumed.compare(full.who, full.logits, result.logits)

    def _check_edited(self, full: Full) -> None:
        """The whole prefix is held; change an item of it, and change it back."""
        whole = full.case.history
        start = self._main.start(len(whole), full.tokens)
        index = start + (len(whole) - start) // 2
        kept = self._main.slots + (index - start) * self._main.per_event
        changed = full.case.edited(index, self._main.another_item(int(whole.items[index])))
        request = RankRequest(changed, full.case.candidates, full.case.query_time)
        who = f"{full.who}, item {index} changed"
        result = self._main.rank(self.edited, who, request, full.tokens, kept)
        again = self._main.rank(self.edited, f"{who} and back", full.request, full.tokens, kept)
        self.edited.compare(f"{who} and back", full.logits, again.logits)
        wanted = self._main.fresh(self.edited, who, request)
        self.edited.compare(who, wanted.logits, result.logits)
        effect = float(np.abs(wanted.logits - full.logits).max())
        self.edit_effect = max(self.edit_effect, effect)

    def _check_batched(self, group: Sequence[Full]) -> None:
        for full in group[1::2]:
            self._main.prefetch(self.batched, full.who, full.case.history)
        warm = {full.user for full in group[1::2]}
        for full, result in self._main.batch(self.batched, group):
            cached = full.tokens if full.user in warm else 0
            self._main.expect(self.batched, full.who, result.served, full.tokens, cached)
            self.batched.compare(full.who, full.logits, result.logits)
        for full in group:
            self._main.forget(full.user)

    def _check_private(self, group: Sequence[Full]) -> None:
        """Only answers that were not cached are compared; that some fit the pool is no fault."""
        for full, result in self._small.batch(self.private, group):
            if not result.served.resident:
                self._small.expect(self.private, full.who, result.served, full.tokens, 0)
                self.private.compare(full.who, full.logits, result.logits)
        for full in group:
            self._small.forget(full.user)

    def _same_start(self, full: Full, events: int, tokens: int) -> bool:
        """Whether a shorter history's window begins where the whole one's does, so that its K/V fit."""
        start = self._main.start(len(full.case.history), full.tokens)
        return self._main.start(events, tokens) == start
