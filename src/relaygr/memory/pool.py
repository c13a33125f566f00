"""All device pages in two tensors; reads are views where pages lie side by side, else one gather."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaygr.memory.layout import KvLayout


class Placement:
    """Where the pages of one prefix lie: computed once, used on every layer.

    Attributes:
        pages: page ids in token order.
        runs: (first page id, pages) of each stretch of consecutive ids.
    """

    __slots__ = ("_index", "pages", "runs")

    def __init__(self, pages: Sequence[int]) -> None:
        self.pages = tuple(pages)
        runs: list[tuple[int, int]] = []
        for page in self.pages:
            if runs and page == runs[-1][0] + runs[-1][1]:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((page, 1))
        self.runs = tuple(runs)
        self._index: Tensor | None = None

    def index(self, device: torch.device) -> Tensor:
        if self._index is None:
            self._index = torch.tensor(self.pages, dtype=torch.int64, device=device)  # [pages]
        return self._index


class PagePool:
    """Keys [Y, H, pages, page_tokens, A] and values [Y, H, pages, page_tokens, E], allocated once, zeroed.

    Head-major, so that consecutive pages are, per head, one contiguous [tokens, dim] matrix.
    Changes: only the rows and pages named. Who may touch which page is decided elsewhere.
    Views from `read` show later writes to their pages; copies do not.
    Raises: ValueError for shapes, ranges or sizes that do not fit.
    """

    def __init__(
        self,
        layout: KvLayout,
        device: torch.device | str = "cpu",
        *,
        pages: int | None = None,
        total_bytes: int | None = None,
    ) -> None:
        if (pages is None) == (total_bytes is None):
            raise ValueError("exactly one of pages and total_bytes is needed")
        count = pages if pages is not None else (total_bytes or 0) // layout.page_bytes
        if count < 1:
            raise ValueError(f"pages: {count} must be at least 1; a page has {layout.page_bytes} bytes")
        self.layout, self.device, self.pages = layout, torch.device(device), count
        shape = (layout.layers, layout.heads, count, layout.page_tokens)
        self.keys = torch.zeros((*shape, layout.qk_dim), dtype=layout.dtype, device=self.device)
        self.values = torch.zeros((*shape, layout.v_dim), dtype=layout.dtype, device=self.device)

    @property
    def nbytes(self) -> int:
        return self.pages * self.layout.page_bytes

    def place(self, pages: Sequence[int] | Placement) -> Placement:
        """Where `pages` lie; worth keeping when the same pages are used on several layers."""
        if isinstance(pages, Placement):
            return pages
        if pages and not 0 <= min(pages) <= max(pages) < self.pages:
            raise ValueError(f"pages: {min(pages)}..{max(pages)} must be in [0, {self.pages})")
        return Placement(pages)

    def write(
        self, layer: int, pages: Sequence[int] | Placement, start_token: int, k: Tensor, v: Tensor
    ) -> None:
        """Set rows [start_token, start_token + n) of a prefix on `pages`; k [n, H, A], v [n, H, E].

        One copy of k and one of v per run of consecutive pages.
        """
        place = self.place(pages)
        check_rows(self.layout, k, v)
        n, size = k.shape[0], self.layout.page_tokens
        if start_token < 0 or start_token + n > len(place.pages) * size:
            raise ValueError(
                f"rows [{start_token}, {start_token + n}) need more than {len(place.pages)} pages"
            )
        keys = self.keys[layer].flatten(1, 2)  # [H, pages * page_tokens, A], a view
        values = self.values[layer].flatten(1, 2)
        first, end = 0, start_token + n  # `first`: token at which a run begins
        for page, count in place.runs:
            low, high = max(first, start_token), min(first + count * size, end)
            if low < high:
                row, source = page * size + low - first, slice(low - start_token, high - start_token)
                keys[:, row : row + high - low].copy_(k.detach()[source].transpose(0, 1))
                values[:, row : row + high - low].copy_(v.detach()[source].transpose(0, 1))
            first += count * size

    def read(
        self, layer: int, pages: Sequence[int] | Placement, tokens: int, clean_tail: bool
    ) -> tuple[Tensor, Tensor]:
        """Keys [H, P, A] and values [H, P, E] of the first `tokens` rows, P rounded up to whole pages.

        Rows from `tokens` on are zero. With `clean_tail` they are known to be zero in the pool, and
        consecutive pages come back as a view; everything else is one gather.
        """
        place = self.place(pages)
        count = self.layout.pages_for(tokens)
        if tokens < 0 or count > len(place.pages):
            raise ValueError(f"tokens: {tokens} must be in [0, {len(place.pages) * self.layout.page_tokens}]")
        clean = clean_tail or tokens == count * self.layout.page_tokens
        return (
            self._rows(self.keys[layer], place, count, tokens, clean),
            self._rows(self.values[layer], place, count, tokens, clean),
        )

    def zero(self, pages: Sequence[int]) -> None:
        """Zero whole pages on all layers."""
        for page, count in self.place(pages).runs:
            self.keys[:, :, page : page + count].zero_()
            self.values[:, :, page : page + count].zero_()

    def copy(self, src: int, dst: int, tokens: int) -> None:
        """Copy the first `tokens` rows of page `src` to `dst` on all layers; the rest of `dst` is zero."""
        self.place((src, dst))
        if src == dst or not 0 <= tokens <= self.layout.page_tokens:
            raise ValueError(
                f"copy of {tokens} rows from page {src} to page {dst}: not two pages, or too many rows"
            )
        for pool in (self.keys, self.values):
            pool[:, :, dst, :tokens].copy_(pool[:, :, src, :tokens])
            pool[:, :, dst, tokens:].zero_()

    def _rows(self, pool: Tensor, place: Placement, count: int, tokens: int, clean: bool) -> Tensor:
        # pool [H, pages, page_tokens, dim]
        if count == 0:
            return pool[:, :0].flatten(1, 2)
        page, length = place.runs[0]
        if clean and count <= length:
            return pool[:, page : page + count].flatten(1, 2)
        rows = pool.index_select(1, place.index(self.device)[:count]).flatten(1, 2)
        if not clean:
            rows[:, tokens:].zero_()
        return rows


def check_rows(layout: KvLayout, k: Tensor, v: Tensor) -> None:
    """Raises ValueError unless k is [n, H, A] and v is [n, H, E] of the layout, in its dtype."""
    n = k.shape[0] if k.ndim else 0
    wanted_k, wanted_v = (n, layout.heads, layout.qk_dim), (n, layout.heads, layout.v_dim)
    if k.shape != wanted_k or v.shape != wanted_v:
        raise ValueError(f"k {tuple(k.shape)}, v {tuple(v.shape)}: expected {wanted_k} and {wanted_v}")
    if k.dtype != layout.dtype or v.dtype != layout.dtype:
        raise ValueError(f"k {k.dtype}, v {v.dtype}: expected {layout.dtype}")
