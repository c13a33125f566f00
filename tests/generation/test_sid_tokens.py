"""Tokens of codes: bases, tables or patterns, and what makes no map."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.generation.catalogue.tokens import TokenSpec, stacked


def test_bases_are_slices() -> None:
    found = stacked((3, 2, 4), first=10).resolve((3, 2, 4))
    assert found.bases == (10, 13, 15)
    assert [found.columns(level) for level in (1, 2, 3)] == [slice(10, 13), slice(13, 15), slice(15, 19)]
    assert found.of(np.array([[2, 0, 3], [0, 1, 0]])).tolist() == [[12, 13, 18], [10, 14, 15]]
    assert found.of_level(2, np.array([1, 0])).tolist() == [14, 13]
    found.check_vocabulary(19)
    with pytest.raises(ConfigError, match="level 3: code 3 is token 18, limit 17"):
        found.check_vocabulary(18)


def test_tables_need_not_be_consecutive() -> None:
    found = TokenSpec(tables=((5, 3), (7, 8))).resolve((2, 2))
    assert found.bases == (None, 7)
    assert found.columns(1).tolist() == [5, 3]  # type: ignore[union-attr]
    assert found.columns(2) == slice(7, 9)


@pytest.mark.parametrize(
    "patterns", [("<{level}_{code}>",), ("<1_{code}>", "<2_{code}>")], ids=["one", "each"]
)
def test_patterns_are_looked_up(patterns: tuple[str, ...]) -> None:
    vocabulary = {"<1_0>": 9, "<1_1>": 4, "<2_0>": 5}
    found = TokenSpec(patterns=patterns).resolve((2, 1), vocabulary.get)
    assert [table.tolist() for table in found.tables] == [[9, 4], [5]]
    with pytest.raises(ConfigError, match="level 2: code 1: the tokenizer has no token '<2_1>'"):
        TokenSpec(patterns=patterns).resolve((2, 2), vocabulary.get)
    with pytest.raises(ConfigError, match="no tokenizer"):
        TokenSpec(patterns=patterns).resolve((2, 1))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (TokenSpec(), "nothing, expected bases"),
        (TokenSpec(bases=(0, 2), patterns=("{code}",)), "bases and patterns, expected"),
        (TokenSpec(bases=(0,)), "bases: 1 levels, the catalogue has 2"),
        (TokenSpec(bases=(0, 1)), "token 1 is in levels 1 and 2; set overlap"),
        (TokenSpec(bases=(0, -1)), "level 2: -1, limit 0"),
        (TokenSpec(bases=(0, 1 << 70)), "limit 0 to 2147483647"),
        (TokenSpec(bases=(0, (1 << 31) - 1)), "level 2: code 1 is token 2147483648, limit 2147483647"),
        (TokenSpec(tables=((1, 2),)), "tables: 1 levels"),
        (TokenSpec(tables=((1, 2), (3,))), "level 2: 1 tokens, expected 2"),
        (TokenSpec(tables=((1, 1), (3, 4))), "level 1: token 1 stands for 2 codes"),
        (TokenSpec(tables=((1, 2), (3, -4))), "level 2: code 1: token -4"),
        (TokenSpec(tables=((1, 2), (3, 2))), "token 2 is in levels 1 and 2"),
        (TokenSpec(patterns=("x",)), "'x' has no {code}"),
        (TokenSpec(patterns=("{code}",) * 3), "patterns: 3 levels"),
        (TokenSpec(patterns=("{code.__class__}{code}",)), "no token '{code.__class__}0'"),
    ],
)
def test_what_makes_no_map(spec: TokenSpec, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec.resolve((2, 2), lambda text: None)
    assert words in str(caught.value)


def test_overlap_on_request() -> None:
    found = TokenSpec(bases=(0, 0), overlap=True).resolve((2, 2))
    assert found.of(np.array([[1, 1]])).tolist() == [[1, 1]]


def test_a_spec_survives_json() -> None:
    for spec in (
        stacked((2, 2)),
        TokenSpec(tables=((1, 2), (2, 1)), overlap=True),
        TokenSpec(patterns=("{code}",)),
    ):
        assert msgspec.json.decode(msgspec.json.encode(spec), type=TokenSpec) == spec
