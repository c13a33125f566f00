"""Linear attention as the recurrence reads: token by token, and a full state for every beam."""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.kernels.recurrent import (
    BeamStep,
    Records,
    RecurrentKernel,
    RecurrentSpec,
    check_records,
    check_tokens,
)


class ReferenceRecurrent(RecurrentKernel):
    """The slow, obvious back-end, in the dtype of the state."""

    name = "reference"

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
        outs = []
        for i in range(q.shape[0]):
            decay = log_decay if spec.constant_decay else log_decay[i]
            strength = None if beta is None else beta[i]
            out, _, state = feed(spec, q[i], k[i], v[i], decay, strength, state)
            outs.append(out)
        return torch.stack(outs) if outs else state.new_empty(v.shape), state.clone()

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
        outs, updates = [], []
        for beam, slots in enumerate(anc.tolist()):
            its = state
            for start, slot in zip(records.starts, slots[:-1], strict=False):
                at = start + slot
                decay = log_decay if records.log_decay is None else records.log_decay[at]
                its = decayed(spec, its, decay) + written(
                    spec, records.keys[at], records.updates[at], its.dtype
                )
            decay = log_decay if spec.constant_decay else log_decay[beam]
            strength = None if beta is None else beta[beam]
            out, update, _ = feed(spec, q[beam], k[beam], v[beam], decay, strength, its)
            outs.append(out)
            updates.append(update)
        if not outs:
            return BeamStep(state.new_empty(v.shape), state.new_empty(v.shape))
        return BeamStep(torch.stack(outs), torch.stack(updates))


def feed(
    spec: RecurrentSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token: decay, predict, correct, read; (out, update, new state). q, k [Hk, dk], v, out [Hv, dv]."""
    state = decayed(spec, state, log_decay)
    update = v.to(state.dtype)
    if beta is not None:
        known = torch.einsum("hkv,hk->hv", state, spread(spec, k).to(state.dtype))
        update = beta.to(state.dtype)[:, None] * (update - known)
    state = state + written(spec, k, update, state.dtype)
    return torch.einsum("hkv,hk->hv", state, spread(spec, q).to(state.dtype)), update, state


def decayed(spec: RecurrentSpec, state: Tensor, log_decay: Tensor) -> Tensor:
    """The state after one token's decay, ln a [Hv], or [heads, dk] for a vector."""
    factor = log_decay.to(state.dtype).exp()
    if not spec.vector:
        return factor[:, None, None] * state
    return factor.repeat_interleave(spec.value_heads // factor.shape[0], dim=0)[:, :, None] * state


def written(spec: RecurrentSpec, k: Tensor, update: Tensor, dtype: torch.dtype) -> Tensor:
    """k u^T, [Hv, dk, dv]."""
    return spread(spec, k).to(dtype)[:, :, None] * update.to(dtype)[:, None, :]


def spread(spec: RecurrentSpec, x: Tensor) -> Tensor:
    """[Hk, dk] -> [Hv, dk]: each value head gets its key head's."""
    return x.repeat_interleave(spec.value_heads // spec.key_heads, dim=0)
