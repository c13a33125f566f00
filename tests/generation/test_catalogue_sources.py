"""Files of items and codes: what they mean, and which line is wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from catalogue_reference import prefixes

from relaygr.core.errors import ConfigError
from relaygr.generation.catalogue.errors import Reject, SourceError
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.source import ReadOptions
from relaygr.generation.catalogue.sources import open_source

BIG = (1 << 53) + 1


def as_dict(index: CatalogueIndex) -> dict[tuple[int, ...], list[int | str]]:
    return {sid: index.item_ids(leaf) for leaf, sid in enumerate(prefixes(index)[-1])}


def read(path: Path, data: bytes | str, options: ReadOptions | None = None) -> CatalogueIndex:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return open_source(path, options).build().index


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        {"item_id": BIG, "token_ids": [1, 2], "metadata": {"fresh": True, "title": "x"}},
        {"item_id": 5, "token_ids": [1, 2], "priority": 0.5},
        {"item_id": 6, "token_ids": [0, 2], "metadata": None},
        {"item_id": 7, "token_ids": [0, 2], "servable": False},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    index = read(tmp_path / "a.jsonl", text, ReadOptions(flags=("fresh",)))
    assert as_dict(index) == {(0, 2): [6], (1, 2): [5, BIG]}
    assert index.flag("fresh").tolist() == [False, False, True]
    assert index.hidden_items.tolist() == [7]


def test_json_lines_of_strings(tmp_path: Path) -> None:
    index = read(tmp_path / "a.jsonl", '{"item_id":"7","token_ids":[1]}\n{"item_id":"é","token_ids":[0]}\n')
    assert as_dict(index) == {(0,): ["é"], (1,): ["7"]}


def test_maps(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert as_dict(read(path, f'{{"{BIG}": [1, 0], "-3": [0, 0]}}')) == {(0, 0): [-3], (1, 0): [BIG]}
    assert as_dict(read(path, '{"007": [1], "7": [0]}')) == {(0,): ["7"], (1,): ["007"]}
    assert as_dict(read(path, '{"-0": [1]}')) == {(1,): ["-0"]}
    assert as_dict(read(path, '{"9223372036854775808": [1]}')) == {(1,): ["9223372036854775808"]}
    assert as_dict(read(path, '{"7": [0]}', ReadOptions(text_ids=True))) == {(0,): ["7"]}


def flat(*records: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack(f"<q{len(codes)}i", item, *codes) for item, *codes in records)


def extended(item: int, first: bytes, second: bytes, *codes: int) -> bytes:
    head = struct.pack("<qI", item, len(first)) + first + struct.pack("<I", len(second)) + second
    return head + struct.pack(f"<{len(codes)}i", *codes)


def test_flat_files(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    options = ReadOptions(form="flat", levels=2)
    assert as_dict(read(path, flat((BIG, 1, 2), (-4, 0, 2)), options)) == {(0, 2): [-4], (1, 2): [BIG]}
    data = extended(BIG, "é".encode(), b"", 1, 2) + extended(4, b"b", b"movie", 0, 2)
    options = ReadOptions(form="flat-extended", levels=2)
    assert as_dict(read(path, data, options)) == {(0, 2): [4], (1, 2): [BIG]}
    options = ReadOptions(form="flat-extended", levels=2, text_ids=True)
    assert as_dict(read(path, data, options)) == {(0, 2): ["b"], (1, 2): ["é"]}


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(
        path,
        item_ids=np.array([3, 4, 5]),
        codes=np.array([[1], [1], [0]], np.int32),
        priority=np.array([0, 1, 0]),
        servable=np.array([True, True, False]),
        flag_fresh=np.array([True, False, False]),
        other=np.zeros(7),
    )
    index = open_source(path, ReadOptions(flags=("fresh",))).build().index
    assert as_dict(index) == {(1,): [4, 3]}
    assert index.flag("fresh").tolist() == [False, True]
    np.savez(path, item_id=np.array(["a", "é"]), codes=np.array([[1], [0]]))
    assert as_dict(open_source(path).build().index) == {(0,): ["é"], (1,): ["a"]}


def test_model_tokens_become_codes(tmp_path: Path) -> None:
    options = ReadOptions(first_tokens=(100, 110))
    index = read(tmp_path / "a.json", '{"1": [101, 112], "2": [100, 110]}', options)
    assert as_dict(index) == {(0, 0): [2], (1, 2): [1]}
    with pytest.raises(SourceError, match="item '1': codes: level 2: token 109, limit at least 110"):
        read(tmp_path / "a.json", '{"1": [101, 109]}', options)
    with pytest.raises(ConfigError, match=r"2 levels, .* has 1 codes"):
        read(tmp_path / "a.json", '{"1": [101]}', options)


GOOD = '{"item_id":1,"token_ids":[1,2]}\n'
LINES = [
    ("not json", GOOD + "{", "a.jsonl:2:", None),
    ("no utf-8", GOOD.encode() + b'{"item_id":"\xff","token_ids":[1,2]}', "a.jsonl:2:", None),
    ("nested", "[" * 5000, "a.jsonl:1:", None),
    ("array", GOOD + "[]", "a.jsonl:2:", None),
    ("missing", GOOD + '{"item_id":1}', "a.jsonl:2: Object missing required field `token_ids`", None),
    (
        "unknown key",
        GOOD[:-2] + ',"servible":false}',
        "a.jsonl:1: Object contains unknown field `servible`",
        None,
    ),
    ("float id", '{"item_id":1.0,"token_ids":[1]}', "a.jsonl:1: Expected `int | str`, got `float`", None),
    ("bool id", '{"item_id":true,"token_ids":[1]}', "a.jsonl:1: Expected `int | str`, got `bool`", None),
    ("null code", '{"item_id":1,"token_ids":[1,null]}', "$.token_ids[1]", None),
    (
        "large id",
        '{"item_id":9223372036854775808,"token_ids":[1]}',
        "a.jsonl:1: item_id: 9223372036854775808",
        Reject.ITEM_ID,
    ),
    (
        "large code",
        '{"item_id":1,"token_ids":[9223372036854775808]}',
        "a.jsonl:1: token_ids: level 1: code",
        Reject.RANGE,
    ),
    (
        "mixed ids",
        GOOD + '{"item_id":"a","token_ids":[1,2]}',
        "a.jsonl:2: item_id: a string, those before",
        None,
    ),
    (
        "mixed ids 2",
        '{"item_id":"a","token_ids":[1]}\n' + GOOD,
        "a.jsonl:2: item_id: a number, those before",
        None,
    ),
    (
        "depth",
        GOOD + "\n" + '{"item_id":2,"token_ids":[1]}',
        "a.jsonl:3: token_ids: 1 codes, expected 2",
        Reject.DEPTH,
    ),
    (
        "no codes",
        '{"item_id":2,"token_ids":[]}',
        "a.jsonl:1: token_ids: 0 codes, limit at least 1",
        Reject.DEPTH,
    ),
    (
        "negative",
        GOOD + '\n{"item_id":2,"token_ids":[1,-2]}',
        "a.jsonl:3: codes: level 2: code -2",
        Reject.NEGATIVE,
    ),
    (
        "two sids",
        GOOD + '{"item_id":1,"token_ids":[1,3]}',
        "a.jsonl:2: codes: item 1 has [1, 3]",
        Reject.MULTI_SID,
    ),
    ("empty", "\n\n", "a.jsonl: holds no items, limit at least 1", Reject.EMPTY),
    ("flag", GOOD[:-2] + ',"metadata":{"f":1}}', "a.jsonl:1: metadata.f: int, expected true or false", None),
    ("metadata", GOOD[:-2] + ',"metadata":[1]}', "a.jsonl:1: metadata: Expected", None),
    (
        "long line",
        GOOD + '{"item_id":2,"token_ids":[' + " " * (1 << 20),
        "a.jsonl:2: more than 1048576 bytes",
        None,
    ),
    ("text", '{"item_id":"","token_ids":[1]}', "a.jsonl:1: item_ids: must not be empty", Reject.ITEM_ID),
]


@pytest.mark.parametrize(
    ("data", "words", "reason"), [one[1:] for one in LINES], ids=[one[0] for one in LINES]
)
def test_bad_lines(tmp_path: Path, data: str | bytes, words: str, reason: Reject | None) -> None:
    with pytest.raises(SourceError) as caught:
        read(tmp_path / "a.jsonl", data, ReadOptions(flags=("f",)))
    assert words in str(caught.value)
    assert caught.value.reason is reason


MAPS = [
    ("not json", '{"1": [1],\n "2" [1]}', "a.json:2: Expecting ':' delimiter"),
    ("array", "[1]", "a.json: holds list, expected one object"),
    ("number", "1", "holds int"),
    ("no utf-8", b'{"\xff": [1]}', "a.json:byte 2: is not UTF-8"),
    ("twice", '{"1": [1], "1": [2]}', "a.json:item '1': codes: item 1 has [2], but [1] in row 0"),
    ("object", '{"1": {}}', "item '1': codes: _Pairs, expected a list"),
    ("float", '{"1": [1], "2": [1.0]}', "item '2': codes: level 1: '1.0', expected a whole number"),
    ("bool", '{"1": [true]}', "level 1: 'True', expected a whole number"),
    ("text", '{"1": ["1"]}', "level 1: '1', expected a whole number"),
    ("nested", '{"1": [[1]]}', "level 1: '[1]', expected a whole number"),
    ("deep", '{"1": ' + "[" * 200_000, "a.json: is not JSON"),
    ("nan", '{"1": [NaN]}', "NaN is no JSON number"),
    ("digits", '{"1": [' + "9" * 5000 + "]}", "a.json: is not JSON: Exceeds the limit"),
    ("large", '{"1": [18446744073709551616]}', "code 18446744073709551616 is beyond 64 bits"),
    ("empty", "{}", "a.json: holds no items"),
    ("depth", '{"1": [1], "2": [1, 2]}', "item '2': codes: 2 codes, expected 1"),
]


@pytest.mark.parametrize(("data", "words"), [one[1:] for one in MAPS], ids=[one[0] for one in MAPS])
def test_bad_maps(tmp_path: Path, data: str | bytes, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        read(tmp_path / "a.json", data)
    assert words in str(caught.value)


WHOLE = extended(1, b"a", b"b", 1, 2)
FLAT = [
    ("flat empty", "flat", b"", "holds no items"),
    (
        "flat cut",
        "flat",
        flat((1, 1, 2), (2, 1, 2))[:-3],
        "a.bin:record 1: ends after 13 of 16 bytes (8 + 4 x 2",
    ),
    ("flat negative", "flat", flat((1, 1, 2), (2, 1, -2)), "a.bin:record 1: codes: level 2: code -2"),
    ("empty", "flat-extended", b"", "holds no items"),
    ("cut id", "flat-extended", WHOLE + b"123", "a.bin:record 1: item_id: the file ends here"),
    ("cut length", "flat-extended", WHOLE[:10], "record 0: first string: the file ends here"),
    ("cut string", "flat-extended", WHOLE[:12], "record 0: first string: 1 bytes, limit 0"),
    ("cut codes", "flat-extended", WHOLE[:-1], "record 0: codes: the file ends here"),
    ("long", "flat-extended", struct.pack("<qI", 1, 1 << 31), "first string: 2147483648 bytes, limit 0"),
    ("no utf-8", "flat-extended", extended(1, b"\xff", b"", 1, 2), "record 0: first string: is not UTF-8"),
]


@pytest.mark.parametrize(("form", "data", "words"), [one[1:] for one in FLAT], ids=[one[0] for one in FLAT])
def test_bad_flat_files(tmp_path: Path, form: str, data: bytes, words: str) -> None:
    options = ReadOptions(form=form, levels=2, text_ids=form != "flat")  # type: ignore[arg-type]
    with pytest.raises(SourceError) as caught:
        read(tmp_path / "a.bin", data, options)
    assert words in str(caught.value)


def test_bad_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(SourceError, match=r"is not an .npz of arrays"):
        read(path, b"PK\x03\x04 no zip")
    with pytest.raises(SourceError, match=r"is not an .npz of arrays"):
        read(path, b"")
    np.savez(path, item_ids=np.array([1]))
    with pytest.raises(SourceError, match="codes: is missing; there are item_ids"):
        open_source(path)
    np.savez(path, item_ids=np.array([{}]), codes=np.array([[1]]))
    with pytest.raises(SourceError, match=r"is not an .npz of arrays"):
        open_source(path)
    np.savez(path, item_ids=np.array([1, 2]), codes=np.array([[1], [-1]]))
    with pytest.raises(SourceError, match=r"a.npz:row 1: codes: level 1: code -1 is negative"):
        open_source(path).build()
    np.savez(path, item_ids=np.array([1.5]), codes=np.array([[1]]))
    with pytest.raises(SourceError, match="item_ids: float64"):
        open_source(path)
    np.savez(path, item_ids=np.array([1]), codes=np.array([[1]]))
    with pytest.raises(SourceError, match="flag_f: is missing"):
        open_source(path, ReadOptions(flags=("f",)))
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(SourceError, match=r"is not an .npz of arrays"):
        open_source(path)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a.bin ends in none of .jsonl, .json, .npz"):
        open_source(tmp_path / "a.bin")
    with pytest.raises(ConfigError, match="levels: a flat file does not say"):
        open_source(tmp_path / "a.bin", ReadOptions(form="flat"))
    with pytest.raises(ConfigError, match="levels: 0, limit 1 to 64"):
        open_source(tmp_path / "a.bin", ReadOptions(form="flat", levels=0))
    with pytest.raises(ConfigError, match="no strings in the form flat"):
        open_source(tmp_path / "a.bin", ReadOptions(form="flat", levels=1, text_ids=True))
    with pytest.raises(ConfigError, match="none in the form map"):
        open_source(tmp_path / "a.json", ReadOptions(flags=("f",)))
    with pytest.raises(SourceError, match=r"a.json: cannot be read: No such file"):
        open_source(tmp_path / "a.json")
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(SourceError, match=r"d.jsonl: cannot be read: Is a directory"):
        open_source(tmp_path / "d.jsonl")
