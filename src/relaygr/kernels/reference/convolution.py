"""The short convolution as it reads: a beam's window is laid out row by row."""

from __future__ import annotations

import torch
from torch import Tensor


def convolve_window(window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The last rows of `window` [m, C], m >= taps, oldest first, times `weight` [C, taps] -> [C]."""
    taps = weight.shape[1]
    y = (window[-taps:].to(weight.dtype) * weight.t()).sum(0)
    return y if bias is None else y + bias


def reference_prompt(x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor) -> tuple[Tensor, Tensor]:
    """`convolve_prompt`, token by token."""
    taps = weight.shape[1]
    rows = torch.cat((past, x))
    ys = [convolve_window(rows[i : i + taps], weight, bias) for i in range(x.shape[0])]
    y = torch.stack(ys) if ys else weight.new_empty(x.shape)
    return y, rows[rows.shape[0] - taps + 1 :].clone()


def reference_beams(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prompt: Tensor,
    own: Tensor,
    starts: tuple[int, ...],
    anc: Tensor,
) -> Tensor:
    """`convolve_beams`, beam by beam."""
    ys = []
    for beam, slots in enumerate(anc.tolist()):
        ancestors = [own[start + slot][None] for start, slot in zip(starts, slots[:-1], strict=False)]
        ys.append(convolve_window(torch.cat((prompt, *ancestors, x[beam][None])), weight, bias))
    return torch.stack(ys) if ys else weight.new_empty(x.shape)
