"""Linear attention on a CPU: prompts in chunks, all beams by one product a value head with the one state."""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.kernels.cpu.chunks import chunk_tokens, chunked
from relaygr.kernels.recurrent import (
    BeamStep,
    Records,
    RecurrentKernel,
    RecurrentSpec,
    check_records,
    check_tokens,
)

TILE_BYTES = 1 << 20  # of one tensor of a tile of beams: what a step touches stays in the cache


class CpuRecurrent(RecurrentKernel):
    """The CPU back-end; its prompts give the same bits however they are cut at multiples of a chunk."""

    name = "cpu"

    def grain(self, spec: RecurrentSpec) -> int:
        return chunk_tokens(spec)

    def prefill(
        self,
        spec: RecurrentSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        check_tokens(spec, q, k, v, log_decay, beta, state)
        if spec.constant_decay:
            log_decay = log_decay.expand(q.shape[0], -1)
        return chunked(spec, q, k, v, log_decay, beta, state)

    def beams(
        self,
        spec: RecurrentSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
        records: Records,
        anc: Tensor,
    ) -> BeamStep:
        check_tokens(spec, q, k, v, log_decay, beta, state)
        check_records(spec, q.shape[0], records, anc)
        out = state.new_empty(v.shape)
        updates = torch.empty_like(out)
        beam_bytes = spec.value_heads * max(spec.key_dim, spec.value_dim) * state.element_size()
        step = max(TILE_BYTES // beam_bytes, 16)
        for start in range(0, q.shape[0], step):
            tile = slice(start, start + step)
            own = log_decay if spec.constant_decay else log_decay[tile]
            strength = None if beta is None else beta[tile]
            done = _tile(spec, q[tile], k[tile], v[tile], own, strength, state, records, anc[tile])
            out[tile], updates[tile] = done
        return BeamStep(out, updates)


def _tile(
    spec: RecurrentSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    state: Tensor,
    records: Records,
    anc: Tensor,
) -> BeamStep:
    """Some beams: what the state and the records say about k and q, then the update, then the own term."""
    dtype, heads = state.dtype, spec.read_heads
    # Keys on top of queries, at the heads that tell decayed keys apart: [1 or 2, w, heads, dk].
    asked = (torch.stack((k, q)) if spec.delta else q[None]).to(dtype)
    if heads != spec.key_heads:
        asked = asked.repeat_interleave(heads // spec.key_heads, dim=2)
    slots = [anc[:, j] + records.starts[j] for j in range(anc.shape[1] - 1)]
    passed = _passed(spec, log_decay.to(dtype), records, slots)
    if spec.vector:
        said = _from_state(spec, asked * passed[0].exp(), state)
    else:
        said = _from_state(spec, asked, state).mul_(passed[0].exp()[..., None])
    for since, at in zip(passed[1:], slots, strict=True):
        keys = records.keys.index_select(0, at).to(dtype)
        if heads != spec.key_heads:
            keys = keys.repeat_interleave(heads // spec.key_heads, dim=1)
        if spec.vector:
            keys = keys * since.exp()
        scores = (asked * keys).sum(-1)
        if heads != spec.value_heads:
            scores = scores.repeat_interleave(spec.value_heads // heads, dim=2)
        if not spec.vector:
            scores = scores * since.exp()
        said.addcmul_(scores[..., None], records.updates.index_select(0, at).to(dtype))
    update = v.to(dtype)
    if beta is not None:
        update = (update - said[0]).mul_(beta.to(dtype)[:, :, None])
    own = (k.to(dtype) * q.to(dtype)).sum(-1)
    if spec.key_heads != spec.value_heads:
        own = own.repeat_interleave(spec.value_heads // spec.key_heads, dim=1)
    return BeamStep(torch.addcmul(said[-1], own[:, :, None], update), update)


def _passed(spec: RecurrentSpec, log_decay: Tensor, records: Records, slots: list[Tensor]) -> list[Tensor]:
    """ln of what is left of the prompt's state, then of each ancestor's record, oldest first.

    [w, heads] or, for a vector, [w, heads, dk]; [heads] for a constant decay.
    """
    sums = [log_decay]  # newest first; sums of what came in between, never differences of longer sums
    for at in reversed(slots):
        more = log_decay if records.log_decay is None else records.log_decay.index_select(0, at)
        sums.append(sums[-1] + more)
    return sums[::-1]


def _from_state(spec: RecurrentSpec, asked: Tensor, state: Tensor) -> Tensor:
    """S0^T x for x [m, w, heads, dk] -> [m, w, Hv, dv]: one product a value head over all rows."""
    many, width, heads, dim = asked.shape
    rows = asked.view(many * width, heads, dim).transpose(0, 1)  # [heads, m * w, dk]
    group = spec.value_heads // heads
    if group == 1:
        found = torch.bmm(rows, state)
    else:
        parts = state.view(heads, group, dim, spec.value_dim)
        found = torch.stack([torch.bmm(rows, parts[:, i]) for i in range(group)], dim=1).flatten(0, 1)
    return found.view(spec.value_heads, many, width, spec.value_dim).permute(1, 2, 0, 3)
