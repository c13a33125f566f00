"""Items that a trained generator names for a history: the beam search of serving, one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relaygr.core.clock import MonotonicClock
from relaygr.core.errors import BackendError
from relaygr.data.dataset import Int64s
from relaygr.generation.catalogue.filters import Filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.columns import Columns, HeadPlan
from relaygr.generation.recipe import Recipe
from relaygr.generation.results import Found
from relaygr.generation.rounds import Feed, Rounds
from relaygr.generation.search import Search, SearchPlan
from relaygr.generation.sids.build import SemanticIds
from relaygr.generation.widths import Widths
from relaygr.kernels.interface import KvStore
from relaygr.memory.beams import BeamKv, BeamPool, NoBeamKv
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.stores import NoKv, PrivateKv
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow
from relaygr.models.decoder.state_beams import StateBeams

PAGE_TOKENS = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """Tokens int64 [P] of the request that is running."""

    tokens: Tensor


class _Beams:
    """The rounds' view of a decoder, with memory for one request at a time."""

    def __init__(self, model: Decoder, prompt_tokens: int, depths: int, width: int) -> None:
        self._model = model
        self._widths = (width,) * max(depths, 1)
        slots, config = sum(self._widths), model.config
        self._prompt: PrivateKv | None = None
        self._pool: BeamPool | None = None
        if config.full_layers:
            layout = config.kv_layout(model.dtype, PAGE_TOKENS)
            self._prompt = PrivateKv(layout, prompt_tokens)
            sizes = (layout.layers, layout.heads, layout.qk_dim, layout.dtype)
            self._pool = BeamPool(*sizes, slots * layout.token_bytes)
        linear = config.recurrent_layout(model.dtype)
        self._records = None if linear is None else RecordPool(linear, slots * linear.slot_bytes.total)
        self._own: BeamKv | NoBeamKv = NoBeamKv()
        self._recorded: BeamRecords | None = None
        self._linear: StateBeams | None = None

    def start(self, contexts: Sequence[_Prompt]) -> Tensor:
        (context,) = contexts
        self._own.release()
        if self._prompt is not None:
            self._prompt.reset()
        if self._pool is not None:
            own = self._pool.reserve(self._widths)
            assert own is not None
            self._own = own
        state = self._model.empty_state()
        hidden = self._model.prefill([PromptRow(context.tokens, 0, self._store, state)])
        if state is not None:
            self._linear = self._model.state_beams(state, self._new_records())
        return hidden

    def step(self, feeds: Sequence[Feed[_Prompt]]) -> Tensor:
        (feed,) = feeds
        length = len(feed.context.tokens)
        place = length + feed.depth - 1
        row = BeamRows(feed.tokens, place, feed.depth, self._store, length, self._own, feed.anc, self._linear)
        return self._model.step([row])

    @property
    def _store(self) -> KvStore:
        return NoKv() if self._prompt is None else self._prompt

    def _new_records(self) -> BeamRecords:
        """In place of those of the last request."""
        assert self._records is not None
        if self._recorded is not None:
            self._recorded.release()
        self._recorded = self._records.reserve(self._widths)
        assert self._recorded is not None
        return self._recorded

    def logits(self, hidden: Tensor, columns: Columns) -> Tensor:
        return self._model.logits(hidden, columns)


class SidRetriever:
    """Best semantic ids of a catalogue for a history.

    Args:
        model: fp32.
        index: what may be named; its levels are those of the recipe.
        width: of all beams, and rows of a result.
    """

    def __init__(
        self, model: Decoder, recipe: Recipe, sids: SemanticIds, index: CatalogueIndex, width: int
    ) -> None:
        self._recipe, self._sids, self._index = recipe, sids, index
        self._map = recipe.token_map()
        self._heads = HeadPlan(self._map, model.config.vocab_size)
        self._widths = Widths((width,) * recipe.levels)
        with torch.inference_mode():
            beams = _Beams(model, recipe.max_prompt_tokens, recipe.levels - 1, width)
        self._rounds: Rounds[_Prompt] = Rounds(beams, MonotonicClock())

    @torch.inference_mode()
    def find(self, history: Int64s, items: Filter | None = None) -> Found:
        """Rows for a history of item ids, oldest first; items without codes are left out of the prompt.

        Raises:
            BackendError: the search failed, for example because the model gave no number.
        """
        codes = self._sids.codes_of(history)
        codes = codes[codes[:, 0] >= 0]
        prompt = _Prompt(torch.from_numpy(self._recipe.prompt(codes, self._map)))
        search = Search(
            SearchPlan("", self._index, self._heads, self._widths, items=items), prompt, lambda _: None
        )
        self._rounds.run([search])
        if not isinstance(search.outcome, Found):
            raise BackendError(f"generation failed: {search.outcome}")
        return search.outcome

    def items(self, history: Int64s, most: int, filtered: Filter | None = None) -> Int64s:
        """At most `most` items [k], best first."""
        found = [int(item) for row in self.find(history, filtered).rows for item in row.items]
        return np.array(found[:most], dtype=np.int64)
