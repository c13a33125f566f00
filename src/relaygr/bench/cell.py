"""One point of the rank grid, ready to run: a random user on pages of a pool, through model and kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relaygr.kernels.interface import Kernel
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.stores import PagedKv
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker, RowInput

APPENDED = 16
PAGE_TOKENS = 32


def random_ranker(config: AnyConfig, dtype: torch.dtype, seed: int) -> Ranker:
    """A ranker with random weights; the same seed gives the same weights in every dtype."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Ranker(config)
    return model.eval().requires_grad_(False).cast(dtype)


def random_row(config: AnyConfig, history: int, candidates: int, seed: int) -> RowInput:
    """A user with `history` events about ten minutes apart, and candidates for a query one hour later."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, count: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator)

    items = config.items if isinstance(config, HstuConfig) else None
    ids = 1 << 40 if items is None else items.rows - 1
    bits = 1 << len(config.action_bits)
    times = 1_700_000_000 + draw(1200, history).cumsum(0)
    return RowInput(
        contextual=torch.zeros(0, dtype=torch.int64),
        items=1 + draw(ids, history),
        timestamps=times,
        actions=draw(bits, history),
        candidates=1 + draw(ids, candidates),
        query_time=int(times[-1]) + 3600,
    )


@dataclass(frozen=True, slots=True)
class _Pages:
    """Pages of one prefix; every pass writes the same rows to them, so that they can be used again."""

    pool: PagePool
    pages: range
    tokens: int

    def store(self, filled: int) -> PagedKv:
        return PagedKv(self.pool, self.pages, self.tokens, clean_tail=True, filled=filled)


class Cell:
    """One user, one model, one kernel; each method is one request as the engine would run it.

    The history's K/V stand on pages of their own for passes that start from nothing and for passes that
    find them there.
    """

    def __init__(self, model: Ranker, kernel: Kernel, history: int, candidates: int, seed: int) -> None:
        config = model.config
        layout = KvLayout(
            config.num_layers,
            config.num_heads,
            config.qk_dim,
            config.v_dim,
            model.compute_dtype,
            PAGE_TOKENS,
        )
        self.tokens = config.prefix_tokens(history)
        count = layout.pages_for(self.tokens)
        pool = PagePool(layout, pages=2 * count)
        self._model, self._kernel = model, kernel
        self._cold = _Pages(pool, range(count), self.tokens)
        self._warm = _Pages(pool, range(count, 2 * count), self.tokens)
        self.row = random_row(config, history, candidates, seed)
        self._alone = replace(self.row, candidates=self.row.candidates[:0])
        self._run(self._alone, self._warm, 0)

    def full(self) -> Tensor:
        """History and candidates, nothing cached: logits [m, tasks]."""
        return self._run(self.row, self._cold, 0)

    def hit(self) -> Tensor:
        """Candidates only, the whole history cached: logits [m, tasks]."""
        return self._run(self.row, self._warm, self.tokens)

    def append(self) -> Tensor:
        """The last 16 events behind the cached rest, no candidates."""
        return self._run(self._alone, self._warm, self.tokens - APPENDED)

    def prefill(self) -> Tensor:
        """The history, nothing cached, no candidates."""
        return self._run(self._alone, self._cold, 0)

    @torch.inference_mode()
    def _run(self, row: RowInput, pages: _Pages, cached: int) -> Tensor:
        out: Tensor = self._model([replace(row, cached=cached, store=pages.store(cached))], self._kernel)[0]
        return out
