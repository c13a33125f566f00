"""Where each published tensor lives in our fused matrices; one table for reading and writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.linear_config import LinearConfig

LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A published tensor: rows [start, start + shape[0]) of one of our parameters, or the named ones.

    Attributes:
        name: as published.
        parameter: as `Decoder.named_parameters` calls it.
        start: first row there.
        shape: of the published tensor.
        rows: int64 [shape[0]], our row of each published one, if the two orders differ.
    """

    name: str
    parameter: str
    start: int
    shape: tuple[int, ...]
    rows: Tensor | None = None

    def read(self, parameter: Tensor) -> Tensor:
        """The published tensor, out of ours; it may be a view."""
        if self.rows is not None:
            return parameter.index_select(0, self.rows)
        return parameter[self.start : self.start + self.shape[0]].reshape(self.shape)

    def write(self, parameter: Tensor, published: Tensor) -> None:
        """Set our rows, in the dtype of our parameter."""
        if self.rows is not None:
            parameter.index_copy_(0, self.rows, published.to(parameter.dtype))
            return
        place = parameter[self.start : self.start + self.shape[0]]
        place.copy_(published.reshape(place.shape))


def parts(config: DecoderConfig) -> Iterator[Part]:
    """Every tensor that a checkpoint of this shape holds, in the order of the layers."""
    vocabulary = (config.vocab_size, config.hidden_size)
    yield Part("model.embed_tokens.weight", "embed.weight", 0, vocabulary)
    for layer in range(config.num_layers):
        yield from _layer(config, layer)
    yield Part("model.norm.weight", "norm.weight", 0, (config.hidden_size,))
    if not config.tie_embeddings:
        yield Part(LM_HEAD, "head.weight", 0, vocabulary)


def _layer(config: DecoderConfig, layer: int) -> Iterator[Part]:
    theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
    size, mlp = config.hidden_size, config.mlp_size
    yield Part(f"{theirs}input_layernorm.weight", f"{ours}attention_norm.weight", 0, (size,))
    if config.linear is not None and config.layer_types[layer] == "linear_attention":
        yield from _linear(config.linear, size, f"{theirs}linear_attn.", ours)
    else:
        yield from _attention(config, f"{theirs}self_attn.", ours)
    yield Part(f"{theirs}post_attention_layernorm.weight", f"{ours}mlp_norm.weight", 0, (size,))
    yield Part(f"{theirs}mlp.gate_proj.weight", f"{ours}gate_up.weight", 0, (mlp, size))
    yield Part(f"{theirs}mlp.up_proj.weight", f"{ours}gate_up.weight", mlp, (mlp, size))
    yield Part(f"{theirs}mlp.down_proj.weight", f"{ours}down.weight", 0, (size, mlp))


def _attention(config: DecoderConfig, theirs: str, ours: str) -> Iterator[Part]:
    size, head = config.hidden_size, config.head_dim
    queries, keys = config.query_rows, config.kv_size
    starts = {"q": (0, queries), "k": (queries, keys), "v": (queries + keys, keys)}
    for which, (start, rows) in starts.items():
        yield Part(f"{theirs}{which}_proj.weight", f"{ours}qkv.weight", start, (rows, size))
        if config.attention_bias:
            yield Part(f"{theirs}{which}_proj.bias", f"{ours}qkv.bias", start, (rows,))
    if config.qk_norm:
        yield Part(f"{theirs}q_norm.weight", f"{ours}q_norm.weight", 0, (head,))
        yield Part(f"{theirs}k_norm.weight", f"{ours}k_norm.weight", 0, (head,))
    yield Part(f"{theirs}o_proj.weight", f"{ours}output.weight", 0, (size, config.query_size))
    if config.output_bias:
        yield Part(f"{theirs}o_proj.bias", f"{ours}output.bias", 0, (size,))


def _linear(linear: LinearConfig, size: int, theirs: str, ours: str) -> Iterator[Part]:
    """Published input projections are grouped by key head; ours has each kind of output in one piece."""
    keys, values, heads = linear.key_size, linear.value_size, linear.value_heads
    with torch.device("cpu"):
        q = torch.arange(keys).view(linear.key_heads, -1)
        v = 2 * keys + torch.arange(values).view(linear.key_heads, -1)
        b = linear.channels + values + torch.arange(heads).view(linear.key_heads, -1)
        qkvz = torch.cat((q, keys + q, v, values + v), dim=1).flatten()
        ba = torch.cat((b, heads + b), dim=1).flatten()
    for name, rows in (("in_proj_qkvz", qkvz), ("in_proj_ba", ba)):
        yield Part(f"{theirs}{name}.weight", f"{ours}inputs.weight", 0, (len(rows), size), rows)
    taps = (linear.channels, 1, linear.taps)
    yield Part(f"{theirs}conv1d.weight", f"{ours}convolution.weight", 0, taps)
    yield Part(f"{theirs}A_log", f"{ours}decay.log_rate", 0, (heads,))
    yield Part(f"{theirs}dt_bias", f"{ours}decay.offset", 0, (heads,))
    yield Part(f"{theirs}norm.weight", f"{ours}state_norm.weight", 0, (linear.value_dim,))
    yield Part(f"{theirs}out_proj.weight", f"{ours}output.weight", 0, (size, values))
