"""What is refused at once, by which error, naming which field and limit; and what is bound to a catalogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generate_rig import (
    ITEMS,
    SHAPE,
    SIZES,
    catalogue,
    decoder,
    generator,
    history,
    installed,
    of_tokens,
    of_user,
    one,
    wide_catalogue,
)

from relaygr.config.generator import GeneratorConfig
from relaygr.core.errors import ConfigError, NotReadyError, RequestError
from relaygr.engine.generation.asks import Vocabulary
from relaygr.engine.generation.prompts import Asked, window_items
from relaygr.generation.catalogue.artefact import make_catalogue
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.errors import CatalogUnavailableError, ErrorCode, GenerateError
from relaygr.generation.requests import GenerateRequest


def asked(**given: Any) -> Asked:
    return Asked(request=GenerateRequest(request_id="r", **{"beam_width": 4, **given}))


@pytest.mark.parametrize(
    ("request_", "settings", "code", "field", "limit"),
    [
        (asked(token_ids=[1] * 257), {}, ErrorCode.TOO_LONG, "token_ids", 256),
        (asked(token_ids=[1] * 511), {"max_prompt_tokens": 1000}, ErrorCode.TOO_LONG, "token_ids", 510),
        (asked(token_ids=[1, 99]), {}, ErrorCode.INVALID_REQUEST, "token_ids[1]", SHAPE.vocab_size - 1),
        (asked(token_ids=[1], beam_width=65), {}, ErrorCode.TOO_WIDE, "beam_width", 64),
        (asked(token_ids=[1], beam_width=[2, 65, 1]), {}, ErrorCode.TOO_WIDE, "beam_width", 64),
        (asked(token_ids=[1], num_results=129), {}, ErrorCode.TOO_WIDE, "num_results", 128),
        (asked(token_ids=[1], beam_width=[2, 2]), {}, ErrorCode.INVALID_REQUEST, "beam_width", None),
        (
            asked(token_ids=[1], beam_width=150),
            {"beam_bytes": 1 << 16, "max_beam_width": 200, "max_results": 200},
            ErrorCode.KV_BUDGET,
            "beam_width",
            1 << 16,
        ),
        (asked(token_ids=[1] * 250), {"device_bytes": 1 << 20}, None, "", None),
        (asked(history=[1, "x"]), {}, ErrorCode.INVALID_REQUEST, "history[1]", None),
        (
            asked(history=[1, 10**6]),
            {"unknown_items": "reject"},
            ErrorCode.INVALID_REQUEST,
            "history[1]",
            None,
        ),
        (asked(user="u"), {}, ErrorCode.INVALID_REQUEST, "user", None),
        (asked(text="hello"), {}, ErrorCode.INVALID_REQUEST, "text", None),
        (asked(token_ids=[1], filters=["fresh"]), {}, ErrorCode.INVALID_REQUEST, "filters[0]", None),
        (asked(token_ids=[1], deny=["x"]), {}, ErrorCode.INVALID_REQUEST, "deny[0]", None),
    ],
)
def test_what_never_fits_is_refused_with_field_and_limit(
    request_: Asked, settings: dict[str, Any], code: ErrorCode | None, field: str, limit: int | None
) -> None:
    limits = {"max_beam_width": 64, "beam_width": 4, "max_results": 128, **settings}
    catalogues = installed(wide_catalogue()) if "beam_bytes" in settings else None
    backend = generator(limits, catalogues=catalogues)
    if code is None:
        backend.check(request_).close()
    else:
        with pytest.raises(GenerateError) as caught:
            backend.check(request_)
        error = caught.value
        assert isinstance(error, RequestError)
        assert (error.code, error.field, error.request_id) == (code, field, "r")
        assert error.limit == limit
    assert backend.catalogues.status().pins == 0
    backend.close()


def test_scratch_and_pages_are_budgets_too() -> None:
    settings = {"scratch_bytes": 1 << 16, "max_results": 1024, "beam_bytes": 1 << 22}
    backend = generator(settings, catalogues=installed(wide_catalogue()))
    with pytest.raises(GenerateError) as caught:
        backend.check(asked(token_ids=[1], beam_width=1000))
    assert (caught.value.code, caught.value.limit) == (ErrorCode.KV_BUDGET, 1 << 16)
    backend.check(asked(token_ids=[1], beam_width=400)).close()
    with pytest.raises(GenerateError, match="logits"):
        backend.check(asked(token_ids=[1], beam_width=400, normalization="full"))
    backend.close()


def test_without_a_catalogue_nothing_is_checked_and_it_is_nobodys_fault() -> None:
    backend = generator(catalogues=Catalogues())
    with pytest.raises(CatalogUnavailableError) as caught:
        backend.check(asked(token_ids=[1]))
    assert isinstance(caught.value, NotReadyError)
    backend.close()


def test_prompts_are_template_and_codes_and_unknown_items_are_counted() -> None:
    backend = generator()
    index = catalogue().index
    items = [3, 10**6, 7, 10**7]
    ask = backend.check(asked(history=items))
    leaves = index.leaves_of(index.positions_of("items", [3])), index.leaves_of(index.positions_of("i", [7]))
    codes = [index.sids(leaf)[0] for leaf in leaves]
    bases = [8, 24, 40]
    wanted = [
        1,
        2,
        *(int(v) for sid in codes for v in [*(b + c for b, c in zip(bases, sid, strict=True)), 3]),
    ]
    assert ask.prompt.tokens.tolist() == [*wanted, 4]
    assert ask.prompt.unknown == 2
    ask.close()
    assert one(backend, asked(history=items)).result.unknown_items == 2
    text = generator(vocabulary=Vocabulary(tokenize=lambda text: [len(word) for word in text.split()]))
    assert text.check(asked(text="a bb cc")).prompt.tokens.tolist() == [1, 2, 2]
    backend.close()
    text.close()


def test_a_history_is_of_the_user_that_the_request_names() -> None:
    backend = generator()
    wrong = Asked(request=GenerateRequest(user="u", request_id="r"), history=history("v", [1]))
    with pytest.raises(GenerateError, match="history is of 'v'"):
        backend.check(wrong)
    ask = backend.check(of_user("u", [1, 2]))
    assert ask.owner == ("default", "u")
    assert backend.check(of_tokens([1])).owner == ("default", "")
    with pytest.raises(GenerateError, match="no history"):
        backend.check(Asked())
    backend.close()


def test_templates_without_room_for_an_item_are_refused() -> None:
    template = PromptTemplate(before=(1,) * 10)
    assert window_items(template, 3, 12) == 0
    assert window_items(template, 3, 13) == 1
    catalogues = Catalogues()
    catalogues.install(catalogue(template=template))
    backend = generator({"max_prompt_tokens": 12}, catalogues=catalogues)
    with pytest.raises(GenerateError, match="no room for an item"):
        backend.check(of_user("u", [1]))
    backend.close()


def test_a_catalogue_may_leave_its_tokens_to_the_model() -> None:
    silent = make_catalogue(catalogue().index, template=PromptTemplate())
    catalogues = Catalogues()
    catalogues.install(silent)
    tokens = stacked(SIZES, 8).resolve(SIZES)
    backend = generator(catalogues=catalogues, vocabulary=Vocabulary(codes=tokens))
    assert one(backend, of_user("u", list(range(10)))).result.found.rows
    other = generator(catalogues=catalogues)
    with pytest.raises(CatalogUnavailableError, match="which token a code is"):
        other.check(of_tokens([1]))
    assert catalogues.status().pins == 0
    backend.close()
    other.close()


def test_an_item_under_two_ids_is_named_once() -> None:
    from relaygr.generation.catalogue.build import build_index
    from relaygr.generation.catalogue.rows import Rows

    codes = np.random.default_rng(0).integers(0, 16, (40, 3))
    index = build_index(Rows(item_ids=np.arange(40) // 2, codes=codes), SIZES, allow_multi_sid=True).index
    catalogues = Catalogues()
    catalogues.install(make_catalogue(index, tokens=stacked(SIZES, 8)))
    backend = generator(catalogues=catalogues)
    found = one(backend, of_tokens([1, 2, 3], beam_width=64)).result.found
    items = [item for row in found.rows for item in row.items]
    assert len(items) == len(set(items)) > 10
    backend.close()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"max_prompt_tokens": 20_000}, "generator.max_prompt_tokens"),
        ({"max_beam_width": 2000}, "generator.max_beam_width"),
        ({"beam_width": 2000}, "generator.beam_width"),
        ({"deadline_ms": 70_000.0}, "generator.deadline_ms"),
        ({"model": "x"}, "generator.catalogue"),
        ({"catalogue": "a\0"}, "generator.catalogue"),
        ({"page_tokens": 12}, "generator.page_tokens"),
        ({"max_wait_ms": float("nan")}, "generator.max_wait_ms"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GeneratorConfig(**settings)
    assert caught.value.path == key


def test_the_rig_is_what_the_tests_take_it_for() -> None:
    assert decoder().config.vocab_size == 8 + sum(SIZES)
    assert catalogue().index.n_items == ITEMS
