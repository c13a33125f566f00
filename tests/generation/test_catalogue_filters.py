"""Filters against sets of items: a node is alive exactly if an allowed item is under it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest
from catalogue_reference import Row, build, catalogues, leaves, prefixes
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue.errors import FilterError
from relaygr.generation.catalogue.filters import Filter, NamedFilter, Wanted, make_filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.named import NamedFilters

NAMES = ("fresh", "legal", "odd")


@settings(max_examples=80, deadline=None)
@given(catalogues(flags=NAMES), st.data())
def test_aliveness_equals_sets(given_rows: tuple[list[Row], tuple[int, ...]], data: st.DataObject) -> None:
    rows, sizes = given_rows
    index = build(rows, sizes).index
    ids = st.lists(st.integers(-6, 21), max_size=12)
    wanted = Wanted(
        allow=data.draw(st.none() | ids, "allow"),
        deny=data.draw(ids, "deny"),
        seen=data.draw(ids | ids.map(np.array).map(lambda one: one.astype(np.int64)), "seen"),
        filters=data.draw(st.lists(st.sampled_from(NAMES), max_size=3), "filters"),
    )
    withdrawn = data.draw(ids, "withdrawn")
    found = make_filter(index, wanted, withdrawn=index.positions_of("items", withdrawn))
    flags = {(row.sid, row.item): row.flags for row in rows if row.servable}

    def allowed(sid: tuple[int, ...], item: int | str) -> bool:
        return (
            (wanted.allow is None or item in wanted.allow)
            and item not in wanted.deny
            and item not in wanted.seen
            and item not in withdrawn
            and all(flags[sid, item][name] for name in wanted.filters)
        )

    left = {sid: [one for one in items if allowed(sid, one)] for sid, items in leaves(rows).items()}
    agree(index, found, left)


def agree(index: CatalogueIndex, found: Filter, left: dict[tuple[int, ...], list[int | str]]) -> None:
    alive = {sid for sid, items in left.items() if items}
    for level, nodes in enumerate(prefixes(index)):
        expected = [any(sid[:level] == prefix for sid in alive) for prefix in nodes]
        assert found.alive(level, np.arange(len(nodes))).tolist() == expected
        # Any order of nodes, and any type of their numbers.
        backwards = np.arange(len(nodes), dtype=np.int32)[::-1]
        assert found.alive(level, backwards).tolist() == expected[::-1]
    for leaf, items in enumerate(left.values()):
        assert index.ids_at(found.allowed_items(leaf)) == items
    passes = [item for items in left.values() for item in items]
    everything = np.arange(index.n_items)
    assert index.ids_at(everything[found.passes(everything)]) == passes
    if found.everything:
        assert len(passes) == index.n_items


def two_filters() -> CatalogueIndex:
    """Under (0, 0) each filter leaves an item, but not the same one; under (1, 0) both leave the same."""
    rows = [
        Row(1, (0, 0), flags={"a": True, "b": False}),
        Row(2, (0, 0), flags={"a": False, "b": True}),
        Row(3, (1, 0), flags={"a": True, "b": True}),
    ]
    return build(rows, (2, 2)).index


@pytest.mark.parametrize("first", [0, 1], ids=["item 1", "item 2"])
def test_two_filters_that_leave_different_items_leave_none(first: int) -> None:
    index = two_filters()
    both = make_filter(index, Wanted(filters=("a", "b")))
    assert both.alive(1, np.array([0, 1])).tolist() == [False, True]
    assert both.alive(2, np.array([0, 1])).tolist() == [False, True]
    assert both.alive(0, np.array([0])).tolist() == [True]
    one = make_filter(index, Wanted(deny=[(1, 2)[first]], filters=("ab"[first],)))
    assert one.alive(1, np.array([0])).tolist() == [False]
    listed = make_filter(index, Wanted(allow=[(1, 2)[first]], filters=("ba"[first],)))
    assert listed.alive(0, np.array([0])).tolist() == [False]


def test_an_empty_allow_list_allows_nothing() -> None:
    index = two_filters()
    nothing = make_filter(index, Wanted(allow=[]))
    assert not nothing.alive(0, np.array([0])).any()
    assert not nothing.everything
    assert make_filter(index, Wanted()).everything
    assert make_filter(index, Wanted(allow=[1, 2, 3])).everything
    assert make_filter(index, Wanted(deny=[77])).everything
    assert not make_filter(index, Wanted(filters=("a",))).everything


def test_an_item_under_two_ids_is_denied_under_both() -> None:
    index = build([Row(1, (0,)), Row(1, (1,)), Row(2, (1,)), Row(3, (2,))], (3,)).index
    found = make_filter(index, Wanted(deny=[1]))
    assert found.alive(1, np.arange(3)).tolist() == [False, True, True]
    found = make_filter(index, Wanted(allow=[1]))
    assert found.alive(1, np.arange(3)).tolist() == [True, True, False]
    assert found.allowed_items(1).tolist() == [1]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(deny=[1, "2"]), "deny[1]: must be a whole number, got str"),
        (Wanted(deny=[True]), "deny[0]: must be a whole number, got bool"),
        (Wanted(seen=[1, "2"]), "history[1]: must be a whole number, got str"),
        (Wanted(allow=[1.0]), "allow[0]: must be a whole number, got float"),  # type: ignore[list-item]
        (Wanted(allow=[1 << 63]), "allow[0]: 9223372036854775808 is beyond 64 bits"),
        (Wanted(filters=("a", "z")), "filters[1]: there is no filter 'z'; there are: a, b"),
    ],
    ids=["string", "bool", "seen string", "float", "large", "unknown filter"],
)
def test_bad_lists_name_the_place(wanted: Wanted, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_filter(two_filters(), wanted)
    assert words in str(caught.value)


def test_strings_want_strings() -> None:
    index = build([Row("é", (0,)), Row("日", (1,))], (2,)).index
    found = make_filter(index, Wanted(deny=["é", "unknown", "\ud800"]))
    assert found.alive(1, np.arange(2)).tolist() == [False, True]
    with pytest.raises(RequestError, match="must be a string, got int"):
        make_filter(index, Wanted(deny=[1]))


def broken(index: CatalogueIndex) -> np.ndarray:
    raise ZeroDivisionError("no clock")


WRONG = {
    "raises": broken,
    "none": lambda index: None,
    "short": lambda index: np.ones(index.n_items - 1, bool),
    "long": lambda index: np.ones(index.n_items + 1, bool),
    "numbers": lambda index: np.ones(index.n_items),
    "list": lambda index: [True] * index.n_items,
}


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_a_broken_filter_fails_the_request_every_time(kind: str) -> None:
    named = NamedFilters()
    named.define("a", WRONG[kind])
    for _ in range(2):
        with pytest.raises(FilterError, match="filter 'a'"):
            make_filter(two_filters(), Wanted(filters=("b", "a")), named=named)
    assert named.nbytes == 0
    named.remove("a")
    named.remove("a")
    found = make_filter(two_filters(), Wanted(filters=("b", "a")), named=named)
    assert found.alive(1, np.arange(2)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("fault", "filters"),
    [
        ("index", NamedFilter(two_filters(), np.zeros(2, np.int32), np.zeros(0, np.int32))),
        ("nodes", NamedFilter(two_filters(), np.arange(4, dtype=np.int32), np.array([0], np.int32))),
    ],
    ids=["short sums", "foreign nodes"],
)
def test_a_broken_mask_raises_and_never_lets_all_through(fault: str, filters: Filter) -> None:
    with pytest.raises(IndexError):
        filters.alive(1, np.array([0, 1]) if fault == "index" else np.array([0, 9]))


def test_sums_are_remembered_for_each_version_and_set() -> None:
    calls: list[int] = []

    def fresh(index: CatalogueIndex) -> np.ndarray:
        calls.append(index.n_items)
        return np.arange(index.n_items) > 0

    named, index = NamedFilters(), two_filters()
    named.define("fresh", fresh)
    sums = named.passing(1, index, ("fresh", "a"))
    assert named.passing(1, index, ("a", "fresh", "a")) is sums
    assert sums.tolist() == [0, 0, 0, 1]
    assert not sums.flags.writeable
    named.passing(2, index, ("fresh", "a"))
    assert len(calls) == 2
    named.define("fresh", lambda index: np.ones(index.n_items, bool))
    assert named.nbytes == 0
    assert named.passing(1, index, ("fresh", "a")).tolist() == [0, 1, 1, 2]
    named.passing(2, index, ("a",))
    named.forget_version(1)
    assert named.nbytes == 16
    named.define("a", lambda index: np.zeros(index.n_items, bool))
    assert named.nbytes == 0
    assert named.passing(2, index, ("a",)).tolist() == [0, 0, 0, 0]


def test_remembered_bytes_are_bounded_and_the_least_used_go() -> None:
    named, index = NamedFilters(limit_bytes=40), two_filters()
    one, two = (named.passing(1, index, (name,)) for name in "ab")
    assert named.passing(1, index, ("a",)) is one
    named.passing(1, index, ("a", "b"))
    assert named.nbytes == 32
    assert named.passing(1, index, ("a",)) is one
    assert named.passing(1, index, ("b",)) is not two
    tight = NamedFilters(limit_bytes=0)
    kept = tight.passing(1, index, ("a",))
    assert tight.passing(1, index, ("a",)) is kept


def test_many_threads_see_one_truth() -> None:
    named, index = NamedFilters(limit_bytes=64), two_filters()
    wrong: list[object] = []

    def ask(names: Iterable[str]) -> None:
        for turn in range(200):
            if turn % 50 == 0:
                named.define("c", lambda index: np.ones(index.n_items, bool))
            sums = named.passing(turn % 3, index, tuple(names))
            if sums.tolist() != expected[tuple(names)]:
                wrong.append((names, sums))

    expected = {("a",): [0, 1, 1, 2], ("a", "c"): [0, 1, 1, 2], ("a", "b"): [0, 0, 0, 1]}
    named.define("c", lambda index: np.ones(index.n_items, bool))
    threads = [threading.Thread(target=ask, args=(names,)) for names in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert named.nbytes <= 64
