"""FLOPs and K/V bytes of a configuration; multiply-add counts as two."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.models.presets import AnyConfig
from relaygr.models.transformer import TransformerConfig


@dataclass(frozen=True, slots=True)
class Cost:
    """Multiply-add = 2 FLOP; layers only, without embeddings and heads.

    Attributes:
        dense_flops_per_token: projections and output, all layers.
        attention_flops_per_pair: one token looking at one key, all layers.
        kv_projection_flops_per_token: K and V of the last layer, all that a prefetch computes there.
        overtakes_at: keys at which one token's attention costs as much as its matrices; a causal prefill
            has half as many keys on average and gets there at twice this length.
        kv_bytes_per_token: all layers, K and V.
    """

    dense_flops_per_token: int
    attention_flops_per_pair: int
    kv_projection_flops_per_token: int
    layers: int
    overtakes_at: float
    kv_bytes_per_token: int

    def prefill_flops(self, tokens: int, cached: int = 0) -> int:
        """Encode `tokens` new tokens behind `cached` ones; n causal tokens alone have n (n + 1) / 2 pairs."""
        pairs = tokens * cached + tokens * (tokens + 1) // 2
        return tokens * self.dense_flops_per_token + pairs * self.attention_flops_per_pair

    def prefetch_flops(self, tokens: int, cached: int = 0) -> int:
        """What is really computed for `prefill_flops`: of the last layer only K and V of each token."""
        above = self.prefill_flops(tokens, cached) * (self.layers - 1) // self.layers
        return above + tokens * self.kv_projection_flops_per_token

    def score_flops(self, candidates: int, history: int) -> int:
        """Score candidates against a cached history; each sees it and itself."""
        pairs = candidates * (history + 1)
        return candidates * self.dense_flops_per_token + pairs * self.attention_flops_per_pair


def layer_cost(
    hidden_size: int, layers: int, heads: int, qk_dim: int, v_dim: int, element_bytes: int, output_parts: int
) -> Cost:
    """Cost of a stack of equal HSTU layers; `output_parts` is 3 for `u_o_y`, 1 for `gate`."""
    projection = 4 * hidden_size * heads * (qk_dim + v_dim)
    output = 2 * heads * v_dim * hidden_size * output_parts
    pair = 2 * heads * (qk_dim + v_dim)
    return Cost(
        dense_flops_per_token=layers * (projection + output),
        attention_flops_per_pair=layers * pair,
        kv_projection_flops_per_token=projection // 2,
        layers=layers,
        overtakes_at=(projection + output) / pair,
        kv_bytes_per_token=layers * heads * (qk_dim + v_dim) * element_bytes,
    )


def transformer_cost(config: TransformerConfig, element_bytes: int) -> Cost:
    """Cost of a stack of transformer layers: projections, output and three matrices of the network."""
    heads, size = config.num_heads, config.hidden_size
    keys_and_values = 2 * size * heads * (config.qk_dim + config.v_dim)
    dense = keys_and_values + 2 * size * heads * (config.qk_dim + config.v_dim) + 6 * size * config.mlp_size
    pair = 2 * heads * (config.qk_dim + config.v_dim)
    return Cost(
        dense_flops_per_token=config.num_layers * dense,
        attention_flops_per_pair=config.num_layers * pair,
        kv_projection_flops_per_token=keys_and_values,
        layers=config.num_layers,
        overtakes_at=dense / pair,
        kv_bytes_per_token=config.num_layers * heads * (config.qk_dim + config.v_dim) * element_bytes,
    )


def cost(config: AnyConfig, element_bytes: int) -> Cost:
    """Cost of a ranker whose K/V elements take `element_bytes`."""
    if isinstance(config, TransformerConfig):
        return transformer_cost(config, element_bytes)
    return layer_cost(
        config.hidden_size,
        config.num_layers,
        config.num_heads,
        config.qk_dim,
        config.v_dim,
        element_bytes,
        config.layer.output_parts,
    )
