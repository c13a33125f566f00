"""The published forward passes, on the published names and layouts, a row or a padded batch at a time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.models.ranker import RowInput

State = dict[str, Tensor]


def _linear(p: State, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _ln(p: State, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps)


def _swish(p: State, name: str, x: Tensor) -> Tensor:
    hidden = _linear(p, f"{name}.0", x)
    return _linear(p, f"{name}.2", hidden * torch.sigmoid(_ln(p, f"{name}.1", hidden)))


def _stack(p: State, name: str, x: Tensor) -> Tensor:
    return _ln(p, f"{name}.3", _swish(p, name, x))


def _target_mask(length: int, targets: int) -> Tensor:
    """[n, n]: causal, and targets see the history and themselves."""
    place = torch.arange(length)
    ids = place.clamp(max=length - targets)
    return ((ids[:, None] > ids) | torch.eye(length, dtype=torch.bool)).double()


def meta(
    p: State,
    rows: list[RowInput],
    heads: int,
    slots: list[str],
    least: list[int],
    window: int = 0,
    alpha: float | None = None,
    items: str = "item",
    time_limit: int | None = None,
) -> list[Tensor]:
    """A padded batch of Meta production: attention divided by the longest row of the batch."""
    t = "_hstu_transducer."
    size = p[f"{t}_positional_encoder._position_embeddings_weight"].shape[1]
    lengths = [len(r.contextual) + len(r.items) + len(r.candidates) for r in rows]
    longest = max(lengths)
    x = torch.zeros(len(rows), longest, size, dtype=torch.float64)
    mask = torch.zeros(len(rows), longest, longest, dtype=torch.float64)
    for b, row in enumerate(rows):
        n = lengths[b]
        x[b, :n] = _meta_tokens(p, row, slots, least, items, time_limit)
        inside = _target_mask(n, len(row.candidates))
        if window:
            ids = torch.arange(n).clamp(max=n - len(row.candidates))
            inside = inside * (ids[:, None] - ids <= window)
        mask[b, :n, :n] = inside
    layer = 0
    while f"{t}_stu_module._stu_layers.{layer}._uvqk_weight" in p:
        x = _meta_layer(p, f"{t}_stu_module._stu_layers.{layer}.", x, mask, heads, longest, alpha)
        layer += 1
    return [
        _meta_head(p, x[b, n - len(r.candidates) : n], r, items)
        for b, (r, n) in enumerate(zip(rows, lengths, strict=True))
    ]


def _meta_tokens(
    p: State, row: RowInput, slots: list[str], least: list[int], items: str, time_limit: int | None
) -> Tensor:
    t, c = "_hstu_transducer._input_preprocessor.", len(slots)
    table = p[f"_embedding_collection.embeddings.{items}.weight"]
    targets = len(row.candidates)
    x = _stack(p, f"{t}_content_embedding_mlp", table[torch.cat([row.items, row.candidates])])
    if f"{t}_action_encoder._action_embedding_table" in p:
        kinds = p[f"{t}_action_encoder._combined_action_weights"]
        vectors = p[f"{t}_action_encoder._action_embedding_table"]
        on = (row.actions[:, None] & kinds) > 0
        seen = (on[..., None] * vectors).reshape(len(row.actions), vectors.numel())
        target = p[f"{t}_action_encoder._target_action_embedding_table"].expand(targets, -1)
        x = x + _stack(p, f"{t}_action_embedding_mlp", torch.cat([seen, target]))
    for s in range(c):
        vector = p[f"_embedding_collection.embeddings.{slots[s]}.weight"][row.contextual[s]]
        if len(row.items) < least[s]:
            vector = torch.zeros_like(vector)
        token = vector @ p[f"{t}_batched_contextual_linear_weights"][s]
        token = token + p[f"{t}_batched_contextual_linear_bias"][s]
        x = torch.cat([x[:s], token[None], x[s:]])
    place, age = (
        p[f"_hstu_transducer._positional_encoder.{name}_embeddings_weight"]
        for name in ("_position", "_timestamp")
    )
    n = c + len(row.items) + targets
    end = n - targets
    times = [0] * c + row.timestamps.tolist() + [int(row.query_time)] * targets
    out = []
    for i in range(n):
        where = i if i < c else end - min(i, end) + c
        bucket = int(math.sqrt(max(times[-1] - times[i], 1e-6) / 60))
        limit = len(age) - 1 if time_limit is None else time_limit
        out.append(math.sqrt(x.shape[1]) * x[i] + place[min(where, len(place) - 1)] + age[min(bucket, limit)])
    return torch.stack(out)


def _meta_layer(
    p: State, name: str, x: Tensor, mask: Tensor, heads: int, longest: int, alpha: float | None
) -> Tensor:
    b, n, _ = x.shape
    values = p[f"{name}_output_weight"].shape[0] // 3
    keys = p[f"{name}_uvqk_weight"].shape[1] // 2 - values
    normed = F.layer_norm(x, x.shape[-1:], p[f"{name}_input_norm_weight"], p[f"{name}_input_norm_bias"], 1e-6)
    mixed = normed @ p[f"{name}_uvqk_weight"] + p[f"{name}_uvqk_beta"]
    u, v, q, k = mixed.split([values, values, keys, keys], dim=-1)
    q, k, v = (z.reshape(b, n, heads, -1).transpose(1, 2) for z in (q, k, v))
    scores = (alpha or q.shape[-1] ** -0.5) * q @ k.transpose(-1, -2)
    o = (F.silu(scores) / longest * mask[:, None]) @ v
    o = o.transpose(1, 2)  # [B, n, H, E]
    scale, shift = p[f"{name}_output_norm_weight"], p[f"{name}_output_norm_bias"]
    flat = o.reshape(b, n, values)
    if len(scale) == heads and heads != values:
        z = F.layer_norm(o, o.shape[-1:], eps=1e-6) * scale[:, None] + shift[:, None]
        z = z.reshape(b, n, values)
    else:
        z = F.layer_norm(flat, (values,), scale, shift, 1e-6)
    u = F.silu(u)
    return x + torch.cat([u, flat, u * z], dim=-1) @ p[f"{name}_output_weight"]


def _meta_head(p: State, rows: Tensor, row: RowInput, items: str) -> Tensor:
    t = "_hstu_transducer._output_postprocessor."
    if f"{t}_time_feature_combiner.weight" in p:
        parts = []
        for unit, period in ((3600, 24), (86400, 7)):
            whole = torch.div(torch.tensor(float(int(row.query_time))), unit, rounding_mode="floor")
            angle = float(torch.remainder(whole, period)) / period * 2 * 3.14
            parts += [math.cos(angle), math.sin(angle)]
        clock = torch.tensor(parts, dtype=torch.float64).expand(len(rows), -1)
        rows = _linear(p, f"{t}_time_feature_combiner", torch.cat([rows, clock], dim=-1))
    if f"{t}_layer_norm.weight" in p:
        rows = _ln(p, f"{t}_layer_norm", rows)
    else:
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    item = _stack(
        p, "_item_embedding_mlp", p[f"_embedding_collection.embeddings.{items}.weight"][row.candidates]
    )
    return _swish(p, "_multitask_module._prediction_module", rows * item)


def research(
    p: State, row: RowInput, heads: int, value_dim: int, padded: int, activated: bool = True
) -> Tensor:
    """One user of Meta research, padded to `padded` events; cosine with each candidate, [m, 1]."""
    n, table = len(row.items), p["_embedding_module._item_emb.weight"]
    size = table.shape[1]
    places = p["_input_features_preproc._pos_emb.weight"]
    x = torch.zeros(padded, size, dtype=torch.float64)
    x[:n] = math.sqrt(size) * table[row.items] + places[:n]
    times = torch.zeros(padded + 1, dtype=torch.int64)
    times[:n] = row.timestamps
    times[n] = int(row.query_time)
    causal = torch.tril(torch.ones(padded, padded, dtype=torch.float64))
    layer = 0
    while f"_hstu._attention_layers.{layer}._uvqk" in p:
        name = f"_hstu._attention_layers.{layer}."
        values = heads * value_dim
        keys = p[f"{name}_uvqk"].shape[1] // 2 - values
        mixed = F.layer_norm(x, (size,), eps=1e-6) @ p[f"{name}_uvqk"]
        mixed = F.silu(mixed) if activated else mixed
        u, v, q, k = mixed.split([values, values, keys, keys], dim=-1)
        q, k, v = (z.reshape(padded, heads, -1).transpose(0, 1) for z in (q, k, v))
        scores = q @ k.transpose(-1, -2) + _research_bias(p, f"{name}_rel_attn_bias.", times, padded)
        o = (F.silu(scores) / padded * causal) @ v
        z = F.layer_norm(o.transpose(0, 1).reshape(padded, values), (values,), eps=1e-6)
        gated = u * z
        if p[f"{name}_o.weight"].shape[1] == 3 * values:
            gated = torch.cat([u, z, gated], dim=-1)
        x = x + gated @ p[f"{name}_o.weight"].T + p[f"{name}_o.bias"]
        x[n:] = 0
        layer += 1
    vector = x[n - 1] / x[n - 1].norm().clamp(min=1e-6)
    items = table[row.candidates]
    return (items / items.norm(dim=-1, keepdim=True).clamp(min=1e-6) @ vector)[:, None]


def _research_bias(p: State, name: str, times: Tensor, padded: int) -> Tensor:
    bias = torch.zeros(padded, padded, dtype=torch.float64)
    timed = f"{name}_ts_w" in p
    places = p[f"{name}_pos_w" if timed else f"{name}_w"]
    for i in range(padded):
        for j in range(padded):
            bias[i, j] = places[padded - 1 + j - i]
            if timed:
                gap = max(abs(int(times[i + 1]) - int(times[j])), 1)
                bias[i, j] += p[f"{name}_ts_w"][min(max(int(math.log(gap) / 0.301), 0), 128)]
    return bias


def nvidia(
    p: State,
    row: RowInput,
    heads: int,
    divisor: int,
    slots: list[str],
    two_way: bool = False,
    residual: bool = True,
    per_head: bool = False,
) -> Tensor:
    """One user of NVIDIA: interleaved items and actions, candidates behind them; logits [m, tasks]."""
    e, b = "_embedding_collection.embeddings.", "_hstu_block._preprocessor."
    tokens = []
    for item, action in zip(row.items.tolist(), row.actions.tolist(), strict=True):
        tokens += [p[f"{e}item.weight"][item], p[f"{e}action.weight"][action]]
    x = _network(p, f"{b}_item_mlp.", torch.stack([*tokens, *p[f"{e}item.weight"][row.candidates]]))
    if slots:
        profile = torch.stack([p[f"{e}{s}.weight"][v] for s, v in zip(slots, row.contextual, strict=True)])
        x = torch.cat([_network(p, f"{b}_contextual_mlp.", profile), x])
    n, targets, c = len(x), len(row.candidates), len(slots)
    places = p.get(f"{b}_positional_encoder._position_embeddings_weight")
    if places is not None:
        end = min(n - targets, len(places) - 1)
        x = math.sqrt(x.shape[1]) * x + places[torch.arange(n).clamp(max=end)]
    mask = _target_mask(n, targets)
    if two_way:
        mask[:c, : n - targets] = 1
    layer = 0
    while any(name.startswith(f"_hstu_block._attention_layers.{layer}.") for name in p):
        x = _nvidia_layer(
            p, f"_hstu_block._attention_layers.{layer}.", x, mask, heads, divisor, residual, per_head
        )
        layer += 1
    rows = x[n - targets :]
    return _network(p, "_mlp.", rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-6))


def _network(p: State, name: str, x: Tensor) -> Tensor:
    """Either published kind; the identity where there is none."""
    if f"{name}_mlp._mlp.0._linear.weight" in p:
        i = 0
        while f"{name}_mlp._mlp.{i}._linear.weight" in p:
            x = F.relu(_linear(p, f"{name}_mlp._mlp.{i}._linear", x))
            i += 1
        return x
    i = 0
    while f"{name}_mlp.{i}.weight" in p:
        x = _linear(p, f"{name}_mlp.{i}", F.relu(x) if i else x)
        i += 2
    return x


def _nvidia_layer(
    p: State, name: str, x: Tensor, mask: Tensor, heads: int, divisor: int, residual: bool, per_head: bool
) -> Tensor:
    n, size = x.shape
    scale, shift = (p.get(f"{name}_input_layernorm_{kind}") for kind in ("weight", "bias"))
    normed = F.layer_norm(x, (size,), scale, shift, 1e-5)
    if f"{name}_linear_uvqk_weight" in p:
        mixed = normed @ p[f"{name}_linear_uvqk_weight"] + p.get(f"{name}_linear_uvqk_bias", torch.zeros(()))
        out = p[f"{name}_linear_proj_weight"]
    else:
        mixed = normed @ p[f"{name}_linear_uvqk.weight"].T + p[f"{name}_linear_uvqk.bias"]
        out = p[f"{name}_linear_proj.weight"].T
    mixed = F.silu(mixed)
    if per_head:  # u, v, q and k of a head side by side
        u, v, q, k = mixed.reshape(n, heads, 4, -1).permute(2, 1, 0, 3)
        u = u.transpose(0, 1).reshape(n, -1)
    else:
        u, v, q, k = mixed.chunk(4, dim=-1)
        q, k, v = (z.reshape(n, heads, -1).transpose(0, 1) for z in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    o = ((F.silu(scores) / divisor * mask) @ v).transpose(0, 1).reshape(n, -1)
    norm = "_output_ln_dropout_mul." if f"{name}_output_ln_dropout_mul.weight" in p else "_output_layernorm_"
    z = F.layer_norm(o, o.shape[-1:], p[f"{name}{norm}weight"], p[f"{name}{norm}bias"], 1e-5)
    y = (u * z) @ out
    return x + y if residual else y
