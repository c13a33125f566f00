"""The value function: evaluation, what is refused, versions."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from slate_cases import DOCUMENT, HEADS, VALUE

from relaygr.core.errors import ConfigError
from relaygr.listwise.pool import Head
from relaygr.listwise.value import Factor, Fn, Term, ValueDocument, ValueFunction, load_value, parse_value

EXAMPLE = b"""{ "id": "reels-v7", "terms": [
  {"weight": 1.0, "factors": [ {"head": "watch_s", "fn": "log1p", "scale": 1.0, "min": 0, "max": 180} ]},
  {"weight": 4.0, "factors": [ {"head": "like"}, {"head": "complete", "fn": "pow", "exp": 0.5} ]} ],
  "clip": [0, 100] }"""


def one(**factor: object) -> ValueFunction:
    return ValueFunction(
        ValueDocument(id="v", terms=(Term(weight=2.0, factors=(Factor(**factor),)),)),  # type: ignore[arg-type]
        HEADS,
    )


def test_document_is_evaluated_as_written() -> None:
    random = np.random.default_rng(0)
    natural = random.uniform(0, 1, (3, 4, 5))
    natural[2] *= 400
    values = VALUE(natural)
    for at in np.ndindex(4, 5):
        like, complete, watch = natural[(slice(None), *at)]
        wanted = math.log1p(min(watch, 180.0)) + 4.0 * like * complete**0.5
        assert values[at] == pytest.approx(min(max(wanted, 0.0), 100.0), abs=1e-12)


def test_json_is_the_same_document() -> None:
    assert parse_value(EXAMPLE) == DOCUMENT
    assert ValueFunction(parse_value(EXAMPLE), HEADS).version == VALUE.version


@pytest.mark.parametrize(
    ("factor", "head", "wanted"),
    [
        ({"head": "like", "scale": 3.0}, 0.25, 0.75),
        ({"head": "like", "fn": "logit", "min": 0.01, "max": 0.99}, 0.2, math.log(0.25)),
        ({"head": "like", "fn": "logit", "min": 0.01, "max": 0.99}, 0.0, math.log(0.01 / 0.99)),
        ({"head": "like", "fn": "threshold", "at": 0.5}, 0.5, 1.0),
        ({"head": "like", "fn": "threshold", "at": 0.5}, 0.49, 0.0),
        ({"head": "watch_s", "fn": "pow", "exp": -1.0, "min": 0.5}, 0.1, 2.0),
    ],
)
def test_functions(factor: dict[str, object], head: float, wanted: float) -> None:
    value = ValueFunction(
        ValueDocument(id="v", terms=(Term(weight=2.0, factors=(msgspec.convert(factor, Factor),)),)), HEADS
    )
    natural = np.full((3, 1), head)
    assert value(natural)[0] == pytest.approx(2.0 * wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("factor", "part"),
    [
        ({"head": "share"}, "share"),
        ({"head": "like", "fn": Fn.POW, "exp": 0.5, "scale": -1.0}, "negative"),
        ({"head": "like", "fn": Fn.POW, "exp": 0.5, "min": -1.0, "max": -0.5}, "terms[0].factors[0]"),
        ({"head": "like", "fn": Fn.POW, "exp": -1.0}, "not finite"),
        ({"head": "like", "fn": Fn.LOGIT}, "not finite"),
        ({"head": "watch_s", "fn": Fn.LOG1P, "scale": -1.0}, "not finite"),
        ({"head": "like", "fn": Fn.POW}, "exp"),
        ({"head": "like", "exp": 2.0}, "exp"),
        ({"head": "like", "fn": Fn.THRESHOLD}, "at"),
        ({"head": "like", "scale": math.inf}, "scale"),
        ({"head": "like", "min": 1.0, "max": 0.0}, "min"),
    ],
)
def test_what_has_no_finite_value_is_refused(factor: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        one(**factor)
    assert part in str(caught.value)


def test_products_that_overflow_are_refused() -> None:
    factors = tuple(Factor(head="watch_s", fn=Fn.POW, exp=4.0) for _ in range(3))
    with pytest.raises(ConfigError, match="not finite"):
        ValueFunction(ValueDocument(id="v", terms=(Term(weight=1.0, factors=factors),)), HEADS)


def test_versions_tell_documents_of_one_id_apart() -> None:
    other = ValueFunction(ValueDocument(id="reels-v7", terms=DOCUMENT.terms[:1]), HEADS)
    assert other.version.startswith("reels-v7@")
    assert other.version != VALUE.version


def test_terms_sum_to_the_value() -> None:
    natural = np.random.default_rng(1).uniform(0, 1, (3, 7))
    assert np.allclose(VALUE.clip(VALUE.terms(natural).sum(0)), VALUE(natural), rtol=0, atol=1e-14)


def test_constant_terms_and_clip() -> None:
    value = ValueFunction(ValueDocument(id="c", terms=(Term(weight=-3.0),), clip=(-1.0, 1.0)), HEADS)
    assert value(np.zeros((3, 2))).tolist() == [-1.0, -1.0]


def test_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "value.json"
    path.write_bytes(EXAMPLE)
    assert load_value(path, HEADS).version == VALUE.version
    path.write_bytes(EXAMPLE.replace(b'"clip"', b'"clap"'))
    with pytest.raises(ConfigError, match="clap"):
        load_value(path, HEADS)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_value(tmp_path / "none.json", HEADS)
    with pytest.raises(ConfigError, match="watch_s"):
        ValueFunction(DOCUMENT, (Head("like"), Head("complete")))
