"""Decoder attention as the formula reads: a beam's keys are laid side by side, one softmax over them."""

from __future__ import annotations

import torch
from torch import Tensor

from relaygr.kernels.beams import BeamKernel, KeysValues, Mode, check_beams, check_causal


class ReferenceBeams(BeamKernel):
    """The slow, obvious back-end: every mode is the same single softmax, row by row, any dtype."""

    name = "reference"

    def causal(
        self, q: Tensor, k_new: Tensor, v_new: Tensor, past: KeysValues | None, past_tokens: int
    ) -> Tensor:
        check_causal(q, k_new, v_new, past, past_tokens)
        keys, values = k_new.transpose(0, 1), v_new.transpose(0, 1)  # [Hkv, n, d]
        if past is not None:
            keys = torch.cat([past[0][:, :past_tokens], keys], dim=1)
            values = torch.cat([past[1][:, :past_tokens], values], dim=1)
        rows = [_attend(q[i], keys[:, :stop], values[:, :stop]) for i, stop in _ends(q.shape[0], past_tokens)]
        return torch.stack(rows) if rows else torch.empty_like(q)

    def beams(
        self,
        q: Tensor,
        shared: KeysValues,
        prompt_tokens: int,
        own_k: Tensor,
        own_v: Tensor,
        anc: Tensor,
        mode: Mode = "auto",
    ) -> Tensor:
        check_beams(q, shared, prompt_tokens, own_k, own_v, anc, mode)
        rows = []
        for beam, slots in enumerate(anc.tolist()):
            keys, values = (
                torch.cat(
                    [prompt[:, :prompt_tokens], *(own[slot][:, None] for slot in slots)],
                    dim=1,
                )
                for prompt, own in zip(shared, (own_k, own_v), strict=True)
            )  # [Hkv, P + t, d]
            rows.append(_attend(q[beam], keys, values))
        return torch.stack(rows) if rows else torch.empty_like(q)


def _ends(rows: int, past_tokens: int) -> list[tuple[int, int]]:
    """Each new row and the number of keys it sees."""
    return [(i, past_tokens + i + 1) for i in range(rows)]


def _attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One row: q [Hq, d], keys and values [Hkv, P, d] -> [Hq, d]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[0] // keys.shape[0]
    keys, values = (x.to(wide).repeat_interleave(group, dim=0) for x in (keys, values))
    scores = torch.einsum("hd,hpd->hp", q.to(wide), keys) / q.shape[1] ** 0.5
    return torch.einsum("hp,hpd->hd", scores.softmax(-1), values).to(q.dtype)
