"""A generator from its folders: weights, kernel, tokenizer, catalogue; every catalogue is tried first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import ConfigError, RelayError
from relaygr.core.ids import Fingerprint
from relaygr.core.units import MIB
from relaygr.engine.generation.asks import Vocabulary
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.seats import Generated
from relaygr.engine.tiers import NO_HOST
from relaygr.generation.catalogue.artefact import Catalogue
from relaygr.generation.catalogue.errors import LoadError
from relaygr.generation.catalogue.fit import expect_tokens
from relaygr.generation.catalogue.settings import CatalogueSettings
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.requests import GenerateRequest
from relaygr.kernels.beam_select import choose_beams
from relaygr.kernels.select import DTYPES, choose
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import open_decoder

log = logging.getLogger("relaygr.engine")

TOKENIZER_FILE = "tokenizer.json"
_TRIAL_WIDTH = 2


def open_generator(
    config: GeneratorConfig, host: HostConfig = NO_HOST, clock: Clock | None = None
) -> Generator:
    """Open `config.model` and `config.catalogue`; kernel and dtype are chosen by measurement, and logged.

    Every catalogue that is loaded later is tried as well: its tokens must be the model's, and a small
    decode over it must give an answer, before any request sees it.

    Raises:
        ConfigError: a folder or a setting is wrong.
        RelayError: the catalogue cannot be served.
    """
    dtype = DTYPES[config.dtype] if config.dtype != "auto" else choose("auto", "auto").dtype
    decoder, model_fp = open_decoder(Path(config.model), dtype)
    shape = decoder.config
    decoder.kernel = choose_beams(shape.num_heads, shape.num_kv_heads, shape.head_dim, dtype).kernel
    decoder.mode = config.attention
    return make_generator(decoder, model_fp, config, host, clock, open_vocabulary(Path(config.model)))


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
    tokens = expect_tokens(words.codes, decoder.config.vocab_size, words.token)
    catalogues = Catalogues(settings, checks=(tokens, answers))
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
    prompt = catalogue.header.template.tokens(codes, vocabulary.of(catalogue)).tolist()
    layout = generator.layout
    pages = layout.pages_for(len(prompt)) * layout.page_bytes
    small = msgspec.structs.replace(
        generator.config,
        device_bytes=max(pages, MIB),
        beam_bytes=max(catalogue.index.levels * _TRIAL_WIDTH * layout.token_bytes, MIB),
        host_bytes=0,
    )
    catalogues = Catalogues()
    catalogues.install(catalogue)
    trial = Generator(
        generator.decoder, generator.model_fp, catalogues, small, vocabulary=vocabulary, overlap=False
    )
    request = GenerateRequest(request_id="trial", token_ids=prompt, beam_width=_TRIAL_WIDTH)
    try:
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


def open_vocabulary(folder: Path) -> Vocabulary:
    """The tokenizer beside a model, if there is one and the extra `text` is installed; without it no texts.

    Raises:
        ConfigError: the file is no tokenizer.
    """
    path = folder / TOKENIZER_FILE
    if not path.exists():
        return Vocabulary()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        log.warning("%s is not used: the extra `text` is not installed", path)
        return Vocabulary()
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The library raises bare exceptions.
    except Exception as error:
        raise ConfigError(str(path), f"is not a tokenizer: {error}") from error

    def tokenize(text: str) -> Sequence[int]:
        return list(tokenizer.encode(text).ids)

    return Vocabulary(token=tokenizer.token_to_id, tokenize=tokenize)
