"""What a generator does that knows nothing of this project: the baseline, and single steps back to it.

Beams are separate rows with the prompt's keys and values in each; what may follow is found in a tree of
Python dictionaries; whole rows are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relaygr.engine.generation.seats import GenerateSeat
from relaygr.generation.ancestors import Ancestors
from relaygr.generation.catalogue.index import CatalogueIndex, Int64s
from relaygr.generation.columns import HeadPlan
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import Pool
from relaygr.generation.search import Search
from relaygr.generation.select import select
from relaygr.memory.beams import BeamPool
from relaygr.memory.stores import PrivateKv
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow

Tree = dict[int, Any]


class SortingSearch(Search[GenerateSeat]):
    """Sorts all candidates instead of those above the width's score."""

    def select(self, pool: Pool, logits: Tensor) -> None:
        plan = self.plan
        scores = self.rounds[-1].scores if self.rounds else np.zeros(1)
        width = plan.widths.of(self.level)
        self.rounds.append(select(pool, scores, logits, width, plan.normalization, method="sort"))


class HostMaskSearch(Search[GenerateSeat]):
    """Finds the children of every beam one by one, in Python."""

    def prepare(self) -> Pool:
        plan = self.plan
        parents = self.rounds[-1].nodes if self.rounds else np.zeros(1, np.int64)
        return prepare_one_by_one(plan.index, self.level, parents, plan.heads, plan.normalization)


def prepare_one_by_one(
    index: CatalogueIndex, level: int, parents: Int64s, heads: HeadPlan, normalization: Normalization
) -> Pool:
    """As `prepare`, without filters, by a loop over parents and children."""
    ptr, level_codes = index.ptr[level - 1], index.codes[level - 1]
    nodes: list[int] = []
    codes: list[int] = []
    starts = [0]
    for parent in parents.tolist():
        for node in range(int(ptr[parent]), int(ptr[parent + 1])):
            nodes.append(node)
            codes.append(int(level_codes[node]))
        starts.append(len(nodes))
    found = np.array(codes, np.int64)
    head = heads.of(level, normalization, found)
    rows = np.repeat(np.arange(len(parents)) * head.width, np.diff(starts))
    place = found if head.place is None else head.place[found]
    return Pool(level, np.array(nodes, np.int64), found, np.array(starts, np.int64), head, rows + place)


def tree_of(index: CatalogueIndex) -> Tree:
    """All semantic ids as dictionaries by code."""
    tree: Tree = {}
    for sid in index.sids(np.arange(index.n_sids)).tolist():
        node = tree
        for code in sid:
            node = node.setdefault(code, {})
    return tree


class NaiveBeams:
    """Beams as rows: replicated prompts, a softmax over the whole vocabulary, masks, full sorts.

    Scores are `full`: log-probabilities among the whole vocabulary.
    """

    def __init__(self, decoder: Decoder, tree: Tree, bases: Sequence[int], beam_bytes: int) -> None:
        """`bases`: the token of each level's code 0; those of its other codes follow."""
        self._decoder, self._tree, self._bases = decoder, tree, bases
        shape = decoder.config
        self._layout = shape.kv_layout(decoder.dtype, 32)
        self._pool = BeamPool(shape.num_layers, shape.num_kv_heads, shape.head_dim, decoder.dtype, beam_bytes)

    @torch.inference_mode()
    def generate(self, tokens: list[int], width: int) -> list[tuple[tuple[int, ...], float]]:
        """The best semantic ids and their scores, best first."""
        decoder, levels = self._decoder, len(self._bases)
        store = PrivateKv(self._layout, len(tokens))
        hidden = decoder.prefill([PromptRow(torch.tensor(tokens), 0, store)])
        own = self._pool.reserve([width] * (levels - 1))
        assert own is not None
        before, decoder.mode = decoder.mode, "replicate"
        try:
            ancestors = Ancestors([width] * (levels - 1))
            beams: list[tuple[tuple[int, ...], Tree]] = [((), self._tree)]
            scores = torch.zeros(1)
            for level in range(levels):
                parents, chosen, scores = self._choose(level, beams, scores, hidden, width)
                beams = [
                    ((*beams[parent][0], code), beams[parent][1][code])
                    for parent, code in zip(parents.tolist(), chosen, strict=True)
                ]
                if level == levels - 1:
                    break
                fed = torch.tensor([self._bases[level] + code for code in chosen])
                index = ancestors.fork(parents)
                rows = BeamRows(fed, len(tokens) + level, level + 1, store, len(tokens), own, index)
                hidden = decoder.step([rows])
        finally:
            decoder.mode = before
            own.release()
        return [(sid, score) for (sid, _), score in zip(beams, scores.tolist(), strict=True)]

    def _choose(
        self,
        level: int,
        beams: list[tuple[tuple[int, ...], Tree]],
        scores: Tensor,
        hidden: Tensor,
        width: int,
    ) -> tuple[Tensor, list[int], Tensor]:
        """Parents, codes and scores of the best, by a mask and a sort over whole rows."""
        logits = torch.log_softmax(self._decoder.logits(hidden, None), -1)  # [W, V]
        base = self._bases[level]
        mask = torch.full_like(logits, float("-inf"))
        for row, (_, node) in enumerate(beams):
            mask[row, [base + code for code in node]] = 0.0
        flat = (logits + mask + scores[:, None]).reshape(-1)
        values, places = torch.sort(flat, descending=True, stable=True)
        count = min(width, int((values > float("-inf")).sum()))
        places = places[:count]
        codes = (places % logits.shape[1] - base).tolist()
        return places // logits.shape[1], codes, values[:count]
