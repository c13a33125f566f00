"""What a generator starts from: attention that finds what followed the last time, and what came lately.

With random projections a model first has to learn that a code seen is a code likely to come, which takes more
than a short run. Users repeat themselves; the first two layers begin as the two steps of repeating a sequence
(the induction heads of Olsson et al. 2022), written down instead of learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.models.decoder.attention import AttentionLayer
from relaygr.models.decoder.decoder import Decoder

_SHARP_PAIRS = 3  # fastest rotating pairs, which tell a neighbour from the next but one
_STILL = 1.0  # radians within the longest prompt
_SCALE_BEFORE = 2.0  # of queries and keys of the layer that looks at the token before
_SCALE_MATCH = 2.0  # of the layer that compares
_WRITTEN = 0.3  # what the token before adds to a row, against the row's own embedding
_COPIED = 1.5  # what a matching token adds
_RECENT = 0.4  # what all recent tokens add


@dataclass(frozen=True, slots=True, eq=False)
class _Basis:
    """Orthonormal rows [k, D]: `common` [D] is in all tokens, `content` tells them apart."""

    common: Tensor
    content: Tensor
    before: Tensor


@torch.no_grad()
def start_from_repeating(model: Decoder, seed: int) -> None:
    """Write the heads of repeating into the first two layers; all other layers add nothing at first.

    A model without two layers of two K/V heads, or with the output apart from the embeddings, gets no such
    heads.

    Layer 1, head 1 attends to the token before and writes its content beside a row's own. Layer 2, head 1
    attends to rows whose token before equals the row's own token and copies their content, so that the head,
    which is the embedding table, expects what followed. Layer 2, head 2 copies recent tokens.
    """
    config = model.config
    for layer in model.layers:
        # What random layers add would drown what is written.
        layer.output.weight.zero_()
        layer.down.weight.zero_()
    size, dim = config.hidden_size, config.head_dim
    frequencies = config.rope.theta ** (-torch.arange(0, dim, 2) / dim)  # of each pair (i, i + d/2)
    # A pair that turns further than this within a prompt cannot compare contents at a distance.
    slow = frequencies * config.max_positions < _STILL
    width = min(2 * int(slow.sum()), (size - 1) // 2)
    if config.num_layers < 2 or config.num_kv_heads < 2 or not config.tie_embeddings or width < 2:
        return
    generator = torch.Generator().manual_seed(seed)
    rows = torch.nn.init.orthogonal_(torch.empty(size, size), generator=generator)
    basis = _Basis(rows[0], rows[1 : 1 + width], rows[1 + width : 1 + 2 * width])
    table = model.embed.weight
    # Positions are told by a part that all tokens share; in the head it shifts all scores alike.
    table.sub_((table @ basis.common)[:, None] * basis.common)
    table.add_(basis.common * table.norm(dim=1).mean())
    sharp = torch.zeros(dim // 2)
    sharp[: min(_SHARP_PAIRS, dim // 2)] = 1.0
    first, second = model.layers[0], model.layers[1]
    assert isinstance(first, AttentionLayer)
    assert isinstance(second, AttentionLayer)
    _scale(first, _SCALE_BEFORE)
    _scale(second, _SCALE_MATCH)
    content = _slowest(basis.content, dim)
    before = _slowest(basis.before, dim)
    _head(
        first, 0, _constant(sharp, torch.zeros(dim // 2), basis), _constant(sharp, frequencies, basis),
        content, before.t() * _WRITTEN,
    )  # fmt: skip
    _head(second, 0, content, before, content, content.t() * _COPIED)
    turning = frequencies * config.max_positions
    late = _constant(((turning > _STILL) & (turning < 4)).float(), torch.zeros(dim // 2), basis)
    _head(second, 1, late, late, content, content.t() * _RECENT)


def _constant(weights: Tensor, angles: Tensor, basis: _Basis) -> Tensor:
    """A map [d, D] to the same vector for every token: pairs of length `weights` turned by `angles`."""
    vector = torch.cat([weights * angles.cos(), weights * angles.sin()])
    return vector[:, None] * basis.common


def _slowest(rows: Tensor, dim: int) -> Tensor:
    """Rows [k, D] at the slowest turning pairs of a head, zero rows elsewhere, [d, D]."""
    places = torch.arange(dim).view(2, -1).flip(1).t().flatten()  # d/2 - 1, d - 1, d/2 - 2, d - 2, ...
    out = rows.new_zeros(dim, rows.shape[1])
    out[places[: len(rows)]] = rows
    return out


def _scale(layer: AttentionLayer, value: float) -> None:
    if layer.q_norm is not None and layer.k_norm is not None:
        layer.q_norm.weight.fill_(value)
        layer.k_norm.weight.fill_(value)


def _head(
    layer: AttentionLayer, kv_head: int, query: Tensor, key: Tensor, value: Tensor, output: Tensor
) -> None:
    """Set one K/V head and the query heads that read it: maps [d, D], the output [D, d] in sum."""
    config = layer.config
    dim, group = config.head_dim, config.num_heads // config.num_kv_heads
    weight = layer.qkv.weight
    for head in range(kv_head * group, (kv_head + 1) * group):
        weight[head * dim : (head + 1) * dim] = query
        layer.output.weight[:, head * dim : (head + 1) * dim] = output / group
    keys, values = config.query_size, config.query_size + config.kv_size
    weight[keys + kv_head * dim : keys + (kv_head + 1) * dim] = key
    weight[values + kv_head * dim : values + (kv_head + 1) * dim] = value
