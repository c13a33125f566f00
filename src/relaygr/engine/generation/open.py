"""A generator from its folders: the decoder, what it knows of codes and texts, its catalogue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import ConfigError, RequestError
from relaygr.engine.generation.asks import Vocabulary
from relaygr.engine.generation.generator import Generator
from relaygr.engine.tiers import NO_HOST
from relaygr.generation.catalogue.artefact import Catalogue
from relaygr.generation.catalogue.errors import LoadError
from relaygr.generation.catalogue.fit import expect_levels, expect_tokens
from relaygr.generation.catalogue.settings import CatalogueSettings
from relaygr.generation.catalogue.versions import Catalogues, Check
from relaygr.generation.columns import HeadPlan
from relaygr.generation.normalise import Normalization
from relaygr.generation.prepare import prepare
from relaygr.generation.recipe import RECIPE_FILE, Recipe, open_recipe
from relaygr.generation.select import select
from relaygr.kernels.beam_select import choose_beams
from relaygr.kernels.select import DTYPES, choose
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import open_decoder

log = logging.getLogger("relaygr.engine")

TOKENIZER_FILE = "tokenizer.json"
_SMOKE_WIDTH = 8


def open_generator(
    config: GeneratorConfig,
    *,
    kernel: str = "auto",
    host: HostConfig = NO_HOST,
    clock: Clock | None = None,
) -> Generator:
    """Open the decoder of `config.model` and the catalogue of `config.catalogue`; kernels are measured.

    The threads of the process are to be set before.

    Args:
        kernel: of `engine.kernel`.

    Raises:
        RelayError: a folder, a file in it or a setting is wrong, or the two do not fit each other.
    """
    folder = Path(config.model)
    dtype = _dtype(config, kernel)
    decoder, version = open_decoder(folder, dtype)
    prepare_decoder(decoder, config, kernel)
    vocabulary = open_vocabulary(folder)
    vocab_size = decoder.config.vocab_size
    checks: list[Check] = [expect_tokens(vocabulary.codes, vocab_size, vocabulary.token)]
    if vocabulary.codes is not None:
        checks.append(expect_levels([len(table) for table in vocabulary.codes.tables]))
    checks.append(partial(_smoke, vocabulary, decoder.config))
    catalogues = Catalogues(
        CatalogueSettings(keep_versions=config.keep_versions, min_share=config.min_share), checks=checks
    )
    catalogues.load(config.catalogue)
    generator = Generator(decoder, version, catalogues, config, host=host, clock=clock, vocabulary=vocabulary)
    log.info("generator %s with catalogue %s", version.hex(), catalogues.status().serving)
    return generator


def prepare_decoder(decoder: Decoder, config: GeneratorConfig, kernel: str = "auto") -> None:
    """Choose its attention kernel and how beams read prompts, by measurement where nothing else is said."""
    shape = decoder.config
    choice = choose_beams(shape.num_heads, shape.num_kv_heads, shape.head_dim, decoder.dtype, kernel)
    decoder.kernel, decoder.mode = choice.kernel, config.attention
    log.info("beam kernel: %s", choice.reason)


def open_vocabulary(folder: Path) -> Vocabulary:
    """What the model's folder says about codes and texts; both are optional.

    Raises:
        ConfigError: a file is there and wrong, or texts need a package that is not installed.
    """
    recipe = open_recipe(folder) if (folder / RECIPE_FILE).exists() else None
    tokenizer = _tokenizer(folder / TOKENIZER_FILE)
    if tokenizer is None:
        return Vocabulary(codes=_codes(recipe, None))
    return Vocabulary(
        codes=_codes(recipe, tokenizer),
        token=tokenizer.token_to_id,
        tokenize=partial(_tokens, tokenizer),
    )


def _dtype(config: GeneratorConfig, kernel: str) -> torch.dtype:
    return DTYPES[config.dtype] if config.dtype != "auto" else choose(kernel, "auto").dtype


def _codes(recipe: Recipe | None, tokenizer: Any) -> Any:
    if recipe is None:
        return None
    return recipe.sid_token_map.resolve(recipe.sizes, None if tokenizer is None else tokenizer.token_to_id)


def _smoke(vocabulary: Vocabulary, shape: DecoderConfig, catalogue: Catalogue) -> None:
    """Search the catalogue once, as if all tokens were equally likely; LoadError if that finds nothing."""
    index = catalogue.index
    heads = HeadPlan(vocabulary.of(catalogue), shape.vocab_size, level_heads=shape.level_heads)
    nodes, scores = np.zeros(1, np.int64), np.zeros(1)
    for level in range(1, index.levels + 1):
        pool = prepare(index, level, nodes, heads, Normalization.LEVEL)
        logits = torch.zeros(len(nodes), pool.head.width)
        beams = select(pool, scores, logits, _SMOKE_WIDTH, Normalization.LEVEL)
        nodes, scores = beams.nodes, beams.scores
    if not len(nodes):
        raise LoadError("a search finds nothing in it")


def _tokenizer(file: Path) -> Any:
    if not file.exists():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        log.warning("%s is not read: texts need the package tokenizers (extra `text`)", file)
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(str(file), f"is no tokenizer: {error}") from error


def _tokens(tokenizer: Any, text: str) -> Sequence[int]:
    try:
        found: list[int] = tokenizer.encode(text).ids
    except Exception as error:
        raise RequestError("text", f"cannot be made tokens: {error}") from error
    return found
