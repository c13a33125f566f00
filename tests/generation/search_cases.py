"""Small random catalogues, a model that is a table, and searches over both, for the tests of the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.filters import Filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import TokenSpec, stacked
from relaygr.generation.columns import Columns, HeadPlan
from relaygr.generation.normalise import Normalization
from relaygr.generation.reference import Row, Sid, brute_force
from relaygr.generation.results import ItemLimits
from relaygr.generation.rounds import Feed
from relaygr.generation.search import Search, SearchPlan
from relaygr.generation.widths import Widths

FIRST_TOKEN = 3  # tokens in front of the codes, which only `full` counts


@dataclass(frozen=True)
class Corpus:
    """A catalogue with what the tests need beside it."""

    index: CatalogueIndex
    heads: HeadPlan
    tables: list[list[int]]
    vocab_size: int

    @property
    def sids(self) -> list[Sid]:
        return [tuple(row) for row in self.index.sids(np.arange(self.index.n_sids)).tolist()]

    def sids_with(self, items: Filter | None) -> list[Sid]:
        """Those that an allowed item names, found item by item."""
        index = self.index
        if items is None:
            return self.sids
        passing = items.passes(np.arange(index.n_items))
        leaves = np.unique(index.leaves_of(np.flatnonzero(passing)))
        return [tuple(row) for row in index.sids(leaves).tolist()]


def corpus(
    seed: int,
    sizes: Sequence[int] = (6, 7, 5),
    n: int = 60,
    tokens: TokenSpec | None = None,
    skew: float = 3.0,
) -> Corpus:
    """n items over skewed codes, so that out-degrees differ widely and several items share an id."""
    rng = np.random.default_rng(seed)
    codes = np.stack([(size * rng.random(n) ** skew).astype(np.int64) for size in sizes], axis=1)
    ids = rng.choice(10 * n, n, replace=False)
    rows = Rows(item_ids=ids, codes=codes, priority=rng.integers(0, 3, n))
    spec = tokens if tokens is not None else stacked(sizes, FIRST_TOKEN)
    found = spec.resolve(sizes)
    vocab_size = 2 + max(int(table.max()) for table in found.tables)
    tables = [table.tolist() for table in found.tables]
    return Corpus(build_index(rows, tuple(sizes)).index, HeadPlan(found, vocab_size), tables, vocab_size)


@dataclass(eq=False)
class TableContext:
    """A prompt is a number; slots are what the beams of each depth were fed."""

    prompt: int
    slots: list[list[int]] = field(default_factory=list)


class TableModel:
    """Logits are a function of prompt and prefix; the prefix is read from the slots through `anc`.

    Hidden states are rows of a table of prefixes, so that a beam with a wrong ancestor gets wrong logits.
    """

    def __init__(self, vocab_size: int, steps: int = 0, spread: float = 2.0) -> None:
        self.vocab_size, self.steps, self.spread = vocab_size, steps, spread
        self.prefixes: list[tuple[int, tuple[int, ...]]] = []
        self.starts = 0
        self.forwards: list[list[int]] = []
        self.asked: list[Columns] = []
        self.broken: dict[tuple[int, tuple[int, ...]], float] = {}
        self.during_step: Callable[[], None] = lambda: None

    def row(self, prompt: int, tokens: tuple[int, ...]) -> Row:
        """The logits after a prompt and a prefix; with `steps` they take few values and tie often."""
        rng = np.random.default_rng([prompt, *tokens])
        row = (rng.standard_normal(self.vocab_size) * self.spread).astype(np.float32)
        if self.steps:
            row = np.round(row * self.steps / self.spread / 3) / np.float32(self.steps)
        if (prompt, tokens) in self.broken:
            row[:] = self.broken[prompt, tokens]
        return row

    def start(self, contexts: Sequence[TableContext]) -> Tensor:
        self.starts += len(contexts)
        return torch.stack([self._hidden(context.prompt, ()) for context in contexts])

    def step(self, feeds: Sequence[Feed[TableContext]]) -> Tensor:
        self.forwards.append([feed.context.prompt for feed in feeds])
        self.during_step()
        rows: list[Tensor] = []
        for feed in feeds:
            slots = feed.context.slots
            assert len(slots) == feed.depth - 1
            slots.append(feed.tokens.tolist())
            assert feed.anc.dtype == torch.int32
            assert feed.anc[:, -1].tolist() == list(range(len(feed.tokens)))
            for ancestors in feed.anc.tolist():
                prefix = tuple(slots[depth][slot] for depth, slot in enumerate(ancestors))
                rows.append(self._hidden(feed.context.prompt, prefix))
        return torch.stack(rows)

    def logits(self, hidden: Tensor, columns: Columns) -> Tensor:
        self.asked.append(columns)
        rows = np.stack([self.row(*self.prefixes[int(number)]) for number in hidden[:, 0].tolist()])
        return torch.from_numpy(rows)[:, slice(None) if columns is None else columns]

    def _hidden(self, prompt: int, prefix: tuple[int, ...]) -> Tensor:
        self.prefixes.append((prompt, prefix))
        return torch.tensor([float(len(self.prefixes) - 1)], dtype=torch.float64)


def plan_of(
    of: Corpus,
    widths: Sequence[int],
    normalization: Normalization = Normalization.LEVEL,
    items: Filter | None = None,
    *,
    request_id: str = "r",
    limits: ItemLimits | None = None,
    seed: int | None = None,
) -> SearchPlan:
    return SearchPlan(
        request_id,
        of.index,
        of.heads,
        Widths(tuple(widths)),
        normalization,
        items,
        limits if limits is not None else ItemLimits(),
        seed,
    )


def search_of(plan: SearchPlan, prompt: int = 0) -> Search[TableContext]:
    return Search(plan, TableContext(prompt), lambda _: None)


def expected(
    of: Corpus,
    model: TableModel,
    prompt: int,
    widths: Sequence[int],
    normalization: Normalization,
    items: Filter | None = None,
    **more: Callable[[Row], float],
) -> list[tuple[Sid, float]]:
    """Brute force over the ids that the filter leaves."""

    def logits_of(prefix: Sid) -> Row:
        return model.row(prompt, tuple(of.tables[level][code] for level, code in enumerate(prefix)))

    return brute_force(of.sids_with(items), logits_of, of.tables, widths, normalization, **more)
