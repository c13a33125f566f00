"""An engine under test: every call checks that the counters moved by exactly what the answer says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from relaygr.bench.verify_sample import Case
from relaygr.bench.verify_tally import Floats, Tally
from relaygr.core.errors import RelayError
from relaygr.core.ids import DEFAULT_TENANT
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import EngineStats, Path, PrefetchResult, RankRequest, RankResult
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker, RowInput


@dataclass(frozen=True, slots=True, eq=False)
class Full:
    """A case served without any cache: what every other way must agree with."""

    case: Case
    request: RankRequest
    logits: Floats
    tokens: int  # of the window the model saw

    @property
    def user(self) -> str:
        return self.case.history.user

    @property
    def who(self) -> str:
        return f"user {self.user!r} at {len(self.case.history)} events"


class Probe:
    """One engine; `served` of a tally hears what every call did with the cache."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        config = engine.model_config
        self.slots, self.per_event = len(config.contextual), config.tokens_per_event
        self._provisional: int = config.provisional
        self._reuses = config.cacheable == "append"

    def forget(self, user: str) -> None:
        self.engine.forget(DEFAULT_TENANT, user)

    def start(self, events: int, tokens: int) -> int:
        """Index of the first event in a window of `tokens` at the end of a history of `events`."""
        return events - (tokens - self.slots) // self.per_event - self._provisional

    def another_item(self, item: int) -> int:
        """A different item that the model knows."""
        config = self.engine.model_config
        table = config.items if isinstance(config, HstuConfig) else None
        if table is None:
            return item ^ 1
        return item - 1 if item > table.first else item + 1

    def fresh(self, tally: Tally, who: str, request: RankRequest) -> RankResult:
        """Rank with nothing cached for the user."""
        self.forget(request.history.user)
        before = self.engine.stats()
        result = self.engine.rank(request)
        self._counters(tally, who, before, [result.served], len(result.logits))
        tally.served(who, result.served, 0, tokens_of(result.served))
        return result

    def rank(self, tally: Tally, who: str, request: RankRequest, tokens: int, cached: int) -> RankResult:
        """Rank a history of `tokens`, `cached` of which are held."""
        before = self.engine.stats()
        result = self.engine.rank(request)
        self._counters(tally, who, before, [result.served], len(result.logits))
        self.expect(tally, who, result.served, tokens, cached)
        return result

    def prefetch(self, tally: Tally, who: str, history: UserHistory) -> int:
        """Prefetch a history of which nothing is held; returns its tokens."""
        before = self.engine.stats()
        served = self.engine.prefetch(history)
        self._counters(tally, who, before, [served], 0)
        tokens = tokens_of(served)
        self.expect(tally, who, served, tokens, 0)
        return tokens

    def append(
        self, tally: Tally, who: str, history: UserHistory, more: UserHistory, held: int
    ) -> tuple[UserHistory, int]:
        """Append the events of `more` behind `history`, of which `held` tokens are held; both anew."""
        before = self.engine.stats()
        longer, served = self.engine.append(history, more.items, more.timestamps, more.actions)
        self._counters(tally, who, before, [served], 0)
        tokens = tokens_of(served)
        same_start = self.start(len(history), held) == self.start(len(longer), tokens)
        self.expect(tally, who, served, tokens, held if same_start else 0)
        return longer, tokens

    def batch(self, tally: Tally, group: Sequence[Full]) -> list[tuple[Full, RankResult]]:
        """Rank several users in one call; errors are problems of the tally."""
        before = self.engine.stats()
        answers = self.engine.rank_batch([full.request for full in group])
        results: list[tuple[Full, RankResult]] = []
        for full, answer in zip(group, answers, strict=True):
            if isinstance(answer, RelayError):
                tally.fail(f"{full.who}: {answer}")
            else:
                results.append((full, answer))
        served = [result.served for _, result in results]
        scored = sum(len(result.logits) for _, result in results)
        self._counters(tally, f"batch of {len(group)}", before, served, scored)
        return results

    def expect(self, tally: Tally, who: str, served: PrefetchResult, tokens: int, cached: int) -> None:
        """`cached` of `tokens` were reused; a model that cannot be appended to never reuses any."""
        reused = cached if self._reuses else 0
        tally.served(who, served, reused, tokens - reused)

    def _counters(
        self, tally: Tally, who: str, before: EngineStats, served: Sequence[PrefetchResult], scored: int
    ) -> None:
        after = self.engine.stats()
        moved = (
            after.tokens_cached - before.tokens_cached,
            after.tokens_computed - before.tokens_computed,
            after.candidates - before.candidates,
            after.full - before.full,
            after.resumed - before.resumed,
            after.hit - before.hit,
            after.errors - before.errors,
        )
        told = (
            sum(each.tokens_cached for each in served),
            sum(each.tokens_computed for each in served),
            scored,
            *(sum(each.path is path for each in served) for path in (Path.FULL, Path.RESUMED, Path.HIT)),
            0,
        )
        if moved != told:
            names = "cached, computed, candidates, full, resumed, hit, errors"
            tally.fail(f"{who}: counters ({names}) moved by {moved}, the answers say {told}")


def tokens_of(served: PrefetchResult) -> int:
    """Tokens of the window that was served."""
    return served.tokens_cached + served.tokens_computed


@torch.inference_mode()
def dense_logits(model: Ranker, request: RankRequest) -> Floats:
    """Logits [m, tasks] of the reference kernel in the dtype of `model`, in one pass without a store."""
    history, query = request.history, request.query_time
    row = RowInput(
        contextual=torch.tensor(history.contextual),
        items=torch.tensor(history.items),
        timestamps=torch.tensor(history.timestamps),
        actions=torch.tensor(history.actions),
        candidates=torch.tensor(request.candidates),
        query_time=query if isinstance(query, int) else torch.tensor(query),
        utc_offset_s=history.utc_offset_s,
    )
    logits: Floats = np.asarray(model([row], ReferenceKernel())[0])
    return logits
