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
from relaygr.models.decoder.delta import DeltaLayer
from relaygr.training.sid_initial_delta import remember_before, repeat

_SHARP_PAIRS = 3  # fastest rotating pairs, which tell a neighbour from the next but one
_STILL = 1.0  # radians within the longest prompt
_SCALE_BEFORE = 2.0  # of queries and keys of the layer that looks at the token before
_SCALE_MATCH = 2.0  # of the layer that compares
_WRITTEN = 0.3  # what the token before adds to a row, against the row's own embedding
_COPIED = 1.5  # what a matching token adds
_RECENT = 0.4  # what all recent tokens add


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Orthonormal rows [k, D]: `common` [D] is in all tokens, `content` tells them apart."""

    common: Tensor
    content: Tensor
    before: Tensor


@torch.no_grad()
def start_from_repeating(model: Decoder, seed: int) -> None:
    """Write the heads of repeating into the first layers; all other layers add nothing at first.

    The first layer writes the content of the token before beside a row's own. The next full-attention layer
    attends to rows whose token before equals the row's own token and copies their content, so that the head,
    which is the embedding table, expects what followed; another of its heads copies recent tokens. In a model
    of linear layers only, the first one does all of it: see `sid_initial_delta`.

    A model whose shape has no room for that, or with the output apart from the embeddings, gets no such
    heads.
    """
    config = model.config
    for layer in model.layers:
        # What random layers add would drown what is written.
        layer.output.weight.zero_()
        layer.down.weight.zero_()
    first, finder = model.layers[0], _finder(model)
    size, dim = config.hidden_size, config.head_dim
    frequencies = config.rope.theta ** (-torch.arange(0, dim, 2) / dim)  # of each pair (i, i + d/2)
    # A pair that turns further than this within a prompt cannot compare contents at a distance.
    slow = frequencies * config.max_positions < _STILL
    width = min(2 * int(slow.sum()) if finder is not None else size, (size - 1) // 2)
    if not config.tie_embeddings or width < 2 or not (finder or isinstance(first, DeltaLayer)):
        return
    generator = torch.Generator().manual_seed(seed)
    rows = torch.nn.init.orthogonal_(torch.empty(size, size), generator=generator)
    table = model.embed.weight
    # Positions are told by a part that all tokens share; in the head it shifts all scores alike.
    table.sub_((table @ rows[0])[:, None] * rows[0])
    table.add_(rows[0] * table.norm(dim=1).mean())
    if finder is None:
        assert isinstance(first, DeltaLayer)
        repeat(first, rows[0], rows[1:])
        return
    basis = Basis(rows[0], rows[1 : 1 + width], rows[1 + width : 1 + 2 * width])
    sharp = torch.zeros(dim // 2)
    sharp[: min(_SHARP_PAIRS, dim // 2)] = 1.0
    content = _slowest(basis.content, dim)
    before = _slowest(basis.before, dim)
    if isinstance(first, AttentionLayer):
        _scale(first, _SCALE_BEFORE)
        _head(
            first, 0, _constant(sharp, torch.zeros(dim // 2), basis), _constant(sharp, frequencies, basis),
            content, before.t() * _WRITTEN,
        )  # fmt: skip
    elif isinstance(first, DeltaLayer):
        remember_before(first, basis.common, basis.content, basis.before.t() * _WRITTEN)
    _scale(finder, _SCALE_MATCH)
    _head(finder, 0, content, before, content, content.t() * _COPIED)
    turning = frequencies * config.max_positions
    late = _constant(((turning > _STILL) & (turning < 4)).float(), torch.zeros(dim // 2), basis)
    _head(finder, 1, late, late, content, content.t() * _RECENT)


def _finder(model: Decoder) -> AttentionLayer | None:
    """The layer that will look for rows; None if there is none behind the first, or it has too few heads."""
    config = model.config
    if config.num_kv_heads < 2 or config.rotary_dim != config.head_dim:
        return None
    for layer in model.layers[1:]:
        if isinstance(layer, AttentionLayer):
            return layer
    return None


def _constant(weights: Tensor, angles: Tensor, basis: Basis) -> Tensor:
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
    for norm in (layer.q_norm, layer.k_norm):
        if norm is not None:
            norm.weight.fill_(value - 1 + norm.neutral)  # the weight of that scale in either convention


def _head(
    layer: AttentionLayer, kv_head: int, query: Tensor, key: Tensor, value: Tensor, output: Tensor
) -> None:
    """Set one K/V head and the query heads that read it: maps [d, D], the output [D, d] in sum."""
    config = layer.config
    dim, group = config.head_dim, config.num_heads // config.num_kv_heads
    weight, parts = layer.qkv.weight, config.query_rows // config.query_size
    for head in range(kv_head * group, (kv_head + 1) * group):
        at = head * parts * dim  # a gated model's gate follows each head's query
        weight[at : at + dim] = query
        weight[at + dim : at + parts * dim] = 0
        # A gate that nothing moves is a half.
        layer.output.weight[:, head * dim : (head + 1) * dim] = output * parts / group
    keys, values = config.query_rows, config.query_rows + config.kv_size
    weight[keys + kv_head * dim : keys + (kv_head + 1) * dim] = key
    weight[values + kv_head * dim : values + (kv_head + 1) * dim] = value
