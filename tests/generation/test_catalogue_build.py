"""The index against plain sets: same ids, same items, same orders, whatever the order of the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from catalogue_reference import Row, build, catalogues, leaves, prefixes
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.check import find_fault
from relaygr.generation.catalogue.describe import describe_index
from relaygr.generation.catalogue.errors import Reject, RowError
from relaygr.generation.catalogue.header import arrays_of
from relaygr.generation.catalogue.names import Names
from relaygr.generation.catalogue.rows import Rows

KINDS = [
    pytest.param(catalogues(), id="packed"),
    pytest.param(catalogues(wide=True), id="wide"),
    pytest.param(catalogues(strings=True, flags=("a", "b")), id="strings"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_equals_plain_sets(kind: st.SearchStrategy[tuple[list[Row], tuple[int, ...]]]) -> None:
    @settings(max_examples=50, deadline=None)
    @given(kind)
    def check(given_rows: tuple[list[Row], tuple[int, ...]]) -> None:
        rows, sizes = given_rows
        built = build(rows, sizes)
        index = built.index
        assert find_fault(index) is None
        expected = leaves(rows)
        found = prefixes(index)
        for level in range(index.levels + 1):
            assert found[level] == sorted({sid[:level] for sid in expected})
            assert index.nodes(level) == len(found[level])
        assert [tuple(sid) for sid in index.sids(np.arange(index.n_sids)).tolist()] == list(expected)
        assert [index.item_ids(leaf) for leaf in range(index.n_sids)] == list(expected.values())
        distinct = {(row.item, row.sid) for row in rows}
        assert built.rows == len(rows)
        assert built.duplicates == len(rows) - len(distinct)
        for leaf, sid in enumerate(expected):
            assert index.find_leaf(sid) == leaf
        assert index.find_leaf((*found[-1][0][:-1], sizes[-1])) is None
        assert index.find_leaf(found[-1][0][:-1]) is None
        ranges(index, found, list(expected), [len(items) for items in expected.values()])
        for name in index.flags:
            passing = dict(zip(positions(expected), index.flag(name).tolist(), strict=True))
            assert passing == {(row.sid, row.item): row.flags[name] for row in rows if row.servable}

    check()


def positions(expected: dict[tuple[int, ...], list[int | str]]) -> list[tuple[tuple[int, ...], int | str]]:
    return [(sid, item) for sid, items in expected.items() for item in items]


def ranges(index, found, sids, counts) -> None:  # type: ignore[no-untyped-def]
    """Item ranges of all nodes, and the way back up."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    for level in range(index.levels + 1):
        low, high = index.item_range(level, np.arange(index.nodes(level)))
        for node, prefix in enumerate(found[level]):
            under = [place for place, sid in enumerate(sids) if sid[:level] == prefix]
            assert (low[node], high[node]) == (starts[under[0]], starts[under[-1] + 1])
        if level:
            above = index.parents(level, np.arange(index.nodes(level)))
            assert [found[level - 1][node] for node in above] == [prefix[:-1] for prefix in found[level]]
    assert (
        index.leaves_of(np.arange(index.n_items)).tolist() == np.repeat(np.arange(len(sids)), counts).tolist()
    )


@settings(max_examples=30, deadline=None)
@given(catalogues(flags=("a",)), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_bit(
    given_rows: tuple[list[Row], tuple[int, ...]], random: object
) -> None:
    rows, sizes = given_rows
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = (arrays_of(build(some, sizes).index) for some in (rows, shuffled))
    assert list(one) == list(two)
    for name, array in one.items():
        assert array.dtype == two[name].dtype
        assert np.array_equal(array, two[name]), name


def test_several_items_of_an_id_stand_best_first() -> None:
    rows = [Row(5, (1, 1)), Row(9, (1, 1), 7), Row(2, (1, 1)), Row(3, (1, 1), 7), Row(4, (0, 1), -1)]
    index = build(rows, (2, 2)).index
    assert index.item_ids(1) == [3, 9, 2, 5]
    assert index.item_ids(0) == [4]


def test_priorities_of_all_64_bits_and_fractions() -> None:
    sid = np.zeros((3, 1), np.int64)
    extreme = np.array([-(1 << 63), (1 << 63) - 1, (1 << 63) - 2])
    index = build_index(Rows(item_ids=np.arange(3), codes=sid, priority=extreme)).index
    assert index.item_ids(0) == [1, 2, 0]
    index = build_index(Rows(item_ids=np.arange(3), codes=sid, priority=np.array([0.1, 0.3, 0.2]))).index
    assert index.item_ids(0) == [1, 2, 0]


def test_ids_keep_64_bits() -> None:
    ids = [-(1 << 63), (1 << 63) - 1, (1 << 53) + 1, (1 << 53)]
    index = build_index(Rows(item_ids=np.array(ids), codes=np.arange(4)[:, None])).index
    assert [index.item_ids(leaf)[0] for leaf in range(4)] == ids
    assert index.positions_of("x", [(1 << 53) + 1]).tolist() == [2]


def test_codes_take_two_bytes_up_to_65536() -> None:
    for size, kind in ((65_536, np.uint16), (65_537, np.int32)):
        index = build_index(Rows(item_ids=np.array([1]), codes=np.array([[size - 1]])), [size]).index
        assert index.codes[0].dtype == kind
        assert index.codes[0].tolist() == [size - 1]


def rows_with(**changes: object) -> Rows:
    base = Rows(item_ids=np.array([1, 2, 3]), codes=np.array([[0, 1], [1, 1], [1, 0]]))
    return replace(base, **changes)


BOOLS = np.array([True, False, True])
REJECTED = [
    (
        "negative",
        rows_with(codes=np.array([[0, 1], [1, 1], [1, -4]])),
        Reject.NEGATIVE,
        2,
        "level 2: code -4",
    ),
    (
        "range",
        rows_with(codes=np.array([[0, 1], [2, 1], [1, 0]])),
        Reject.RANGE,
        1,
        "level 1: code 2, limit 1",
    ),
    (
        "two sids",
        rows_with(item_ids=np.array([1, 2, 1])),
        Reject.MULTI_SID,
        2,
        "item 1 has [1, 0], but [0, 1]",
    ),
    ("depth", rows_with(codes=np.zeros((3, 3), int)), Reject.DEPTH, 0, "3 codes, expected 2"),
    ("no codes", rows_with(codes=np.zeros((3, 0), int)), Reject.DEPTH, None, "0 levels"),
    (
        "empty",
        rows_with(item_ids=np.zeros(0, int), codes=np.zeros((0, 2), int)),
        Reject.EMPTY,
        None,
        "no rows",
    ),
    ("nothing served", rows_with(servable=~np.ones(3, bool)), Reject.EMPTY, None, "none of 3 rows"),
    ("floats", rows_with(codes=np.zeros((3, 2))), Reject.SHAPE, None, "float64 of shape (3, 2)"),
    ("flat codes", rows_with(codes=np.zeros(3, int)), Reject.SHAPE, None, "shape (3,)"),
    ("items", rows_with(item_ids=np.arange(2)), Reject.SHAPE, None, "2 items, expected 3"),
    ("float items", rows_with(item_ids=np.arange(3.0)), Reject.SHAPE, None, "float64"),
    ("unsigned", rows_with(item_ids=np.array([1, 2, 1 << 63], np.uint64)), Reject.ITEM_ID, 2, "is above"),
    ("long string", rows_with(item_ids=["a", "b" * 257, "c"]), Reject.ITEM_ID, 1, "limit 256"),
    ("empty string", rows_with(item_ids=["a", "b", ""]), Reject.ITEM_ID, 2, "must not be empty"),
    ("surrogate", rows_with(item_ids=["a", "\ud800", "c"]), Reject.ITEM_ID, 1, "not valid Unicode"),
    ("servable", rows_with(servable=np.arange(3)), Reject.SHAPE, None, "int64, expected bool"),
    ("flag", rows_with(flags={"f": BOOLS[:2]}), Reject.SHAPE, None, "f: shape (2,)"),
    ("priority", rows_with(priority=np.array([1, np.nan, 2])), Reject.PRIORITY, 1, "nan is not finite"),
    ("texts", rows_with(priority=np.array(["a", "b", "c"])), Reject.SHAPE, None, "expected numbers"),
]


@pytest.mark.parametrize(
    ("rows", "reason", "row", "words"), [one[1:] for one in REJECTED], ids=[one[0] for one in REJECTED]
)
def test_bad_rows_are_named(rows: Rows, reason: Reject, row: int | None, words: str) -> None:
    with pytest.raises(RowError) as caught:
        build_index(rows, (2, 2))
    assert (caught.value.reason, caught.value.row) == (reason, row)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "values"),
    [("priority", np.array([1, 2])), ("flags", {"f": BOOLS[:2]}), ("servable", BOOLS[:2])],
    ids=["priority", "flag", "servable"],
)
def test_a_repeated_row_must_say_the_same(field: str, values: object) -> None:
    rows = Rows(item_ids=np.array([7, 7]), codes=np.array([[1], [1]]))
    with pytest.raises(RowError, match="item 7") as caught:
        build_index(replace(rows, **{field: values}))
    assert (caught.value.reason, caught.value.row) == (Reject.CONFLICT, 1)


def test_too_many_nodes() -> None:
    rows = Rows(item_ids=np.arange(5), codes=np.arange(5)[:, None])
    with pytest.raises(RowError, match="5 items, limit 4") as caught:
        build_index(rows, max_nodes=4)
    assert caught.value.reason is Reject.NODES
    assert build_index(rows, max_nodes=5).index.n_items == 5


def test_sizes_out_of_range() -> None:
    rows = Rows(item_ids=np.arange(1), codes=np.zeros((1, 1), int))
    with pytest.raises(RowError, match="limit 1 to 2147483647"):
        build_index(rows, [1 << 31])
    with pytest.raises(RowError, match="level 1: 0, limit 1 to"):
        build_index(rows, [0])
    with pytest.raises(RowError, match="level 2: code 4294967296, limit 2147483646") as caught:
        build_index(Rows(item_ids=np.arange(2), codes=np.array([[0, 0], [0, 1 << 32]])))
    assert caught.value.row == 1


def test_an_item_that_is_not_served_may_not_have_another_id() -> None:
    rows = [Row(1, (0,)), Row(1, (1,), servable=False), Row(2, (1,))]
    with pytest.raises(RowError) as caught:
        build(rows, (2,), allow_multi_sid=False)
    assert (caught.value.reason, caught.value.row) == (Reject.MULTI_SID, 1)
    index = build(rows, (2,)).index
    assert index.hidden_items.tolist() == [1]
    assert find_fault(index) is None


def test_bytes_of_a_million_ids() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2048, (100_000, 3), np.int32)
    index = build_index(Rows(item_ids=np.arange(100_000), codes=codes), (2048,) * 3).index
    nodes = [index.nodes(level) for level in range(4)]
    assert index.trie_nbytes == sum(2 * n for n in nodes[1:]) + sum(4 * (n + 1) for n in nodes[:3])
    assert index.bytes_per_sid <= 16
    shape = describe_index(index)
    assert shape.nbytes == index.nbytes == index.trie_nbytes + 4 * (nodes[3] + 1) + 20 * 100_000
    assert [one.nodes for one in shape.levels] == nodes[1:]
    assert shape.levels[0].max_children == nodes[1]


def test_damaged_indexes_are_seen() -> None:
    rows = [Row(i, (i % 3, i % 2)) for i in range(6)]
    sound = build([*rows, Row(9, (0, 0), servable=False)], (3, 2)).index

    def changed(array: np.ndarray, place: object, value: int) -> np.ndarray:
        array = array.copy()
        array[place] = value
        return array

    bad = [
        replace(sound, ptr=(changed(sound.ptr[0], 0, 1), sound.ptr[1])),
        replace(sound, ptr=(sound.ptr[0], changed(sound.ptr[1], 1, 0))),
        replace(sound, ptr=(sound.ptr[0], changed(sound.ptr[1], -1, 7))),
        replace(sound, codes=(changed(sound.codes[0], 2, 5), sound.codes[1])),
        replace(sound, codes=(changed(sound.codes[0], 2, 0), sound.codes[1])),
        replace(sound, item_ptr=changed(sound.item_ptr, 2, 1)),
        replace(sound, by_id=changed(sound.by_id, 0, 99)),
        replace(sound, by_id=changed(sound.by_id, 0, -1)),
        replace(sound, order=changed(sound.order, 0, 6)),
        replace(sound, order=changed(sound.order, 0, int(sound.order[1]))),
        replace(sound, hidden_codes=changed(sound.hidden_codes, (0, 1), 2)),
    ]
    texts = build([Row("é", (0, 0)), Row("é日", (1, 0))], (3, 2)).index
    assert texts.names is not None
    offsets, blob = texts.names.offsets, texts.names.blob
    bad += [
        replace(texts, names=names)
        for names in (
            Names(changed(offsets, 0, 1), blob),
            Names(changed(offsets, 1, 1), blob),
            Names(changed(offsets, 1, 0), blob),
            Names(offsets, changed(blob, 3, 0x80)),
            Names(offsets, changed(blob, 1, 0xAA)),
            Names(changed(offsets, 2, 9), blob),
            Names(offsets[:2], blob[:2]),
        )
    ]
    assert find_fault(sound) is None
    assert find_fault(texts) is None
    for index in bad:
        assert find_fault(index) is not None
