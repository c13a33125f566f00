"""The one definition of how large a token's keys and values are, and of what makes two layouts equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape and type of the keys and values of a model.

    Attributes:
        layers, heads, qk_dim, v_dim: Y, H, A, E.
        dtype: element type of both.
        page_tokens: tokens per page.

    Raises: ValueError naming the field, its value and its limit.
    """

    layers: int
    heads: int
    qk_dim: int
    v_dim: int
    dtype: torch.dtype
    page_tokens: int

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "qk_dim", "v_dim", "page_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}: {value} must be at least 1")
        if self.dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(f"dtype: {self.dtype} must be one of {names}")

    def row_bytes(self, layer: int) -> int:
        """Bytes of one token's keys and values on `layer`, over all heads."""
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer: {layer} must be in [0, {self.layers})")
        return self.heads * (self.qk_dim + self.v_dim) * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of one token on all layers."""
        return sum(self.row_bytes(layer) for layer in range(self.layers))

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: keys and values, all layers."""
        return self.page_tokens * self.token_bytes

    @property
    def layout_id(self) -> str:
        """Equal for layouts whose bytes can be exchanged, and only for them."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"kv1-y{self.layers}-h{self.heads}-a{self.qk_dim}-e{self.v_dim}-{dtype}"
            f"-p{self.page_tokens}-unscaled-head_major"
        )

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)
