"""One user's keys and values as kernels see them: rows in, head-major matrices out, paged or private.

Both have, by structure, `write(layer: int, start: int, k: Tensor, v: Tensor) -> None`, which replaces rows
[start, start + n) of one layer with k [n, H, A] and v [n, H, E], and `read(layer: int, tokens: int) ->
tuple[Tensor, Tensor]`, which returns keys [H, P, A] and values [H, P, E], P being `tokens` rounded up to
whole pages, with zeros from row `tokens` on, safe until the next call that changes the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool, check_rows


class PagedKv:
    """A prefix on pages of a pool, for as long as somebody holds a lease on them.

    Changes: `write` changes the pages, and `filled` of that layer.
    Raises: ValueError for rows behind the capacity or leaving a gap.

    Args:
        pages: page ids in token order.
        tokens_capacity: rows that may be read or written.
        clean_tail: slots behind row `filled` of these pages are zero.
        filled: rows that are already there; None means all, which suits a read lease. A write lease passes
            its reused tokens, so that reading up to the last row written needs no copy.
        gate: called with a layer before its rows are read or written; returns once the rows that somebody
            else brings are there, or raises.
    """

    def __init__(
        self,
        pool: PagePool,
        pages: Sequence[int],
        tokens_capacity: int,
        clean_tail: bool,
        filled: int | None = None,
        gate: Callable[[int], None] | None = None,
    ) -> None:
        have = len(pages) * pool.layout.page_tokens
        if not 0 <= tokens_capacity <= have:
            raise ValueError(f"tokens_capacity: {tokens_capacity} must be in [0, {have}]")
        start = tokens_capacity if filled is None else filled
        if not 0 <= start <= tokens_capacity:
            raise ValueError(f"filled: {filled} must be in [0, {tokens_capacity}]")
        self.pool, self.tokens_capacity, self.clean_tail = pool, tokens_capacity, clean_tail
        self._gate = gate
        self._place = pool.place(pages)
        self._filled = [start] * pool.layout.layers

    @property
    def pages(self) -> tuple[int, ...]:
        return self._place.pages

    def filled(self, layer: int) -> int:
        """Rows present on `layer`."""
        return self._filled[layer]

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        end = start + k.shape[0]
        _check_range(start, end, self._filled[layer], self.tokens_capacity)
        if self._gate is not None:
            self._gate(layer)
        self.pool.write(layer, self._place, start, k, v)
        self._filled[layer] = max(self._filled[layer], end)

    def read(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        if not 0 <= tokens <= self._filled[layer]:
            raise ValueError(f"tokens: {tokens} must be in [0, {self._filled[layer]}]")
        if self._gate is not None:
            self._gate(layer)
        clean = self.clean_tail and tokens == self._filled[layer]
        return self.pool.read(layer, self._place, tokens, clean)


class PrivateKv:
    """Contiguous buffers of one prefix outside any pool, for a request that is not cached and for evaluation.

    Changes: `write` may move the buffers to twice the room, up to `limit_tokens`; `truncate` and `reset` drop
    rows and leave zeros behind.
    Raises: ValueError for rows behind the limit or leaving a gap.

    Args:
        capacity_tokens: room to start with, rounded up to whole pages.
        limit_tokens: never grow past this; None means `capacity_tokens`, that is: never grow.
    """

    def __init__(
        self,
        layout: KvLayout,
        capacity_tokens: int,
        device: torch.device | str = "cpu",
        *,
        limit_tokens: int | None = None,
    ) -> None:
        if capacity_tokens < 0:
            raise ValueError(f"capacity_tokens: {capacity_tokens} must not be negative")
        limit = capacity_tokens if limit_tokens is None else limit_tokens
        if limit < capacity_tokens:
            raise ValueError(f"limit_tokens: {limit} must be at least capacity_tokens, {capacity_tokens}")
        self.layout, self.device, self.limit_tokens = layout, torch.device(device), limit
        self._filled = [0] * layout.layers
        self._keys, self._values = self._allocate(capacity_tokens)

    @property
    def capacity_tokens(self) -> int:
        """Rows the buffers hold without moving."""
        return self._keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def filled(self, layer: int) -> int:
        """Rows present on `layer`."""
        return self._filled[layer]

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        check_rows(self.layout, k, v)
        end = start + k.shape[0]
        _check_range(start, end, self._filled[layer], self.limit_tokens)
        if end > self.capacity_tokens:
            self._grow(end)
        self._keys[layer, :, start:end].copy_(k.detach().transpose(0, 1))
        self._values[layer, :, start:end].copy_(v.detach().transpose(0, 1))
        self._filled[layer] = max(self._filled[layer], end)

    def read(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        if not 0 <= tokens <= self._filled[layer]:
            raise ValueError(f"tokens: {tokens} must be in [0, {self._filled[layer]}]")
        padded = self.layout.pages_for(tokens) * self.layout.page_tokens
        keys, values = self._keys[layer, :, :padded], self._values[layer, :, :padded]
        if tokens < min(padded, self._filled[layer]):
            keys, values = keys.clone(), values.clone()
            keys[:, tokens:].zero_()
            values[:, tokens:].zero_()
        return keys, values

    def truncate(self, tokens: int) -> None:
        """Drop the rows from `tokens` on, on every layer."""
        if tokens < 0:
            raise ValueError(f"tokens: {tokens} must not be negative")
        end = max(self._filled)
        if tokens < end:
            self._keys[:, :, tokens:end].zero_()
            self._values[:, :, tokens:end].zero_()
            self._filled = [min(filled, tokens) for filled in self._filled]

    def reset(self) -> None:
        """Drop all rows; the buffers stay."""
        self.truncate(0)

    def _allocate(self, tokens: int) -> tuple[Tensor, Tensor]:
        layout = self.layout
        shape = (layout.layers, layout.heads, layout.pages_for(tokens) * layout.page_tokens)
        keys = torch.zeros((*shape, layout.qk_dim), dtype=layout.dtype, device=self.device)  # [Y, H, cap, A]
        values = torch.zeros((*shape, layout.v_dim), dtype=layout.dtype, device=self.device)  # [Y, H, cap, E]
        return keys, values

    def _grow(self, tokens: int) -> None:
        filled = max(self._filled)
        keys, values = self._allocate(min(max(tokens, 2 * self.capacity_tokens), self.limit_tokens))
        keys[:, :, :filled].copy_(self._keys[:, :, :filled])
        values[:, :, :filled].copy_(self._values[:, :, :filled])
        self._keys, self._values = keys, values


class NoKv:
    """Of a model without full-attention layers, which keeps neither keys nor values.

    Raises: RuntimeError for any use: no layer should have asked.
    """

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        raise RuntimeError(f"keys and values of layer {layer} of a model that keeps none")

    def read(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        raise RuntimeError(f"keys and values of layer {layer} of a model that keeps none")


def _check_range(start: int, end: int, filled: int, limit: int) -> None:
    if not 0 <= start <= filled:
        raise ValueError(f"start: {start} must be in [0, {filled}], rows must leave no gap")
    if end > limit:
        raise ValueError(f"rows [{start}, {end}) end behind the capacity of {limit} tokens")
