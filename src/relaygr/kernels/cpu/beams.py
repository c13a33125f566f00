"""Decoder attention on a CPU: the beams of a K/V head are one block of queries against a prompt read once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from relaygr.kernels.beam_modes import ModeTable
from relaygr.kernels.beams import BeamKernel, KeysValues, Mode, check_beams, check_causal, merge_parts
from relaygr.kernels.cpu.parts import SCORE_BYTES, FlashRoute, PartRoute, TiledRoute, wide

FIXED_TILE = 128  # prompt rows stand in tiles at multiples of this position
REPLICA_BYTES = 256 << 20  # copies of the prompt that `replicate` holds at a time


class CpuBeams(BeamKernel):
    """The CPU back-end.

    Args:
        route: computes parts; None takes the fused one where torch has it. `beam_select` measures instead.
        table: what `auto` goes by; None means that nothing was measured, and `auto` is `split`, which reads
            the prompt once and keeps no scores.
        bitwise: prompt rows stand in fixed tiles by their position, padded with zeros, so that a row's bits
            do not depend on how the prompt was cut into passes. A few rows behind a long past cost a tile.
    """

    name = "cpu"

    def __init__(
        self, route: PartRoute | None = None, table: ModeTable | None = None, bitwise: bool = True
    ) -> None:
        self.route = route or (FlashRoute() if FlashRoute.available() else TiledRoute())
        self.table, self.bitwise = table, bitwise

    def mode_for(self, width: int, prompt_tokens: int) -> Literal["split", "joint"]:
        """What `auto` means for W beams on a prompt of P tokens."""
        return "split" if self.table is None else self.table.decide(width, prompt_tokens)

    def causal(
        self, q: Tensor, k_new: Tensor, v_new: Tensor, past: KeysValues | None, past_tokens: int
    ) -> Tensor:
        check_causal(q, k_new, v_new, past, past_tokens)
        rows, heads, dim = q.shape
        if rows == 0:
            return torch.empty_like(q)
        kv_heads = k_new.shape[1]
        group = heads // kv_heads
        tile = FIXED_TILE if self.bitwise else rows
        first = past_tokens // tile * tile if self.bitwise else past_tokens  # position of the first tile
        tiles = -(-(past_tokens + rows - first) // tile)
        offset = past_tokens - first
        keys, values = (
            _positions(new, None if past is None else past[i], past_tokens, first + tiles * tile)
            for i, new in enumerate((k_new, v_new))
        )  # [Hkv, tokens, d]
        padded = q.new_zeros(tiles * tile, kv_heads, group, dim)
        padded[offset : offset + rows] = q.reshape(rows, kv_heads, group, dim)
        queries = padded.view(tiles, tile, kv_heads, group, dim).permute(2, 0, 3, 1, 4).contiguous()
        # queries [Hkv, tiles, g, rows, d]: first each tile on itself, all at once
        own_k, own_v = (
            x[:, first:].reshape(-1, 1, tile, dim).expand(-1, group, -1, -1) for x in (keys, values)
        )
        out, lse = self.route.attend(queries.flatten(0, 1), own_k, own_v, causal=True)
        out, lse = (x.view(kv_heads, tiles, *x.shape[1:]) for x in (out, lse))
        done = q.new_empty(tiles, tile, kv_heads, group, dim)
        for i in range(tiles):
            part = out[:, i], lse[:, i]  # [Hkv, g, rows, d], [Hkv, g, rows]
            before = first + i * tile
            if before:
                block = queries[:, i].flatten(1, 2)[None]  # [1, Hkv, g * rows, d]
                seen, its = self.route.attend(block, keys[None, :, :before], values[None, :, :before])
                part = merge_parts(seen.view_as(part[0]), its.reshape(part[1].shape), *part)
            done[i] = part[0].permute(2, 0, 1, 3)
        return done.view(tiles * tile, heads, dim)[offset : offset + rows]

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
        width, heads, dim = q.shape
        if width == 0:
            return torch.empty_like(q)
        keys, values = (x[:, :prompt_tokens] for x in shared)
        queries = q.reshape(width, keys.shape[0], -1, dim)  # [W, Hkv, g, d]
        slots = anc.flatten()
        mine = _gathered(own_k, slots, width), _gathered(own_v, slots, width)  # [W, t, Hkv, d]
        chosen = self.mode_for(width, prompt_tokens) if mode == "auto" else mode
        if chosen == "replicate":
            out = self._replicate(queries, keys, values, *mine)
        elif chosen == "joint" and prompt_tokens:
            out = _joint(queries, keys, values, *mine)
        else:
            out = self._split(queries, keys, values, *mine)
        return out.to(q.dtype).reshape(width, heads, dim)

    def _split(self, q: Tensor, keys: Tensor, values: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
        """Prompt and own part apart. An own slot is a part of one key: its score is its log-sum-exp."""
        width, _, group, _ = q.shape
        parts = _own_scores(q, own_k)  # [W, t, Hkv, g]
        if not keys.shape[1]:
            return _own_sum(parts.softmax(1), own_v)
        block = q.transpose(0, 1).flatten(1, 2)[None]  # [1, Hkv, W * g, d]
        out, lse = self.route.attend(block, keys[None], values[None])
        out, lse = (x.view(-1, width, group, *x.shape[3:]).transpose(0, 1) for x in (out, lse))
        # The softmax over log-sum-exps is what merging t + 1 parts one by one multiplies up to.
        weights = torch.cat([lse[:, None], parts], dim=1).softmax(1)  # [W, 1 + t, Hkv, g]
        return _own_sum(weights[:, 1:], own_v).addcmul_(weights[:, 0, :, :, None], out)

    def _replicate(self, q: Tensor, keys: Tensor, values: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
        """Each beam against a prompt copy of its own, as a decoder without sharing has to do it."""
        tokens = keys.shape[1] + own_k.shape[1]
        beam_bytes = 2 * keys.shape[0] * tokens * keys.shape[2] * keys.element_size()
        step = max(REPLICA_BYTES // beam_bytes, 1)
        parts = []
        for start in range(0, q.shape[0], step):
            chunk = slice(start, min(start + step, q.shape[0]))
            beams = chunk.stop - start
            k, v = (
                torch.cat([prompt.expand(beams, -1, -1, -1), own[chunk].transpose(1, 2)], dim=2)
                for prompt, own in ((keys, own_k), (values, own_v))
            )  # [beams, Hkv, P + t, d]
            parts.append(self.route.attend(q[chunk], k, v)[0])
        return torch.cat(parts)


def _joint(q: Tensor, keys: Tensor, values: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
    """One softmax over prompt and own scores; tiles of beams keep the scores in cache."""
    width, kv_heads, group, dim = q.shape
    tokens = keys.shape[1]
    keys, values, own_k, own_v = (wide(x) for x in (keys, values, own_k, own_v))
    own = _own_scores(q, own_k)  # [W, t, Hkv, g]
    queries = wide(q) * dim**-0.5
    step = max(SCORE_BYTES // (kv_heads * group * tokens * queries.element_size()), 16)
    parts = []
    for start in range(0, width, step):
        block = queries[start : start + step].transpose(0, 1).flatten(1, 2)  # [Hkv, beams * g, d]
        alone = own[start : start + step].permute(2, 0, 3, 1).flatten(1, 2)  # [Hkv, beams * g, t]
        weights = torch.cat([torch.bmm(block, keys.transpose(1, 2)), alone], dim=-1).softmax(-1)
        out = torch.bmm(weights[..., :tokens], values).view(kv_heads, -1, group, dim).transpose(0, 1)
        alone = weights[..., tokens:].reshape(kv_heads, out.shape[0], group, -1).permute(1, 3, 0, 2)
        parts.append(out + _own_sum(alone, own_v[start : start + step]))
    return torch.cat(parts)


def _own_scores(q: Tensor, own_k: Tensor) -> Tensor:
    """q [W, Hkv, g, d], own_k [W, t, Hkv, d] -> [W, t, Hkv, g].

    Element-wise: thousands of products of g x d by d x t cost three times as much.
    """
    products = wide(q)[:, None] * wide(own_k)[:, :, :, None]
    return products.sum(-1).mul_(float(q.shape[-1]) ** -0.5)


def _own_sum(weights: Tensor, own_v: Tensor) -> Tensor:
    """weights [W, t, Hkv, g], own_v [W, t, Hkv, d] -> [W, Hkv, g, d]."""
    return (weights[..., None] * wide(own_v)[:, :, :, None]).sum(1)


def _gathered(own: Tensor, slots: Tensor, beams: int) -> Tensor:
    """own [S, Hkv, d], slots [W * t] -> [W, t, Hkv, d]."""
    return own.index_select(0, slots).view(beams, -1, *own.shape[1:])


def _positions(new: Tensor, past: Tensor | None, past_tokens: int, tokens: int) -> Tensor:
    """Keys or values of a prompt by position, head-major [Hkv, tokens, d]; zeros behind the new rows."""
    rows, heads, dim = new.shape
    out = new.new_empty(heads, tokens, dim)
    if past is not None:
        out[:, :past_tokens] = past[:, :past_tokens]
    out[:, past_tokens : past_tokens + rows] = new.transpose(0, 1)
    out[:, past_tokens + rows :] = 0
    return out
