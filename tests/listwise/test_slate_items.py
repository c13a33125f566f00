"""Item tables: three forms of one table, lookups, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise.items import ItemTable, read_items
from relaygr.listwise.pool import MISSING

IDS = np.array([7, -3, 1 << 62])
AUTHORS = np.array([5, MISSING, 9])
VECTORS = np.array([[3.0, 4.0], [0.0, -2.0], [1.0, 0.0]])


def written(folder: Path, form: str) -> Path:
    path = folder / f"items{form}"
    if form == ".npz":
        np.savez(path, item_ids=IDS, author=AUTHORS, vectors=VECTORS)
    elif form == ".csv":
        rows = ["vector_1,item_id,author,vector_0"]
        for item, author, (x, y) in zip(IDS, AUTHORS, VECTORS, strict=True):
            rows.append(f"{y},{item},{'' if author == MISSING else author},{x}")
        path.write_text("\n".join(rows) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        authors = [None if author == MISSING else int(author) for author in AUTHORS]
        columns = {"item_id": IDS, "author": authors, "vector": VECTORS.tolist()}
        parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("form", [".npz", ".csv", ".parquet"])
def test_every_form_is_the_same_table(tmp_path: Path, form: str) -> None:
    table = read_items(written(tmp_path, form))
    assert len(table) == 3
    facts = table(np.array([1 << 62, 8, 7, -3]))
    assert facts.known.tolist() == [True, False, True, True]
    assert {name: values.tolist() for name, values in facts.attributes.items()} == {
        "author": [9, MISSING, 5, MISSING]
    }
    assert facts.vectors is not None
    wanted = [[1, 0, 0], [0, 0, 1], [0.6, 0.8, 0], [0, -1, 0]]
    np.testing.assert_allclose(facts.vectors, wanted, atol=1e-6)


def test_an_empty_table_knows_nobody() -> None:
    table = ItemTable(np.zeros(0, np.int64), {"author": np.zeros(0, np.int64)}, np.zeros((0, 2)))
    facts = table(np.array([1, 2]))
    assert not facts.known.any()
    assert facts.attributes["author"].tolist() == [MISSING, MISSING]
    assert facts.vectors is not None
    assert facts.vectors.tolist() == [[0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("item_id,author\n1,x\n", "row 1, author: 'x' is not an integer"),
        ("item_id,author\n,3\n", "row 1, item_id: '' is not an integer"),
        (f"item_id,author\n1,{1 << 63}\n", "is not an integer of 64 bits"),
        ("item_id,author\n1,2\n1,3\n", "item_id: 1 stands in two rows"),
        ("item_id,author\n1\n", "row 1: 1 cells, the header has 2"),
        ("author,author\n1,2\n", "names a column twice"),
        ("author\n1\n", "item_id: is missing"),
        ("item_id,vector_0\n1,x\n", "row 1, vector_0: 'x' is not a number"),
        ("item_id,vector_1\n1,2\n", "numbered [1], wanted 0..0"),
        ("item_id,vector_0\n4,0\n", "that of item 4 has no length above 0"),
    ],
)
def test_a_wrong_csv_says_where(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "items.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        read_items(path)
    assert str(path) in str(found.value)
    assert part in str(found.value)


def test_wrong_files_and_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "items.npz"
    for arrays, part in (
        ({"author": IDS}, "item_ids: is missing"),
        ({"item_ids": IDS, "author": AUTHORS[:2]}, "author: int64 [2], wanted 3 integers"),
        ({"item_ids": IDS, "author": VECTORS[:, 0]}, "author: float64 [3], wanted 3 integers"),
        ({"item_ids": IDS, "vectors": VECTORS[:2]}, "wanted numbers [3, width]"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(ConfigError, match=r"items\.npz") as found:
            read_items(path)
        assert part in str(found.value)
    path.write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"is not an \.npz"):
        read_items(path)
    damaged = tmp_path / "items.parquet"
    damaged.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"damaged Parquet|needs pyarrow"):
        read_items(damaged)
