"""Histories become codes, items that are no longer served included; unknown ones are told."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_reference import Row, build, catalogues
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue.history import code_history
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked


@settings(max_examples=60, deadline=None)
@given(catalogues(), st.lists(st.integers(-6, 21), max_size=20))
def test_codes_equal_a_dictionary(given_rows: tuple[list[Row], tuple[int, ...]], history: list[int]) -> None:
    rows, sizes = given_rows
    index = build(rows, sizes).index
    # Served before not served, then the lowest.
    best = {row.item: row.sid for row in sorted(rows, key=lambda row: (row.servable, [-c for c in row.sid]))}
    found = code_history(index, history, "skip")
    assert found.codes.tolist() == [list(best[item]) for item in history if item in best]
    assert found.skipped == sum(item not in best for item in history)
    if found.skipped:
        with pytest.raises(RequestError, match=r"history\[\d+\]: item .* is not in the catalogue"):
            code_history(index, history)
    else:
        assert code_history(index, history).codes.tolist() == found.codes.tolist()


def test_strings_and_items_that_are_not_served() -> None:
    index = build([Row("a", (1, 0)), Row("old", (0, 1), servable=False)], (2, 2)).index
    assert index.n_items == 1
    assert index.find_leaf((0, 1)) is None
    found = code_history(index, ["old", "a", "old"])
    assert found.codes.tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(RequestError, match=r"history\[1\]: item 'b'"):
        code_history(index, ["a", "b"])
    with pytest.raises(RequestError, match=r"history\[0\]: must be a string"):
        code_history(index, [1], "skip")
    assert code_history(index, ["b"], "skip").codes.shape == (0, 2)
    assert code_history(index, []).codes.shape == (0, 2)


def test_a_prompt_of_a_history() -> None:
    token_map = stacked((4, 4), first=100).resolve((4, 4))
    template = PromptTemplate(before=(1, 2), item_before=(3,), item_after=(4, 5), after=(6,))
    prompt = template.tokens(np.array([[0, 3], [2, 1]]), token_map)
    assert prompt.tolist() == [1, 2, 3, 100, 107, 4, 5, 3, 102, 105, 4, 5, 6]
    assert template.tokens(np.zeros((0, 2), int), token_map).tolist() == [1, 2, 6]
    assert PromptTemplate().tokens(np.array([[0, 3]]), token_map).tolist() == [100, 107]
