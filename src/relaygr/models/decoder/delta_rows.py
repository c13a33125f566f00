"""The gated delta rule and its convolution over whole rows, under autograd: what training runs.

Chunks of tokens are solved by products, from chunk to chunk goes the state; see `kernels.cpu.chunks`, which
does the same in place and for one prompt.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32


def convolved_rows(x: Tensor, weight: Tensor) -> Tensor:
    """Rows x [B, n, C] behind zeros, weight [C, taps] oldest first -> [B, n, C]."""
    channels, taps = weight.shape
    before = F.pad(x.transpose(1, 2), (taps - 1, 0))
    return F.conv1d(before, weight[:, None], groups=channels).transpose(1, 2)


def delta_rows(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """What each token reads, from an empty state on.

    Args:
        q, k: [B, n, Hk, dk], scaled and normalised.
        v: [B, n, Hv, dv].
        log_decay, beta: [B, n, Hv].

    Returns:
        [B, n, Hv, dv]; later tokens change nothing of earlier ones.
    """
    tokens, group = q.shape[1], v.shape[2] // q.shape[2]
    q, k, v = (_chunks(x) for x in (q, k, v))
    if group > 1:
        q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
    log_decay, beta = _chunks(log_decay), _chunks(beta)[..., None]
    kept = _between(log_decay).exp()  # [B, Hv, chunks, t, i]: from token i to token t
    since = log_decay.cumsum(-1).exp()[..., None]
    known = (k @ k.transpose(-1, -2) * kept * beta).tril(-1)
    right = torch.cat((v, k * since), dim=-1) * beta
    solved = torch.linalg.solve_triangular(known, right, upper=False, unitriangular=True)
    alone, of_state = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    seen, q_start = q @ k.transpose(-1, -2) * kept, q * since
    k_left, end = k * kept[..., -1, :, None], since[..., -1:, :]
    state = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    out = []
    for c in range(v.shape[2]):
        update = alone[:, :, c] - of_state[:, :, c] @ state
        out.append(seen[:, :, c] @ update + q_start[:, :, c] @ state)
        state = end[:, :, c] * state + k_left[:, :, c].transpose(-1, -2) @ update
    return torch.cat(out, dim=2)[:, :, :tokens].transpose(1, 2)


def _chunks(x: Tensor) -> Tensor:
    """[B, n, H, ...] -> [B, H, chunks, CHUNK, ...], zeros behind the end: tokens that change nothing."""
    missing = -x.shape[1] % CHUNK
    padded = F.pad(x.transpose(1, 2), (0, 0) * (x.dim() - 3) + (0, missing))
    return padded.reshape(*padded.shape[:2], -1, CHUNK, *padded.shape[3:])


def _between(log_decay: Tensor) -> Tensor:
    """[..., C] -> [..., t, i]: the sum over tokens i + 1 .. t, and -inf for i > t, before any exponential."""
    size = log_decay.shape[-1]
    lower = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
    terms = log_decay[..., :, None].expand(*log_decay.shape, size).masked_fill(~lower.tril(-1), 0)
    return terms.cumsum(-2).masked_fill(~lower, -torch.inf)
