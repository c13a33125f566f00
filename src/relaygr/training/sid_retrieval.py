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
from relaygr.memory.beams import BeamKv, BeamPool
from relaygr.memory.stores import PrivateKv
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow

PAGE_TOKENS = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """Tokens int64 [P] of the request that is running."""

    tokens: Tensor


class _Beams:
    """The rounds' view of a decoder, with memory for one request at a time."""

    def __init__(self, model: Decoder, prompt_tokens: int, depths: int, width: int) -> None:
        self._model = model
        layout = model.config.kv_layout(model.dtype, PAGE_TOKENS)
        self._prompt = PrivateKv(layout, prompt_tokens)
        self._widths = (width,) * max(depths, 1)
        slots = sum(self._widths)
        sizes = (layout.layers, layout.heads, layout.qk_dim, layout.dtype)
        self._pool = BeamPool(*sizes, slots * layout.token_bytes)
        self._own: BeamKv | None = None

    def start(self, contexts: Sequence[_Prompt]) -> Tensor:
        (context,) = contexts
        self._prompt.reset()
        if self._own is not None:
            self._own.release()
        self._own = self._pool.reserve(self._widths)
        return self._model.prefill([PromptRow(context.tokens, 0, self._prompt)])

    def step(self, feeds: Sequence[Feed[_Prompt]]) -> Tensor:
        (feed,) = feeds
        length = len(feed.context.tokens)
        place = length + feed.depth - 1
        assert self._own is not None
        row = BeamRows(feed.tokens, place, feed.depth, self._prompt, length, self._own, feed.anc)
        return self._model.step([row])

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
