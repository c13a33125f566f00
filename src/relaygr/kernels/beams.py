"""The contract of decoder attention: causal prompt rows, and many beams that share one prompt.

A beam sees the whole prompt, the slots of its ancestors, and its own slot. Beam K/V never move: `anc` says
which slot holds a beam's ancestor at each depth, and several beams may name the same slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Mode: TypeAlias = Literal["split", "joint", "replicate", "auto"]
MODES: tuple[Mode, ...] = ("split", "joint", "replicate", "auto")
KeysValues: TypeAlias = tuple[Tensor, Tensor]


class BeamKernel(ABC):
    """Softmax attention of a decoder with grouped queries; scores q.k / sqrt(d), softmax in fp32 or wider.

    Query head h reads K/V head h // g, g = Hq / Hkv. A call belongs to one request and changes none of its
    inputs, so no result can depend on what else is in a batch; equal inputs at an equal thread count give
    equal bits. Rows of keys and values that are not named to be seen may hold anything, NaN included.

    Raises:
        ValueError: shapes, dtypes or counts that do not fit together, or an unknown mode.
    """

    name: str

    @abstractmethod
    def causal(
        self, q: Tensor, k_new: Tensor, v_new: Tensor, past: KeysValues | None, past_tokens: int
    ) -> Tensor:
        """Prompt rows from position past_tokens on: each sees the past and the new rows up to itself.

        Args:
            q: [n, Hq, d], any row stride.
            k_new, v_new: [n, Hkv, d], the rows' own keys and values.
            past: keys and values [Hkv, P', d] of the positions before, P' >= past_tokens, as a `KvStore`
                reads them; they may hold the new rows already. None is allowed if `past_tokens` is 0.
            past_tokens: rows of `past` that are seen.

        Returns:
            [n, Hq, d] in the dtype of q.
        """

    @abstractmethod
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
        """One decode step of W beams: each sees the prompt and the slots that its row of `anc` names.

        Args:
            q: [W, Hq, d], any row stride.
            shared: the prompt's keys and values [Hkv, P', d], P' >= prompt_tokens.
            prompt_tokens: rows of `shared` that are seen.
            own_k, own_v: [S, Hkv, d], one slot a row; those that are named are written before the call.
            anc: int32 [W, t], 1 <= t <= S; column j - 1 is the slot of a beam's ancestor at depth j, the last
                column its own. Which slots belong to which depth is not the kernel's concern.
            mode: "split" computes prompt and own part apart and merges them by log-sum-exp; "joint" is one
                softmax over both score blocks; "replicate" gives every beam its copy of the prompt (the
                baseline to measure against); "auto" takes what was measured as faster for (W, P).

        Returns:
            [W, Hq, d] in the dtype of q.
        """


def merge_parts(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> KeysValues:
    """Join two partial softmaxes over disjoint keys; associative, so that any tiling gives the same result.

    Args:
        out_*: [..., d], each part's own softmax average, in fp32 or wider.
        lse_*: [...], natural log of each part's sum of exponentials; -inf for a part without keys.

    Returns:
        (out, lse) of both parts together.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    # Two empty parts would give -inf minus -inf.
    at = lse.masked_fill(lse == -torch.inf, 0.0)
    weight_a, weight_b = (torch.exp(part - at)[..., None] for part in (lse_a, lse_b))
    return out_a * weight_a + out_b * weight_b, lse


def check_causal(q: Tensor, k_new: Tensor, v_new: Tensor, past: KeysValues | None, past_tokens: int) -> None:
    """Raise ValueError unless the arguments of `BeamKernel.causal` fit together."""
    heads, dim = _grouped(q, k_new.shape[1] if k_new.dim() == 3 else 0)
    wanted = (q.shape[0], heads, dim)
    if k_new.shape != wanted or v_new.shape != wanted:
        raise ValueError(f"k_new {tuple(k_new.shape)}, v_new {tuple(v_new.shape)}: expected {wanted}")
    _same_dtype(q, k_new=k_new, v_new=v_new)
    if past is None:
        if past_tokens:
            raise ValueError(f"past_tokens: {past_tokens} without a past")
        return
    _check_shared("past", past, past_tokens, heads, q)


def check_beams(
    q: Tensor,
    shared: KeysValues,
    prompt_tokens: int,
    own_k: Tensor,
    own_v: Tensor,
    anc: Tensor,
    mode: Mode,
) -> None:
    """Raise ValueError unless the arguments of `BeamKernel.beams` fit together.

    Slot numbers are not looked at: that would cost a pass over `anc` on each layer.
    """
    if mode not in MODES:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(MODES)}")
    heads, dim = _grouped(q, own_k.shape[1] if own_k.dim() == 3 else 0)
    if own_k.shape != own_v.shape or own_k.shape[2] != dim:
        raise ValueError(
            f"own_k {tuple(own_k.shape)}, own_v {tuple(own_v.shape)}: expected [S, {heads}, {dim}] twice"
        )
    _same_dtype(q, own_k=own_k, own_v=own_v)
    _check_shared("shared", shared, prompt_tokens, heads, q)
    if anc.dtype != torch.int32 or anc.dim() != 2 or anc.shape[0] != q.shape[0]:
        raise ValueError(f"anc: {anc.dtype} {tuple(anc.shape)}: expected int32 [{q.shape[0]}, t]")
    if not 1 <= anc.shape[1] <= own_k.shape[0]:
        raise ValueError(f"anc: depth {anc.shape[1]} must be in [1, {own_k.shape[0]}]")


def _grouped(q: Tensor, kv_heads: int) -> tuple[int, int]:
    if q.dim() != 3:
        raise ValueError(f"q: {tuple(q.shape)} must be [rows, heads, dim]")
    if kv_heads < 1 or q.shape[1] % kv_heads:
        raise ValueError(f"q: {q.shape[1]} query heads are not a multiple of {kv_heads} K/V heads")
    return kv_heads, q.shape[2]


def _check_shared(name: str, pair: KeysValues, tokens: int, heads: int, q: Tensor) -> None:
    keys, values = pair
    if keys.shape != values.shape or keys.dim() != 3 or (keys.shape[0], keys.shape[2]) != (heads, q.shape[2]):
        raise ValueError(
            f"{name}: keys {tuple(keys.shape)}, values {tuple(values.shape)}: "
            f"expected [{heads}, P, {q.shape[2]}] twice"
        )
    if not 0 <= tokens <= keys.shape[1]:
        raise ValueError(f"{name}: {tokens} tokens must be in [0, {keys.shape[1]}]")
    _same_dtype(q, **{f"{name}_keys": keys, f"{name}_values": values})


def _same_dtype(q: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: {tensor.dtype} is not the dtype of q, {q.dtype}")
