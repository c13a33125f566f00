"""MovieLens in its three forms: the bit `like`, what is refused, and what its publisher asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from relaygr.core.errors import ConfigError, DataError
from relaygr.data.describe import describe
from relaygr.data.readers.interface import Read
from relaygr.data.readers.movielens import MovieLensReader
from relaygr.data.write import write_events

HEAD = b"userId,movieId,rating,timestamp\n"


def read(folder: Path, data: bytes, **options: object) -> Read:
    file = folder / "ratings"
    file.write_bytes(data)
    return MovieLensReader(**options).read(file)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "likes"),
    [
        (HEAD + b"1,31,2.5,1260759144\n1,32,4.0,1260759144\n1,33,4.5,1260759144\n", [1, 3, 3]),
        (b"1::31::2::978300760\n1::32::4::978300760\n1::33::5::978300760\n", [1, 3, 3]),
        (b"196\t242\t3\t881250949\n196\t243\t4\t881250949\n196\t244\t5\t881250949\n", [1, 3, 3]),
    ],
)
def test_ratings_from_the_threshold_on_are_likes(tmp_path: Path, data: bytes, likes: list[int]) -> None:
    table = read(tmp_path, data).table
    assert table.action_names == ("engage", "like")
    assert table.actions.tolist() == likes
    assert read(tmp_path, data, like_from=5).table.actions.tolist()[:2] == [1, 1]
    assert read(tmp_path, data, like_from=0.5).table.actions.tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        ("1,31,0.4,1", "rating", "rating out of range: '0.4' is not in [0.5, 5]"),
        ("1,31,5.5,1", "rating", "is not in [0.5, 5]"),
        ("1,31,1e999,1", "rating", "not a number: '1e999'"),
        ("1,31,nan,1", "rating", "not a number: 'nan'"),
        ("1,31,,1", "rating", "not a number: ''"),
        ("1,tt31,4,1", "movieId", "not an integer"),
        ("1,31,4,nan", "timestamp", "not an integer: 'nan'"),
        ("1,31,4,1260759144000", "timestamp", "looks like milliseconds"),
        (",31,4,1", "userId", "empty user"),
        ("1,31,4", "", "wrong number of fields: 3, expected 4"),
    ],
)
@pytest.mark.parametrize("separator", [",", "::", "\t"])
def test_bad_ratings(tmp_path: Path, row: str, column: str, words: str, separator: str) -> None:
    lines = ["7,7,4,7", row]
    data = "".join(line.replace(",", separator) + "\n" for line in lines).encode()
    with pytest.raises(DataError) as caught:
        read(tmp_path, (HEAD if separator == "," else b"") + data)
    assert (caught.value.line, caught.value.column) == (3 if separator == "," else 2, column)
    assert words in caught.value.reason


@pytest.mark.parametrize(
    ("data", "column", "words"),
    [
        (b"", "", "empty file"),
        (b"userId,movieId,tag,timestamp\n1,2,3,4\n", "rating", "missing column; the header has 'userId'"),
        (b"1,2,4.0,4\n", "userId", "missing column"),
        (b"movieId,title,genres\n", "userId", "missing column"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, data: bytes, column: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, data, on_error="skip")
    assert (caught.value.line, caught.value.column) == (1, column)
    assert words in caught.value.reason


@pytest.mark.parametrize("stars", [0, 0.4, 5.5, float("nan"), float("inf")])
def test_a_threshold_outside_the_scale(stars: float) -> None:
    with pytest.raises(ConfigError, match=r"like_from: .* must be in \[0.5, 5\]"):
        MovieLensReader(like_from=stars)


def test_the_published_numbers(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    read = MovieLensReader().read(shared_data("ml-latest-small-2016/ratings.csv.gz"))
    assert read.skipped == ()
    assert "10.1145/2827872" in read.source
    found = describe(write_events(tmp_path / "d", read.table, name="", source=read.source, licence=""))
    assert (found.events, found.users, found.items, found.max_length) == (100_004, 671, 9_066, 2_391)
    assert (found.median_length, found.sessions, found.repeats) == (71, 5_818, 0)
    liked = int((read.table.actions & 2 != 0).sum())
    assert 0 < liked < found.events
