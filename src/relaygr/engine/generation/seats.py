"""An admitted request on its way through a model, and what a model needs of it for each forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.engine.generation.asks import GenerateAsk, KvUse
from relaygr.engine.generation.memory import BeamMemory
from relaygr.engine.generation.states import PromptLease
from relaygr.generation.columns import Columns
from relaygr.generation.errors import GenerateCancelledError, GenerateError, ModelNanError
from relaygr.generation.requests import GenerateResult
from relaygr.generation.results import Found
from relaygr.generation.rounds import Feed
from relaygr.generation.search import Search
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow
from relaygr.models.decoder.state_beams import StateBeams


@dataclass(frozen=True, slots=True)
class Generated:
    """A result, and the bytes that were held for it.

    Attributes:
        kv: as measured; `GenerateAsk.use` is what the formula says.
        loaded_tokens: of the cached ones, those that came from host memory for this request.
    """

    result: GenerateResult
    kv: KvUse
    loaded_tokens: int = 0


class GenerateSeat:
    """Pages, beam slots and scratch of one request; all is given back with `close`, or when it ends.

    Attributes:
        done: prompt tokens whose keys and values are there.
        spent_s: on chunks of the prompt so far.
        beams: slots of the codes that are fed; None if none are.
        memory: these, and what the codes leave on linear layers.
        linear: how beams read that; None without such layers.
        hidden: float32 [1, D] of the last token, when it is known.
    """

    def __init__(
        self,
        ask: GenerateAsk,
        prompt: PromptLease,
        beams: BeamMemory | None,
        linear: StateBeams | None,
        model_version: str,
        give_back: Callable[[GenerateSeat], None],
        kind: type[Search[GenerateSeat]] = Search,
    ) -> None:
        assert ask.plan is not None
        assert ask.pinned is not None
        self.ask, self.prompt, self.memory, self.linear = ask, prompt, beams, linear
        self.beams = None if beams is None else beams.kv
        self.done, self.spent_s, self.prefilled = prompt.cached, 0.0, False
        self.hidden = prompt.hidden
        self.outcome: Generated | GenerateError | None = None
        self._model_version, self._label, self._give_back = model_version, ask.pinned.label, give_back
        self._open = True
        records = None if beams is None else beams.records
        self.kv = KvUse(
            prompt.nbytes,
            0 if self.beams is None else self.beams.nbytes,
            ask.use.index,
            ask.use.scratch,
            0 if prompt.state is None else prompt.state.nbytes.total,
            0 if records is None else records.nbytes.total,
        )
        self._tokens = torch.from_numpy(ask.prompt.tokens.copy())
        self.search = kind(ask.plan, self, self._ended)

    @property
    def left(self) -> int:
        """Prompt tokens to compute."""
        return len(self._tokens) - self.done

    def row(self, tokens: int) -> PromptRow:
        """The next `tokens` of the prompt."""
        some = self._tokens[self.done : self.done + tokens]
        return PromptRow(some, self.done, self.prompt.store, self.prompt.state)

    @property
    def known(self) -> Tensor:
        assert self.hidden is not None
        return self.hidden

    def fail(self, error: Exception) -> None:
        self.search.fail(error)

    def close(self) -> None:
        if self._open:
            self._open = False
            # Nobody may compute with what is given back.
            self.search.end(GenerateCancelledError(self.ask.request_id, "the request was let go"))
            self._give_back(self)

    def _ended(self, outcome: Found | GenerateError) -> None:
        """Told by the search, once."""
        if isinstance(outcome, Found):
            result = GenerateResult(
                self.ask.request_id,
                outcome,
                self._label,
                self._model_version,
                prompt_tokens=len(self._tokens),
                cached_tokens=self.prompt.cached,
                unknown_items=self.ask.prompt.unknown,
            )
            self.outcome = Generated(result, self.kv, self.prompt.loaded)
        else:
            self.outcome = outcome

    @property
    def spoilt(self) -> bool:
        """Whether its keys and values may be what is wrong."""
        return isinstance(self.outcome, ModelNanError)


class SeatModel:
    """A decoder as the rounds see it."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def start(self, contexts: Sequence[GenerateSeat]) -> Tensor:
        """The last tokens of prompts; nothing where their hidden state is known."""
        rows = [seat.row(seat.left) for seat in contexts if seat.left]
        computed = iter(torch.split(self._decoder.prefill(rows), 1)) if rows else iter(())
        for seat in contexts:
            if seat.left:
                seat.hidden = next(computed)
        return torch.cat([seat.known for seat in contexts])

    def step(self, feeds: Sequence[Feed[GenerateSeat]]) -> Tensor:
        return self._decoder.step([self._rows(feed) for feed in feeds])

    def logits(self, hidden: Tensor, columns: Columns) -> Tensor:
        return self._decoder.logits(hidden, columns)

    @staticmethod
    def _rows(feed: Feed[GenerateSeat]) -> BeamRows:
        seat = feed.context
        assert seat.beams is not None
        tokens = len(seat.ask.prompt)
        return BeamRows(
            feed.tokens,
            tokens + feed.depth - 1,
            feed.depth,
            seat.prompt.store,
            tokens,
            seat.beams,
            feed.anc,
            seat.linear,
        )
