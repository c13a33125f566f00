"""Strings are found by their hashes as they are by bisection, whatever the hashes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue import names as module
from relaygr.generation.catalogue.artefact import make_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.names import Names, make_names
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked
from relaygr.generation.catalogue.versions import Catalogues

TEXTS = st.text("ab0é日\U0001f600", min_size=1, max_size=4)
ASKED = st.text("ab0é日\U0001f600\x00\ud800", max_size=4)
HASHES = {
    "as they are": hash,
    "all the same": lambda raw: 7,
    "by length": len,
    "extremes": lambda raw: (-(1 << 63), (1 << 63) - 1)[raw[-1:] > b"b"],
}


@pytest.mark.parametrize("kind", sorted(HASHES))
@pytest.mark.parametrize("piece", [1, 3, 8192])
@settings(max_examples=30, deadline=None)
@given(known=st.lists(TEXTS, min_size=1, max_size=20), asked=st.lists(ASKED, max_size=30))
def test_hashed_equals_bisected(known: list[str], asked: list[str], kind: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", piece)
        chosen = HASHES[kind]
        patch.setattr(module, "_hashes", lambda raws, n: np.fromiter(map(chosen, raws), np.int64, n))
        names, ranks = make_names(known)
        row_of = {text: row for row, text in enumerate(sorted(set(known)))}
        assert ranks.tolist() == [row_of[text] for text in known]
        asked = asked + known
        wanted = [row_of.get(text, -1) for text in asked]
        assert names.find(asked).tolist() == wanted
        plain = names.nbytes
        names.prepare()
        assert names.nbytes == plain + 12 * len(names)
        names.prepare()
        assert names.nbytes == plain + 12 * len(names)
        assert names.find(asked).tolist() == wanted


def test_many_strings_over_several_pieces() -> None:
    texts = [f"item-{number:06d}" for number in range(30_000)]
    names, _ = make_names(texts[::2])
    names.prepare()
    assert names.find(texts).tolist() == [at // 2 if at % 2 == 0 else -1 for at in range(len(texts))]
    assert names.find([]).tolist() == []


def test_a_table_without_strings() -> None:
    names = Names(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    names.prepare()
    assert names.find(["a"]).tolist() == [-1]


def lettered() -> CatalogueIndex:
    return build_index(Rows(item_ids=["b", "a", "c"], codes=np.array([[0], [1], [2]])), (3,)).index


def test_catalogues_are_prepared_before_they_serve() -> None:
    index, catalogues = lettered(), Catalogues()
    assert index.names is not None
    plain = index.names.nbytes
    catalogues.install(make_catalogue(index, tokens=stacked((3,), 1), as_of_s=0.0))
    assert index.names.nbytes > plain
    assert index.positions_of("deny", ["c", "b", "d", "b"]).tolist() == [0, 2]


def test_arrays_are_ids_of_whole_numbers_only() -> None:
    index = build_index(Rows(item_ids=np.array([5, 3]), codes=np.array([[0], [1]])), (3,)).index
    assert index.positions_of("history", np.array([3, 9, 3, 5])).tolist() == [0, 1]
    assert index.positions_of("history", np.array([], np.int64)).tolist() == []
    with pytest.raises(RequestError, match=r"history\[0\]: must be a string, got int"):
        lettered().positions_of("history", np.array([3]))
