"""From requests to work: what a model accepts, which window it reads, and what identifies a prefix."""

from __future__ import annotations

from dataclasses import replace

import torch

from relaygr.cache.digests import head
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import RequestError
from relaygr.core.ids import Fingerprint
from relaygr.core.state import Ref
from relaygr.engine.batch import Work
from relaygr.engine.history import TokenForm
from relaygr.engine.requests import RankRequest
from relaygr.models.ranker import Ranker
from relaygr.models.window import anchor, anchor_stride


class Checker:
    """Checks requests against one model and the limits of one engine; holds nothing of them."""

    def __init__(self, model: Ranker, model_fp: Fingerprint, config: EngineConfig) -> None:
        shape = model.config
        self._model, self._model_fp, self._config = model, model_fp, config
        self._form = TokenForm(shape.tokens_per_event, shape.provisional)
        self._stride = anchor_stride(shape.max_history, config.anchor_stride)

    def work(self, place: int, request: RankRequest) -> Work:
        """The checked request; `place` is its index in the caller's batch.

        Raises:
            RequestError: it does not fit the model or a limit.
        """
        if not isinstance(request, RankRequest):
            raise RequestError("request", f"must be a RankRequest, is {type(request).__name__}")
        shape, history = self._model.config, request.history
        if len(history.contextual) != len(shape.contextual):
            names = ", ".join(shape.contextual) or "none"
            raise RequestError(
                "contextual", f"has {len(history.contextual)} values, the model has slots: {names}"
            )
        limit = min(self._config.max_candidates, shape.max_num_candidates)
        if len(request.candidates) > limit:
            raise RequestError("candidates", f"{len(request.candidates)} candidates, limit {limit}")
        query = request.query_time
        if not isinstance(query, int) and shape.query_times != "candidate":
            raise RequestError("query_time", "is one value a candidate; this model takes one a request")
        start = anchor(history.sequence, shape.max_history, self._stride)
        first = max(start - history.first_sequence, 0)
        unknown = self._model.tokens.check(
            history.contextual, history.items[first:], history.actions[first:], request.candidates
        )
        return Work(
            place,
            history,
            torch.tensor(request.candidates),
            query if isinstance(query, int) else torch.tensor(query),
            first,
            len(history),
            shape.prefix_tokens(len(history) - first),
            unknown,
            request.keep,
            request,
        )

    def ref(self, work: Work) -> Ref:
        """What identifies the window's prefix by content, as far as `work` goes."""
        start = work.history.first_sequence + work.start
        ref = work.history.ref(self._model_fp, self._config.page_tokens, start, self._form)
        return head(ref, 0, work.tokens) if ref.tokens > work.tokens else ref

    def shorter(self, work: Work, cached: int, limit_tokens: int) -> Work:
        """A prefetch up to a page end about `limit_tokens` behind what is cached; `work` if that is all."""
        tokens = head(self.ref(work), cached, cached + limit_tokens).tokens
        if tokens == work.tokens:
            return work
        shape = self._model.config
        # Slots close their page and pages hold an even number of tokens: an event is never cut.
        events = max(tokens - len(shape.contextual), 0) // shape.tokens_per_event
        return replace(work, stop=work.start + events + shape.provisional, tokens=tokens)
