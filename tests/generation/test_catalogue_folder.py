"""A folder of a catalogue: what comes back, what is refused, and what is never touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from catalogue_reference import Row, build, catalogues
from hypothesis import given, settings

from relaygr.core.errors import BackendError, ConfigError
from relaygr.generation.catalogue.artefact import (
    Catalogue,
    make_catalogue,
    open_catalogue,
    read_header,
    write_catalogue,
)
from relaygr.generation.catalogue.errors import ArtefactError
from relaygr.generation.catalogue.header import Header, arrays_of
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked

ROWS = [
    Row("a", (0, 1), flags={"fresh": True}),
    Row("b", (1, 1)),
    Row("c", (1, 1)),
    Row("d", (1, 0), servable=False),
]


def sample() -> Catalogue:
    return make_catalogue(
        build(ROWS, (2, 2)).index,
        tokens=stacked((2, 2), 5),
        template=PromptTemplate(before=(1,)),
        source="rows",
        as_of_s=12.5,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_catalogue(tmp_path / "c", sample())


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_everything_comes_back(folder: Path, mapped: bool) -> None:
    found, given_one = open_catalogue(folder, mapped=mapped), sample()
    same(found, given_one)
    assert found.path == folder
    assert found.label == given_one.label
    assert (found.header.as_of_s, found.header.source) == (12.5, "rows")
    assert found.header.tokens == stacked((2, 2), 5)
    assert found.header.template == PromptTemplate(before=(1,))
    for array in arrays_of(found.index).values():
        assert not array.flags.writeable
        assert type(array) is np.ndarray


def same(one: Catalogue, two: Catalogue) -> None:
    first, second = arrays_of(one.index), arrays_of(two.index)
    assert list(first) == list(second)
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert np.array_equal(array, second[name])


@settings(max_examples=15, deadline=None)
@given(catalogues(strings=True, flags=("a", "b")))
def test_any_catalogue_comes_back(tmp_path_factory, given_rows) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("any") / "c"
    catalogue = make_catalogue(build(*given_rows).index)
    same(open_catalogue(write_catalogue(folder, catalogue)), catalogue)
    shutil.rmtree(folder.parent)


def test_the_label_is_of_the_content_alone() -> None:
    index = build(ROWS, (2, 2)).index
    one, two = make_catalogue(index, source="x", as_of_s=1), make_catalogue(index, source="y", as_of_s=2)
    assert one.label == two.label
    assert one.header.digest != two.header.digest
    assert make_catalogue(index, tokens=stacked((2, 2))).label != one.label
    assert make_catalogue(build(ROWS[:3], (2, 2)).index).label != one.label


def every_file(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_any_changed_byte_is_seen(folder: Path) -> None:
    for name in every_file(folder):
        data = (folder / name).read_bytes()
        for at in sorted({0, 7, len(data) // 2, len(data) - 2, len(data) - 1} & set(range(len(data)))):
            (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            if name == "catalog.json" and at == len(data) - 1:
                continue  # the end of the line
            with pytest.raises(ArtefactError):
                open_catalogue(folder)
        (folder / name).write_bytes(data)
    open_catalogue(folder)


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_any_missing_cut_or_longer_file_is_seen(folder: Path, mapped: bool) -> None:
    for name in every_file(folder):
        path, data = folder / name, (folder / name).read_bytes()
        for cut in (0, 1, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:cut])
            with pytest.raises(ArtefactError, match=name):
                open_catalogue(folder, mapped=mapped)
        path.write_bytes(data + b"x")
        with pytest.raises(ArtefactError, match=name):
            open_catalogue(folder, mapped=mapped)
        path.unlink()
        with pytest.raises(ArtefactError, match=f"{name}: cannot be read: No such file"):
            open_catalogue(folder, mapped=mapped)
        path.mkdir()
        with pytest.raises(ArtefactError, match=f"{name}: cannot be read: Is a directory"):
            open_catalogue(folder, mapped=mapped)
        path.rmdir()
        path.write_bytes(data)


def test_foreign_arrays_are_refused(folder: Path) -> None:
    path = folder / "items.npy"
    np.save(path, np.zeros(3))
    with pytest.raises(ArtefactError, match=r"items.npy: is not an array of whole numbers"):
        open_catalogue(folder)
    np.save(path, np.zeros((3, 1), np.int32))
    with pytest.raises(ArtefactError, match=r"items.npy: int32 \[3, 1\], expected int64 \[3\]"):
        open_catalogue(folder)
    np.save(path, np.array([{}, 1, 2]), allow_pickle=True)
    with pytest.raises(ArtefactError, match=r"items.npy: is not an array of whole numbers"):
        open_catalogue(folder)
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00" + b"[" * 16)
    with pytest.raises(ArtefactError, match=r"items.npy: is not an array"):
        open_catalogue(folder)
    np.save(folder / "hidden_codes.npy", np.asfortranarray(np.zeros((4, 2), np.int32)))
    np.save(path, sample().index.items)
    with pytest.raises(ArtefactError, match="hidden_codes"):
        open_catalogue(folder)


def resign(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change the header as somebody would who also knows how it is hashed."""
    fields = json.loads((folder / "catalog.json").read_text())
    change(fields)
    header = msgspec.convert(fields, Header)
    (folder / "catalog.json").write_bytes(msgspec.json.encode(header.with_digest()))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", "other", "format 'other'"),
        ("format_version", 2, "format_version 2, this release reads 1"),
        ("sizes", (2,), "1 sizes and 2 nodes"),
        ("sizes", (), "0 sizes"),
        ("sizes", (2, 0), r"sizes \[2, 0\], limit 1"),
        ("nodes", (2, 1 << 31), "limit 1 to 2147483647"),
        ("items", 0, "items 0, limit 1"),
        ("items", 1 << 31, "limit 1 to 2147483647"),
        ("hidden", -1, "hidden -1 is out of range"),
        ("strings", 1 << 60, "is out of range"),
        ("flags", ("b", "a"), "flags are not ascending"),
        ("hidden", 2, r"hidden_items.npy: int64 \[1\], expected int64 \[2\]"),
        ("content", "0" * 32, "the arrays are not those"),
    ],
)
def test_headers_that_can_not_be(folder: Path, field: str, value: object, words: str) -> None:
    resign(folder, lambda fields: fields.update({field: value}))
    with pytest.raises(ArtefactError, match=words):
        open_catalogue(folder)


def test_a_well_signed_wrong_pointer_is_refused(folder: Path) -> None:
    catalogue = open_catalogue(folder, mapped=False)
    arrays = dict(arrays_of(catalogue.index))
    arrays["ptr_2"] = np.array([0, 0, 2], np.int32)
    np.save(folder / "ptr_2.npy", arrays["ptr_2"])
    content = catalogue.header.content_of(arrays)
    resign(folder, lambda fields: fields.update(content=content))
    with pytest.raises(ArtefactError, match="ptr_2: not ascending at 1"):
        open_catalogue(folder)


def test_headers_that_are_none(folder: Path) -> None:
    path = folder / "catalog.json"
    for data in (
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        path.read_bytes().replace(b'"items":3', b'"items":3.5'),
    ):
        path.write_bytes(data)
        with pytest.raises(ArtefactError, match="is not the header of a catalogue"):
            open_catalogue(folder)


def test_a_catalogue_is_replaced_and_nothing_else_is(folder: Path) -> None:
    other = make_catalogue(build([Row(1, (0,))], (1,)).index)
    write_catalogue(folder, other)
    assert open_catalogue(folder).label == other.label
    assert [one.name for one in folder.parent.iterdir()] == ["c"]
    assert every_file(folder) == every_file(write_catalogue(folder.parent / "d", other))
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"'notes.txt', which is no part of a catalogue"):
        write_catalogue(folder, sample())
    assert (folder / "notes.txt").read_text() == "mine"
    assert open_catalogue(folder).label == other.label


def test_folders_that_are_no_catalogues_stay(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "catalog.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a catalogue"):
        write_catalogue(kept, sample())
    (kept / "catalog.json").unlink()
    (kept / "items.npy").mkdir()
    with pytest.raises(ConfigError, match="no part of a catalogue"):
        write_catalogue(kept, sample())
    assert every_file(kept) == ["items.npy"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        write_catalogue(tmp_path / "file", sample())
    with pytest.raises(ConfigError, match="limit 224"):
        write_catalogue(tmp_path / ("x" * 250), sample())
    (tmp_path / "empty").mkdir()
    write_catalogue(tmp_path / "empty", sample())
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(ConfigError, match="no part of a catalogue"):
        write_catalogue(tmp_path / "link", sample())


def test_a_failed_write_leaves_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    before = read_header(folder)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BackendError, match="No space left"):
        write_catalogue(folder, make_catalogue(build([Row(1, (0,))], (1,)).index))
    assert read_header(folder) == before
    open_catalogue(folder)
    assert [one.name for one in folder.parent.iterdir()] == ["c"]


def test_a_mapped_catalogue_outlives_its_replacement(folder: Path) -> None:
    found = open_catalogue(folder)
    write_catalogue(folder, make_catalogue(build([Row(1, (0,))], (1,)).index))
    same(found, sample())


def test_what_is_no_path_and_no_plain_file_is_refused_at_once(folder: Path, tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for path in ("a\0b", circle):
        with pytest.raises(ArtefactError, match=r"is no path|cannot be read"):
            open_catalogue(path)
    # Opened for reading, a pipe that nobody writes to never answers.
    for name in ("catalog.json", "items.npy"):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ArtefactError, match=f"{name}: is not a plain file"):
            open_catalogue(folder)
        (folder / name).unlink()
        (folder / name).write_bytes(kept)
    same(open_catalogue(folder), sample())
