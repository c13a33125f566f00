"""The contract of a host format: how rows of keys and values lie in host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from relaygr.memory.layout import KvLayout

# Work on rows goes in groups whose float32 values stay in a core's cache, and no temporary is larger.
_GROUP_BYTES = 512 * 1024


class HostFormat(ABC):
    """Device rows [Y, H, n, D] to host rows [Y, H, n, W] and back; one row is one token of one head.

    A host row holds all that is needed to read it, scales included. What was decoded is encoded, from the
    same device dtype, to rows that are read as the same values, and to the same bytes but for fp8 below the
    normal numbers of float16: a state may go to and fro without end and is rounded once.

    What is not finite is never hidden and goes no further than its own row: the formats say what becomes of
    it. Finite values stay finite.

    Changes: only `out`; nothing is kept. Raises: ValueError for a dtype that the format does not take.

    Attributes:
        name: as settings and reports call it.
        exact: host rows are the bytes of the device.
    """

    name: str
    exact: bool = False

    @abstractmethod
    def width_bytes(self, dim: int, dtype: torch.dtype) -> int:
        """Bytes of a host row of `dim` values that have `dtype` on the device."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Tensor:
        """Host rows [*shape, W], not initialised."""

    @abstractmethod
    def encode(self, rows: Tensor, out: Tensor) -> None:
        """Device rows [Y, H, n, D] into host rows `out` [Y, H, n, W]."""

    @abstractmethod
    def decode(self, stored: Tensor, out: Tensor) -> None:
        """Host rows [Y, H, n, W] into device rows `out` [Y, H, n, D]."""

    def tokens_per_row(self, page_tokens: int) -> int:
        """How many tokens share a scale; with more than one, a token that is added changes the others.

        Such rows are whole pages, [Y, H, pages, page_tokens * D]; a `HostPool` does not take them.
        """
        return 1

    def page_bytes(self, layout: KvLayout) -> int:
        """Bytes of a page in host memory: keys and values, all layers."""
        tokens = self.tokens_per_row(layout.page_tokens)
        widths = sum(self.width_bytes(tokens * dim, layout.dtype) for dim in (layout.qk_dim, layout.v_dim))
        return layout.layers * layout.heads * widths * (layout.page_tokens // tokens)

    def row_bytes(self, layout: KvLayout, layer: int) -> int:
        """Bytes of one token's keys and values on `layer`, over all heads, scales included."""
        layout.row_bytes(layer)  # for its check of `layer`
        if self.tokens_per_row(layout.page_tokens) > 1:
            raise ValueError(f"{self.name}: rows share their scales, a single one has no size")
        widths = (self.width_bytes(dim, layout.dtype) for dim in (layout.qk_dim, layout.v_dim))
        return layout.heads * sum(widths)

    def token_bytes(self, layout: KvLayout) -> int:
        """Bytes of one token on all layers."""
        return sum(self.row_bytes(layout, layer) for layer in range(layout.layers))

    def layout_id(self, layout: KvLayout) -> str:
        """Equal for host bytes that can be exchanged, and only for them."""
        return layout.layout_id if self.exact else f"{layout.layout_id}-{self.name}"


def groups(rows: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows of both, [H, n, ...], layer by layer and few enough at a time."""
    layers, heads, count, width = rows.shape
    step = max(_GROUP_BYTES // (4 * heads * width), 1)
    for layer in range(layers):
        for first in range(0, count, step):
            length = min(step, count - first)
            yield rows[layer].narrow(1, first, length), out[layer].narrow(1, first, length)
