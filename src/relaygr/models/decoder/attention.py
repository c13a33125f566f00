"""A layer of grouped-query attention, Q/K/V fused; gated models gate what was attended to."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.kernels.linear import Linear
from relaygr.models.decoder.batch import BeamBatch, PromptBatch, joined, wide
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.layer import DecoderLayer, Projection, make_norm
from relaygr.models.decoder.rope import Rotation
from relaygr.models.decoder.rows import PromptRow


class _Projected(NamedTuple):
    """Queries [n, Hq, d], keys and values [n, Hkv, d] of rows, the gate [n, Hq, d] of a gated model."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None


class AttentionLayer(DecoderLayer):
    """Softmax attention; prompts keep keys and values in their stores, beams in their slots."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__(config, index, config.query_size, config.output_bias)
        self.qkv = Projection(
            config.hidden_size, config.query_rows + 2 * config.kv_size, config.attention_bias
        )
        self.q_norm = make_norm(config, config.head_dim) if config.qk_norm else None
        self.k_norm = make_norm(config, config.head_dim) if config.qk_norm else None

    def prompt(self, x: Tensor, batch: PromptBatch) -> Tensor:
        q, k, v, gate = self._project(x, batch.rotation, batch.linear)
        attended = []
        for row, at in zip(batch.rows, batch.spans, strict=True):
            row.store.write(self.index, row.cached, k[at], v[at])
            past = row.store.read(self.index, row.cached + len(row.tokens)) if row.cached else None
            attended.append(batch.kernels.beams.causal(q[at], k[at], v[at], past, row.cached))
        return self.finish(x, _gated(joined(attended), gate), batch.linear)

    def last(self, x: Tensor, batch: PromptBatch) -> Tensor:
        k, v = self._remember(x, batch)
        x = x[batch.last]
        q, gate = self._query(x, batch.at_last, batch.alone)
        attended = [
            self._last(batch, row, q[i : i + 1], k[at], v[at])
            for i, (row, at) in enumerate(zip(batch.rows, batch.spans, strict=True))
        ]
        return self.finish(x, _gated(joined(attended), gate), batch.alone)

    def remember(self, x: Tensor, batch: PromptBatch) -> None:
        self._remember(x, batch)

    def beams(self, x: Tensor, batch: BeamBatch) -> Tensor:
        q, k, v, gate = self._project(x, batch.rotation, batch.linear)
        attended = []
        for row, at in zip(batch.rows, batch.spans, strict=True):
            row.own.write(self.index, row.depth, k[at], v[at])
            shared = row.prompt.read(self.index, row.prompt_tokens)
            own = row.own.keys(self.index), row.own.values(self.index)
            kernel, mode = batch.kernels.beams, batch.kernels.mode
            slots = row.own.rows(row.anc)
            attended.append(kernel.beams(q[at], shared, row.prompt_tokens, *own, slots, mode))
        return self.finish(x, _gated(joined(attended), gate), batch.linear)

    def whole(self, x: Tensor, batch: int, rotation: Rotation) -> Tensor:
        *heads, gate = self._project(x, rotation, F.linear)
        q, k, v = (
            part.view(batch, -1, *part.shape[1:]).transpose(1, 2) for part in heads if part is not None
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.finish(x, _gated(attended.transpose(1, 2).flatten(0, 1), gate), F.linear)

    def _last(self, batch: PromptBatch, row: PromptRow, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the row's last token [1, Hq, d] alone: a single beam, which owns that token."""
        before = row.cached + len(k) - 1
        shared = row.store.read(self.index, before + 1)
        anc = torch.zeros(1, 1, dtype=torch.int32, device=q.device)
        return batch.kernels.beams.beams(q, shared, before, k[-1:], v[-1:], anc, "split")

    def _project(self, x: Tensor, rotation: Rotation, linear: Linear) -> _Projected:
        """All rows; queries and keys are views of one tensor."""
        config = self.config
        mixed = self.qkv(self.attention_norm(x), linear).view(len(x), -1, config.head_dim)
        if config.gated:
            queries, gate = self._parted(mixed[:, : 2 * config.num_heads])
            turned = torch.cat((queries, mixed[:, 2 * config.num_heads : -config.num_kv_heads]), dim=1)
        else:
            turned, gate = mixed[:, : -config.num_kv_heads], None
        both = self._place(turned, self._scale(True, True), rotation)
        return _Projected(
            both[:, : config.num_heads], both[:, config.num_heads :], mixed[:, -config.num_kv_heads :], gate
        )

    def _query(self, x: Tensor, rotation: Rotation, linear: Linear) -> tuple[Tensor, Tensor | None]:
        """Queries and gate only."""
        mixed = self.qkv(self.attention_norm(x), linear, slice(self.config.query_rows))
        queries, gate = mixed.view(len(x), -1, self.config.head_dim), None
        if self.config.gated:
            queries, gate = self._parted(queries)
        return self._place(queries, self._scale(True, False), rotation), gate

    def _remember(self, x: Tensor, batch: PromptBatch) -> tuple[Tensor, Tensor]:
        """Keys and values only, also written to the stores."""
        config = self.config
        mixed = self.qkv(self.attention_norm(x), batch.linear, slice(config.query_rows, None))
        each = mixed.view(len(x), 2 * config.num_kv_heads, config.head_dim)
        k = self._place(each[:, : config.num_kv_heads], self._scale(False, True), batch.rotation)
        v = each[:, config.num_kv_heads :]
        for row, at in zip(batch.rows, batch.spans, strict=True):
            row.store.write(self.index, row.cached, k[at], v[at])
        return k, v

    def _parted(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """[n, 2 Hq, d], each head's query and then its gate -> queries and gates [n, Hq, d]."""
        pairs = mixed.view(len(mixed), self.config.num_heads, 2, -1)
        return pairs[:, :, 0], pairs[:, :, 1]

    def _scale(self, queries: bool, keys: bool) -> Tensor | None:
        """Scales of the chosen heads' norms, [heads, d]."""
        if self.q_norm is None or self.k_norm is None:
            return None
        q = self.q_norm.scale.expand(self.config.num_heads, -1)
        k = self.k_norm.scale.expand(self.config.num_kv_heads, -1)
        return torch.cat([q, k]) if queries and keys else q if queries else k

    def _place(self, x: Tensor, scale: Tensor | None, rotation: Rotation) -> Tensor:
        """Heads [n, H, d], normalised and turned to their places in fp32 or wider."""
        heads = wide(x)
        if scale is not None:
            heads = F.rms_norm(heads, heads.shape[-1:], None, self.config.norm_eps) * scale
        turned = self.config.rotary_dim
        if turned == heads.shape[-1]:
            return rotation.turn(heads).to(x.dtype)
        parts = (rotation.turn(heads[..., :turned]), heads[..., turned:])
        return torch.cat(parts, dim=-1).to(x.dtype)


def _gated(attended: Tensor, gate: Tensor | None) -> Tensor:
    return attended if gate is None else attended * torch.sigmoid(wide(gate))
