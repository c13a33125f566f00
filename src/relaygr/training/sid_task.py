"""What training and evaluation of a generator agree on: tokens, shape, catalogue, wanted items."""

from __future__ import annotations

import numpy as np

from relaygr.config.train_generator import TrainGeneratorConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import EvalRequest
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked
from relaygr.generation.recipe import Recipe
from relaygr.generation.sids.build import SemanticIds
from relaygr.models.decoder.config import DecoderConfig, RopeConfig
from relaygr.models.decoder.linear_config import LinearConfig, layer_kinds
from relaygr.training.catalogue import Catalogue

BEGIN_TOKEN = 0  # in front of every prompt
SPECIALS = 1
ROPE_THETA = 1e6  # most pairs hardly turn within a prompt, so that contents compare at any distance


def recipe_of(sids: SemanticIds, digest: str, max_items: int) -> Recipe:
    """Tokens and prompts of a model of these ids: one token in front, then codes, level behind level."""
    return Recipe(
        sizes=sids.sizes,
        sid_token_map=stacked(sids.sizes, SPECIALS),
        template=PromptTemplate(before=(BEGIN_TOKEN,)),
        max_prompt_tokens=1 + max_items * sids.levels,
        sids=digest,
        codebooks=sids.codebooks.digest,
    )


def decoder_config(recipe: Recipe, config: TrainGeneratorConfig) -> DecoderConfig:
    """The shape of the model; the head is the embedding table, so that what was seen can be repeated."""
    linear = linear_layers(config)
    return DecoderConfig(
        family="qwen3" if linear is None else "qwen3_next",
        vocab_size=SPECIALS + sum(recipe.sizes),
        hidden_size=config.hidden,
        mlp_size=config.mlp,
        num_layers=config.depth,
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        rope=RopeConfig(theta=ROPE_THETA),
        tie_embeddings=True,
        max_positions=recipe.max_prompt_tokens + recipe.levels,
        linear=linear,
    )


def linear_layers(config: TrainGeneratorConfig) -> LinearConfig | None:
    """Which layers are of linear attention, and their shape; None if there are none."""
    if config.arch == "attention":
        return None
    every = config.full_every if config.arch == "hybrid" else config.depth + 1
    return LinearConfig(
        layer_types=layer_kinds(config.depth, every),
        key_heads=config.linear_key_heads,
        value_heads=config.linear_value_heads,
        key_dim=config.linear_key_dim,
        value_dim=config.linear_value_dim,
        taps=config.conv_taps,
    )


def served_index(sids: SemanticIds, catalogue: Catalogue) -> CatalogueIndex:
    """The items of the training part as a catalogue, the most frequent first within an id.

    Raises:
        ConfigError: the ids lack an item of the training part.
    """
    codes = sids.codes_of(catalogue.items)
    missing = catalogue.items[codes[:, 0] < 0]
    if missing.size:
        raise ConfigError(
            "sids", f"no codes for {missing.size} items of the training part, the first {int(missing[0])}"
        )
    return build_index(
        Rows(item_ids=catalogue.items, codes=codes, priority=catalogue.counts), sids.sizes
    ).index


def wanted_items(events: Events, request: EvalRequest, catalogue: Catalogue) -> Int64s:
    """Distinct items of a request that the catalogue of the training part knows."""
    start, stop = request.positives
    items = np.unique(events.history(request.user)[0][start:stop])
    return items[catalogue.knows(items)]
