"""A generator from folders on disk; catalogues that must not be served are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generate_rig import MODEL, SETTINGS, SIZES, VOCAB, catalogue, decoder, of_tokens, of_user, one, rows

from relaygr.config.generator import GeneratorConfig
from relaygr.core.errors import ConfigError, RelayError
from relaygr.engine.generation.asks import Vocabulary
from relaygr.engine.generation.opening import make_generator, open_generator, open_vocabulary
from relaygr.generation.catalogue.artefact import make_catalogue, write_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.errors import LoadError
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked
from relaygr.generation.recipe import Recipe, save_recipe
from relaygr.kernels.select import Choice
from relaygr.models.decoder.huggingface import save_decoder


def config(folder: Path, **more: object) -> GeneratorConfig:
    names = {"model": str(folder / "model"), "catalogue": str(folder / "catalogue"), "dtype": "fp32"}
    return GeneratorConfig(**{**SETTINGS, **names, **more})


def test_folders_are_opened_and_catalogues_change_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []

    def quick(*shape: object) -> object:
        chosen.append(shape)
        return Choice(decoder().kernel, torch.float32, "fp32", "", ())  # type: ignore[arg-type]

    monkeypatch.setattr("relaygr.engine.generation.opening.choose_beams", quick)
    save_decoder(decoder(), tmp_path / "model")
    write_catalogue(tmp_path / "catalogue", catalogue())
    generator = open_generator(config(tmp_path))
    assert chosen == [(4, 2, 8, torch.float32, "auto")]
    first = one(generator, of_user("u", [1, 2, 3]))
    assert first.result.model_version == generator.model_fp.hex()
    write_catalogue(tmp_path / "next", catalogue(1))
    generator.catalogues.load(tmp_path / "next")
    assert one(generator, of_user("u", [1, 2, 3])).result.catalog_version == catalogue(1).label
    write_catalogue(tmp_path / "small", catalogue(2, items=20))
    with pytest.raises(LoadError, match="items"):
        generator.catalogues.load(tmp_path / "small")
    generator.catalogues.rollback()
    assert rows(one(generator, of_user("u", [1, 2, 3]))) == rows(first)
    generator.close()
    with pytest.raises(RelayError):
        open_generator(config(tmp_path, catalogue=str(tmp_path / "model")))


def test_a_trained_models_recipe_fills_what_the_catalogue_leaves_open(tmp_path: Path) -> None:
    template = PromptTemplate(before=(0,))
    sizes = catalogue().index.sizes
    bases = stacked(sizes, 1)
    save_recipe(
        Recipe(
            sizes=sizes,
            sid_token_map=bases,
            template=template,
            max_prompt_tokens=1 + 4 * len(sizes),
            sids="",
            codebooks="mine",
        ),
        tmp_path,
    )
    words = open_vocabulary(tmp_path, 100)
    bare = make_catalogue(catalogue().index)
    assert words.template_of(bare) == template
    settings = GeneratorConfig(**SETTINGS)
    generator = make_generator(decoder(), MODEL, settings, vocabulary=words)
    generator.catalogues.install(bare)
    answer = one(generator, of_user("u", list(range(1, 9)))).result
    # One token in front, and at most as many items as the model was trained on.
    assert (answer.prompt_tokens - 1) % len(sizes) == 0
    assert answer.prompt_tokens <= 1 + 4 * len(sizes)
    own = make_catalogue(catalogue().index, tokens=bases, template=PromptTemplate(after=(0,)))
    assert words.template_of(own) == PromptTemplate(after=(0,))
    generator.catalogues.install(make_catalogue(catalogue(1).index, codebooks="mine"))
    with pytest.raises(LoadError, match="codebooks other, the model learned mine"):
        generator.catalogues.install(make_catalogue(catalogue(2).index, codebooks="other"))
    generator.close()


def test_a_catalogue_is_tried_before_it_is_served() -> None:
    settings = GeneratorConfig(**SETTINGS)
    generator = make_generator(decoder(), MODEL, settings)
    assert generator.model_fp == MODEL
    generator.catalogues.install(catalogue())
    beyond = make_catalogue(catalogue().index, tokens=stacked(SIZES, 30))
    with pytest.raises(ConfigError, match="limit"):
        generator.catalogues.install(beyond)
    with pytest.raises(LoadError, match="which token a code is"):
        generator.catalogues.install(make_catalogue(catalogue(1).index))
    step = generator.decoder.step
    object.__setattr__(generator.decoder, "step", lambda rows: step(rows) * float("nan"))
    try:
        with pytest.raises(LoadError, match="first request failed"):
            generator.catalogues.install(catalogue(3))
    finally:
        object.__delattr__(generator.decoder, "step")
    assert generator.catalogues.status().serving == catalogue().label
    assert generator.catalogues.status().failures == 3
    assert one(generator, of_tokens([1, 2])).result.found.rows
    generator.close()


def test_a_tokenizer_beside_the_model_reads_texts(tmp_path: Path) -> None:
    assert open_vocabulary(tmp_path, 100) == Vocabulary()
    tokenizers = pytest.importorskip("tokenizers")
    words = {"buy": 0, "again": 1, "<a_0>": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="buy"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    vocabulary = open_vocabulary(tmp_path, 100)
    assert vocabulary.tokenize is not None
    assert vocabulary.token is not None
    assert list(vocabulary.tokenize("again buy")) == [1, 0]
    assert vocabulary.token("<a_0>") == 2
    assert vocabulary.token("<a_1>") is None
    (tmp_path / "tokenizer.json").write_text("no")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        open_vocabulary(tmp_path, 100)


def test_without_a_prompt_template_the_first_item_is_the_prompt_of_the_trial() -> None:
    plain = make_catalogue(catalogue().index, tokens=stacked(SIZES, 8))
    generator = make_generator(decoder(), MODEL, GeneratorConfig(**SETTINGS))
    generator.catalogues.install(plain)
    assert np.isfinite([score for _, score, _ in rows(one(generator, of_tokens([9])))]).all()
    generator.close()


def test_what_does_not_fit_the_model_is_a_named_refusal() -> None:
    words = Vocabulary(stacked(SIZES, 8).resolve(SIZES))
    generator = make_generator(decoder(), MODEL, GeneratorConfig(**SETTINGS), vocabulary=words)
    generator.catalogues.install(catalogue())
    index = catalogue().index
    two = build_index(Rows(item_ids=np.arange(400), codes=_codes(2)), SIZES[:2]).index
    with pytest.raises(LoadError, match="2 levels, the model has 3"):
        generator.catalogues.install(make_catalogue(two, tokens=stacked(SIZES[:2], 8)), allow_shrink=True)
    for token in (-1, VOCAB, 1 << 63):
        wrong = make_catalogue(index, tokens=stacked(SIZES, 8), template=PromptTemplate(item_after=(token,)))
        with pytest.raises(LoadError, match=rf"template\.item_after: token {token}, limit 0 to {VOCAB - 1}"):
            generator.catalogues.install(wrong)
    huge = build_index(Rows(item_ids=np.arange(400), codes=_codes(3)), [(1 << 31) - 1] * 3).index
    with pytest.raises(ConfigError, match="code 2147483646 is token 2147483654"):  # and not made first
        generator.catalogues.install(make_catalogue(huge, tokens=stacked((huge.sizes[0], 1, 1), 8)))
    generator.close()


@pytest.mark.parametrize("limits", [{"max_beam_width": 1}, {"max_results": 1}])
def test_a_trial_keeps_to_the_limits_of_requests(limits: dict[str, int]) -> None:
    generator = make_generator(decoder(), MODEL, GeneratorConfig(**{**SETTINGS, "beam_width": 1, **limits}))
    generator.catalogues.install(catalogue())
    assert generator.catalogues.status().serving == catalogue().label
    generator.close()


def _codes(levels: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 16, (400, levels))
