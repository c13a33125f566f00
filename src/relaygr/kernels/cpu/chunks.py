"""The chunked form of linear attention: inside a chunk by products, from chunk to chunk by the state.

Inside a chunk the delta families' updates solve a triangular system (the WY form of Householder products).
"""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.kernels.recurrent import RecurrentSpec

CHUNK = 64
# A vector decay needs each pair of tokens in each channel: that part grows with the chunk.
VECTOR_CHUNK = 16
PAIR_BYTES = 32 << 20  # of the largest tensor over pairs of tokens of a group of chunks


def chunk_tokens(spec: RecurrentSpec) -> int:
    """Tokens of a chunk."""
    return VECTOR_CHUNK if spec.vector else CHUNK


def chunked(
    spec: RecurrentSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """`RecurrentKernel.prefill`, log_decay [n, *shape] also for a constant decay.

    The last chunk is filled up with tokens that change nothing, so that all chunks take the same loops.
    """
    tokens, size = q.shape[0], chunk_tokens(spec)
    out = state.new_empty(v.shape)
    pair_bytes = spec.value_heads * size * size * (spec.key_dim if spec.vector else 1) * state.element_size()
    group = max(PAIR_BYTES // pair_bytes, 1) * size
    for start in range(0, tokens, group):
        some = slice(start, min(start + group, tokens))
        parts = [None if x is None else _cut(x[some], size, state.dtype) for x in (q, k, v, log_decay, beta)]
        done, state = _group(spec, parts, state)
        out[some] = done.flatten(1, 2).transpose(0, 1)[: some.stop - start]
    return out, state if tokens else state.clone()


def _cut(x: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[n, H, ...] -> [H, chunks, size, ...] with zeros behind the end."""
    tokens, heads = x.shape[:2]
    chunks = -(-tokens // size)
    out = x.new_zeros((heads, chunks * size, *x.shape[2:]), dtype=dtype)
    out[:, :tokens] = x.transpose(0, 1)
    return out.view(heads, chunks, size, *x.shape[2:])


def _group(spec: RecurrentSpec, parts: list[Tensor | None], state: Tensor) -> tuple[Tensor, Tensor]:
    """Whole chunks -> (out [Hv, chunks, C, dv], state). q, k [Hk, chunks, C, dk] and so on."""
    q, k, v, log_decay, beta = parts
    assert q is not None
    assert k is not None
    assert v is not None
    assert log_decay is not None
    if spec.read_heads != spec.key_heads:
        q, k = (x.repeat_interleave(spec.read_heads // spec.key_heads, dim=0) for x in (q, k))
    kept = _between(log_decay).exp_()  # [heads, chunks, C, C(, dk)]: from the second token to the first
    since = log_decay.cumsum(2).exp()  # [heads, chunks, C(, dk)]: from the chunk's start
    if spec.vector:
        keys_at = (kept * k[:, :, None]).flatten(0, 2)  # [.., i, dk] decayed for each t
        both = torch.stack((k, q), dim=-1).flatten(0, 2)  # [.., dk, 2]
        scores = torch.bmm(keys_at, both).view(*kept.shape[:-1], 2)
        known, seen = _spread(spec, scores[..., 0]), _spread(spec, scores[..., 1])
        start, left = since, kept[:, :, -1]
        k_start, q_start, k_left = (_spread(spec, x) for x in (k * start, q * start, k * left))
        end = _spread(spec, since[:, :, -1])[..., None]  # [Hv, chunks, dk, 1]
    else:
        known, seen = (_spread(spec, x @ k.transpose(-1, -2)).mul(kept) for x in (k, q))
        k, q = _spread(spec, k), _spread(spec, q)
        k_start, q_start = k * since[..., None], q * since[..., None]
        k_left = k * kept[:, :, -1, :, None]
        end = since[:, :, -1, None, None]  # [Hv, chunks, 1, 1]
    if beta is None:
        return _run(seen, q_start, v, None, k_left, end, state)
    strength = beta[..., None]
    right = torch.cat((v, k_start), dim=-1) * strength
    solved = torch.linalg.solve_triangular(
        (known * strength).tril_(-1), right, upper=False, unitriangular=True
    )
    alone, of_state = solved.split((spec.value_dim, spec.key_dim), dim=-1)
    return _run(seen, q_start, alone, of_state, k_left, end, state)


def _run(
    seen: Tensor,
    q_start: Tensor,
    alone: Tensor,
    of_state: Tensor | None,
    k_left: Tensor,
    end: Tensor,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Chunk by chunk: updates from the state, what is read, the next state."""
    out = torch.empty_like(alone)
    for c in range(alone.shape[1]):
        update = (
            alone[:, c] if of_state is None else torch.baddbmm(alone[:, c], of_state[:, c], state, alpha=-1)
        )
        torch.baddbmm(torch.bmm(seen[:, c], update), q_start[:, c], state, out=out[:, c])
        state = torch.baddbmm(end[:, c] * state, k_left[:, c].transpose(1, 2), update)
    return out, state


def _between(log_decay: Tensor) -> Tensor:
    """[.., C(, dk)] -> [.., t, i(, dk)]: the sum over tokens i + 1 .. t, -inf for i > t.

    Sums of what lies between, row by row from the one above: a difference of cumulative sums would lose a
    weak decay behind strong ones. The mask is there before any exponential.
    """
    heads, chunks, size = log_decay.shape[:3]
    sums = log_decay.new_full((heads, chunks, size, size, *log_decay.shape[3:]), -torch.inf)
    for t in range(size):
        if t:
            torch.add(sums[:, :, t - 1, :t], log_decay[:, :, t, None], out=sums[:, :, t, :t])
        sums[:, :, t, t] = 0
    return sums


def _spread(spec: RecurrentSpec, x: Tensor) -> Tensor:
    """[read or key heads, ...] -> [Hv, ...]."""
    group = spec.value_heads // x.shape[0]
    return x if group == 1 else x.repeat_interleave(group, dim=0)
