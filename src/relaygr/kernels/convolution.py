"""The short causal convolution before a recurrence, each channel on its own, for prompts and for beams.

A window of `taps` rows ends at the token itself. The prompt leaves its last taps - 1 rows behind, once for
all beams; a token fed to a beam leaves its own row in its slot, and the ancestor index finds it.
Rows are those before the convolution. No activation is applied here.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDE = (torch.float32, torch.float64)


def empty_rows(taps: int, channels: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """The rows before a prompt's first token, zeros [taps - 1, C]."""
    return torch.zeros(taps - 1, channels, dtype=dtype, device=device)


def convolve_prompt(x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor) -> tuple[Tensor, Tensor]:
    """Prompt tokens in order; a later call continues with the rows of an earlier one, bit for bit.

    Args:
        x: [n, C], in the dtype in which rows are kept.
        weight: [C, taps], oldest first.
        bias: [C] or None.
        past: [taps - 1, C], the rows before the first token; see `empty_rows`.

    Returns:
        (y [n, C] in fp32 or wider, the rows behind the last token [taps - 1, C]).

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    taps = _check(x, weight, bias, past)
    rows = torch.cat((past, x))
    steps, wide = _wide(weight)
    y = x.new_zeros(x.shape, dtype=wide) if bias is None else bias.to(wide).expand(x.shape).clone()
    for j in range(taps):
        y.addcmul_(rows[j : j + x.shape[0]].to(wide), steps[j])
    return y, rows[x.shape[0] :].clone()


def convolve_beams(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prompt: Tensor,
    own: Tensor,
    starts: tuple[int, ...],
    anc: Tensor,
) -> Tensor:
    """One token of each of W beams.

    Args:
        x: [W, C]; the caller records it in the beams' own slots.
        weight, bias: as of `convolve_prompt`.
        prompt: [taps - 1, C], the rows behind the prompt, shared by all beams.
        own: [slots, C]; the row of beam b at depth d is starts[d - 1] + b.
        anc: int32 [W, t], t >= 1; the last column, a beam's own slot, is not read.

    Returns:
        y [W, C] in fp32 or wider, the same bits as of the whole window in `convolve_prompt`.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    taps = _check(x, weight, bias, prompt)
    depth = anc.shape[1] if anc.dim() == 2 else 0
    if anc.dtype != torch.int32 or anc.dim() != 2 or anc.shape[0] != x.shape[0]:
        raise ValueError(f"anc: {anc.dtype} {tuple(anc.shape)}: expected int32 [{x.shape[0]}, t]")
    if not 1 <= depth <= len(starts):
        raise ValueError(f"anc: depth {depth} must be in [1, {len(starts)}]")
    if own.dim() != 2 or own.shape[1] != x.shape[1] or own.dtype != x.dtype:
        raise ValueError(f"own: {own.dtype} {tuple(own.shape)}: expected {x.dtype} [slots, {x.shape[1]}]")
    steps, wide = _wide(weight)
    near = min(depth - 1, taps - 1)  # ancestors inside the window
    first = x.new_zeros(x.shape[1:], dtype=wide) if bias is None else bias.to(wide).clone()
    for j in range(taps - 1 - near):  # the same for all beams
        first.addcmul_(prompt[near + j].to(wide), steps[j])
    y = first.expand(x.shape).clone()
    for i in range(depth - 1 - near, depth - 1):
        rows = own.index_select(0, anc[:, i] + starts[i])
        y.addcmul_(rows.to(wide), steps[taps - depth + i])
    return y.addcmul_(x.to(wide), steps[-1])


def _wide(weight: Tensor) -> tuple[Tensor, torch.dtype]:
    """The taps [taps, C], oldest first, and the dtype of sums."""
    wide = weight.dtype if weight.dtype in WIDE else torch.float32
    return weight.to(wide).t().contiguous(), wide


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor) -> int:
    if weight.dim() != 2 or weight.shape[1] < 1 or x.dim() != 2 or x.shape[1] != weight.shape[0]:
        raise ValueError(f"x {tuple(x.shape)}, weight {tuple(weight.shape)}: expected [n, C] and [C, taps]")
    channels, taps = weight.shape
    if past.shape != (taps - 1, channels) or past.dtype != x.dtype:
        raise ValueError(f"rows: {past.dtype} {tuple(past.shape)}: expected {x.dtype} {(taps - 1, channels)}")
    if bias is not None and bias.shape != (channels,):
        raise ValueError(f"bias: {tuple(bias.shape)}: expected {(channels,)}")
    return taps
