"""The host formats: as on the device, bf16, and eight bits with a scale a row."""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.memory.format import HostFormat, groups

_BF16 = torch.bfloat16
_SCALE_BYTES = _BF16.itemsize
# Not in every build of torch.
_FP8: torch.dtype | None = getattr(torch, "float8_e4m3fn", None)
_ROUNDED = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = {torch.int8: 127.0, _FP8: 448.0}


class Same(HostFormat):
    """The bytes of the device, whatever they mean."""

    name = "same"
    exact = True

    def width_bytes(self, dim: int, dtype: torch.dtype) -> int:
        return dim * dtype.itemsize

    def empty(self, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((*shape, dim), dtype=dtype)

    def encode(self, rows: Tensor, out: Tensor) -> None:
        out.copy_(rows)

    def decode(self, stored: Tensor, out: Tensor) -> None:
        out.copy_(stored)


class Bf16(HostFormat):
    """Each value rounded to bf16. NaN and infinities stay what they are."""

    name = "bf16"

    def width_bytes(self, dim: int, dtype: torch.dtype) -> int:
        _check(self.name, dtype)
        return dim * _BF16.itemsize

    def empty(self, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Tensor:
        _check(self.name, dtype)
        return torch.empty((*shape, dim), dtype=_BF16)

    def encode(self, rows: Tensor, out: Tensor) -> None:
        limit = _largest_bf16(rows.dtype)
        for some, into in groups(rows, out):
            low, high = torch.aminmax(some)
            # False for NaN too. Rounding up would make an infinity of a finite value, here or on the device.
            if bool(low >= -limit) and bool(high <= limit):
                into.copy_(some)
            else:
                into.copy_(torch.where(some.isinf(), some, some.clamp(-limit, limit)))

    def decode(self, stored: Tensor, out: Tensor) -> None:
        out.copy_(stored)


class Scaled(HostFormat):
    """Eight bits a value, and behind them the scale of the row, in bf16.

    The scale is bf16(max |row| / largest), values are row / scale, rounded to nearest and clipped. bf16 has
    the range of float32, so that no scale of a finite row is infinite; rows below 1e-36 or so, whose scale
    would not be a normal number, become zeros, and int8 has no negative zero. A row that holds a NaN or an
    infinity is read as NaN throughout.

    Args:
        values: torch.int8, or an e4m3 dtype where torch has one.
        per_page: rows are whole pages.
    """

    def __init__(self, name: str, values: torch.dtype, per_page: bool = False) -> None:
        self.name, self.values, self.per_page = name, values, per_page
        self.largest = _LARGEST[values]

    def tokens_per_row(self, page_tokens: int) -> int:
        return page_tokens if self.per_page else 1

    def width_bytes(self, dim: int, dtype: torch.dtype) -> int:
        _check(self.name, dtype)
        return dim + _SCALE_BYTES

    def empty(self, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((*shape, self.width_bytes(dim, dtype)), dtype=torch.int8)

    def encode(self, rows: Tensor, out: Tensor) -> None:
        for some, into in groups(rows, out):
            exact = some.float()
            top = exact.abs().amax(-1, keepdim=True)  # [H, n, 1], NaN where a row has one
            scale = (top / self.largest).to(_BF16)
            scale.masked_fill_(scale < torch.finfo(_BF16).tiny, 0.0)
            damaged = ~top.isfinite()
            scale.masked_fill_(damaged, torch.nan)
            scaled = exact / torch.where(scale > 0, scale, torch.inf).float()
            if bool(damaged.any()):
                scaled.masked_fill_(damaged, 0.0)
            if self.values == torch.int8:
                scaled.round_()
            self._values(into).copy_(scaled.clamp_(-self.largest, self.largest))
            into[..., -_SCALE_BYTES:].copy_(scale.view(torch.int8))

    def decode(self, stored: Tensor, out: Tensor) -> None:
        finite = torch.finfo(out.dtype).max
        for some, into in groups(stored, out):
            # A copy, since rows may begin anywhere and only an aligned scale can be viewed as one.
            scale = some[..., -_SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
            scale = scale.view(_BF16)  # [H, n, 1]
            into.copy_(self._values(some))
            into.mul_(scale)
            # A scale that was rounded up may lead beyond the largest number; False for NaN too.
            if not float(scale.amax()) * self.largest <= finite:
                into.clamp_(-finite, finite)

    def _values(self, rows: Tensor) -> Tensor:
        values = rows[..., :-_SCALE_BYTES]
        return values if self.values == torch.int8 else values.view(self.values)


SAME, BF16 = Same(), Bf16()
INT8, INT8_PAGE = Scaled("int8", torch.int8), Scaled("int8_page", torch.int8, per_page=True)
FP8, FP8_PAGE = (
    (None, None) if _FP8 is None else (Scaled("fp8", _FP8), Scaled("fp8_page", _FP8, per_page=True))
)


def host_format(name: str, dtype: torch.dtype) -> HostFormat:
    """The format of host memory called `name`, for rows that have `dtype` on the device.

    Raises: ValueError, without `name`, for a format that there is not, here or for this dtype.
    """
    if name == "same" or (name == "bf16" and dtype == _BF16):
        return SAME
    found = {"bf16": BF16, "int8": INT8, "fp8": FP8}.get(name)
    if found is None:
        known = "must be same, bf16, int8 or fp8"
        raise ValueError("torch has no float8_e4m3fn here" if name == "fp8" else known)
    _check(name, dtype)
    return found


def formats(dtype: torch.dtype) -> list[HostFormat]:
    """All that there are for rows of `dtype`, those with a scale a page included, exact ones first."""
    rounded = [] if dtype not in _ROUNDED else [BF16, INT8, INT8_PAGE, FP8, FP8_PAGE]
    found = [one for one in rounded if one is not None]
    return [SAME, *(one for one in found if not (one is BF16 and dtype == _BF16))]


def _check(name: str, dtype: torch.dtype) -> None:
    if dtype not in _ROUNDED:
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(f"{name} is for models of at most 32 bits, this one is {kind}")


def _largest_bf16(dtype: torch.dtype) -> float:
    """The largest bf16 value that `dtype` holds."""
    largest = torch.tensor(torch.finfo(dtype).max, dtype=torch.float32)
    # Cutting bits off rounds down.
    return float((largest.view(torch.int32) & -0x10000).view(torch.float32))
