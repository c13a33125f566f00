"""Where each published tensor lives in our fused matrices; one table for reading and writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relaygr.models.decoder.config import DecoderConfig

LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Part:
    """A published tensor: rows [start, start + shape[0]) of one of our parameters.

    Attributes:
        name: as published.
        parameter: as `Decoder.named_parameters` calls it.
        start: first row there.
        shape: of the published tensor.
    """

    name: str
    parameter: str
    start: int
    shape: tuple[int, ...]


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
    size, head, mlp = config.hidden_size, config.head_dim, config.mlp_size
    queries, keys = config.query_size, config.kv_size
    yield Part(f"{theirs}input_layernorm.weight", f"{ours}attention_norm.weight", 0, (size,))
    starts = {"q": (0, queries), "k": (queries, keys), "v": (queries + keys, keys)}
    for which, (start, rows) in starts.items():
        name = f"{theirs}self_attn.{which}_proj."
        yield Part(f"{name}weight", f"{ours}qkv.weight", start, (rows, size))
        if config.attention_bias:
            yield Part(f"{name}bias", f"{ours}qkv.bias", start, (rows,))
    if config.qk_norm:
        yield Part(f"{theirs}self_attn.q_norm.weight", f"{ours}q_norm.weight", 0, (head,))
        yield Part(f"{theirs}self_attn.k_norm.weight", f"{ours}k_norm.weight", 0, (head,))
    yield Part(f"{theirs}self_attn.o_proj.weight", f"{ours}output.weight", 0, (size, queries))
    if config.output_bias:
        yield Part(f"{theirs}self_attn.o_proj.bias", f"{ours}output.bias", 0, (size,))
    yield Part(f"{theirs}post_attention_layernorm.weight", f"{ours}mlp_norm.weight", 0, (size,))
    yield Part(f"{theirs}mlp.gate_proj.weight", f"{ours}gate_up.weight", 0, (mlp, size))
    yield Part(f"{theirs}mlp.up_proj.weight", f"{ours}gate_up.weight", mlp, (mlp, size))
    yield Part(f"{theirs}mlp.down_proj.weight", f"{ours}down.weight", 0, (size, mlp))
