"""A generator from its folders: weights, kernel, tokenizer, catalogue; every catalogue is tried first."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import ConfigError, RelayError, RequestError
from relaygr.core.ids import Fingerprint
from relaygr.core.units import MIB
from relaygr.engine.generation.asks import Vocabulary
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.seats import Generated
from relaygr.engine.tiers import NO_HOST
from relaygr.generation.catalogue.artefact import Catalogue
from relaygr.generation.catalogue.errors import LoadError
from relaygr.generation.catalogue.fit import expect_codebooks, expect_levels, expect_template, expect_tokens
from relaygr.generation.catalogue.settings import CatalogueSettings
from relaygr.generation.catalogue.versions import Catalogues, Check
from relaygr.generation.recipe import RECIPE_FILE, open_recipe
from relaygr.generation.requests import GenerateRequest
from relaygr.kernels.beam_select import choose_beams
from relaygr.kernels.recurrent_select import choose_recurrent
from relaygr.kernels.select import DTYPES, choose
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import open_decoder

log = logging.getLogger("relaygr.engine")

TOKENIZER_FILE = "tokenizer.json"
_TRIAL_WIDTH = 2


def open_generator(
    config: GeneratorConfig,
    host: HostConfig = NO_HOST,
    clock: Clock | None = None,
    kernel: str = "auto",
) -> Generator:
    """Open `config.model` and `config.catalogue`; kernel and dtype are chosen by measurement, and logged.

    Every catalogue that is loaded later is tried as well: its tokens must be the model's, and a small
    decode over it must give an answer, before any request sees it. The threads of the process are to be set
    before.

    Args:
        kernel: of `engine.kernel`.

    Raises:
        ConfigError: a folder or a setting is wrong.
        RelayError: the catalogue cannot be served.
    """
    dtype = DTYPES[config.dtype] if config.dtype != "auto" else choose(kernel, "auto").dtype
    decoder, model_fp = open_decoder(Path(config.model), dtype)
    choose_kernels(decoder, config, kernel)
    return make_generator(
        decoder, model_fp, config, host, clock, open_vocabulary(Path(config.model), decoder.config.vocab_size)
    )


def choose_kernels(decoder: Decoder, config: GeneratorConfig, kernel: str = "auto") -> None:
    """Its attention kernel and how beams read prompts, by measurement where nothing else is said."""
    shape = decoder.config
    choice = choose_beams(shape.num_heads, shape.num_kv_heads, shape.head_dim, decoder.dtype, kernel)
    decoder.kernel, decoder.mode = choice.kernel, config.attention
    log.info("beam kernel: %s", choice.reason)
    if shape.linear is not None:
        decoder.recurrent = choose_recurrent(decoder.device).kernel


def make_generator(
    decoder: Decoder,
    model_fp: Fingerprint,
    config: GeneratorConfig,
    host: HostConfig = NO_HOST,
    clock: Clock | None = None,
    vocabulary: Vocabulary | None = None,
) -> Generator:
    """`open_generator` with a decoder that is there already."""
    words = vocabulary or Vocabulary()
    made: list[Generator] = []

    def answers(catalogue: Catalogue) -> None:
        try_catalogue(made[0], catalogue, words)

    settings = CatalogueSettings(keep_versions=config.keep_versions, min_share=config.min_share)
    vocab_size = decoder.config.vocab_size
    checks: list[Check] = [
        expect_tokens(words.codes, vocab_size, words.token),
        expect_template(words.template_of, vocab_size),
        expect_codebooks(words.codebooks),
    ]
    if words.codes is not None:
        checks.append(expect_levels([len(table) for table in words.codes.tables]))
    catalogues = Catalogues(settings, checks=(*checks, answers))
    made.append(Generator(decoder, model_fp, catalogues, config, host=host, clock=clock, vocabulary=words))
    if config.catalogue:
        try:
            catalogues.load(config.catalogue)
        except BaseException:
            made[0].close()
            raise
    return made[0]


def try_catalogue(generator: Generator, catalogue: Catalogue, vocabulary: Vocabulary) -> None:
    """A small decode over a catalogue that is not served yet, in memory of its own.

    Raises:
        LoadError: it gives no answer.
    """
    codes = catalogue.index.sids(catalogue.index.leaves_of(catalogue.index.order[:1]))
    prompt = vocabulary.template_of(catalogue).tokens(codes, vocabulary.of(catalogue)).tolist()
    layout = generator.layout
    pages, state = layout.pages_for(len(prompt)) * layout.page_bytes, generator.memory.state_bytes
    device = max(pages, MIB) + state
    small = msgspec.structs.replace(
        generator.config,
        device_bytes=device,
        state_share=state / device,
        beam_bytes=max(catalogue.index.levels * _TRIAL_WIDTH * generator.memory.slot_bytes, MIB),
        host_bytes=0,
    )
    catalogues = Catalogues()
    catalogues.install(catalogue)
    trial = Generator(
        generator.decoder, generator.model_fp, catalogues, small, vocabulary=vocabulary, overlap=False
    )
    width = min(_TRIAL_WIDTH, small.max_beam_width, small.max_results)
    try:
        request = GenerateRequest(request_id="trial", token_ids=prompt, beam_width=width)
        outcome = _answer(generator, trial, Asked(request=request))
    except RelayError as error:
        raise LoadError(f"a first request failed: {error}") from error
    if not isinstance(outcome, Generated):
        raise LoadError(f"a first request failed: {outcome}")
    if not outcome.result.found.rows:
        raise LoadError("a first request found nothing")


def _answer(generator: Generator, trial: Generator, asked: Asked) -> object:
    """What one request gets, a step at a time, so that requests of others go on in between."""
    ask = trial.check(asked)
    try:
        seat = trial.seat(ask)
        if seat is None:
            raise LoadError("there is no memory for a first request")
        try:
            while seat.outcome is None:
                with generator.alone():
                    (trial.round if seat.prefilled else trial.prefill)([seat])
            return seat.outcome
        finally:
            seat.close()
    finally:
        ask.close()


def open_vocabulary(folder: Path, vocab_size: int) -> Vocabulary:
    """What a model's folder says about codes (`generation.json`) and texts (`tokenizer.json`); both may lack.

    Without the extra `text` there are no texts.

    Raises:
        ConfigError: a file is there and wrong.
    """
    tokenizer = _tokenizer(folder / TOKENIZER_FILE)
    token = None if tokenizer is None else tokenizer.token_to_id
    tokenize = None if tokenizer is None else partial(_tokens, tokenizer)
    if not (folder / RECIPE_FILE).exists():
        return Vocabulary(None, token, tokenize)
    recipe = open_recipe(folder)
    codes = recipe.sid_token_map.resolve(recipe.sizes, token, vocab_size)
    longest = recipe.max_prompt_tokens
    return Vocabulary(codes, token, tokenize, recipe.template, longest, recipe.codebooks)


def _tokenizer(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        log.warning("%s is not used: the extra `text` is not installed", path)
        return None
    try:
        return Tokenizer.from_file(str(path))
    # The library raises bare exceptions.
    except Exception as error:
        raise ConfigError(str(path), f"is not a tokenizer: {error}") from error


def _tokens(tokenizer: Any, text: str) -> list[int]:
    try:
        return list(tokenizer.encode(text).ids)
    # As above.
    except Exception as error:
        raise RequestError("text", f"cannot be made tokens: {error}") from error
