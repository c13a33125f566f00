"""Records on disk: what was written is what is read, and what is damaged or not finished is neither."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch

from relaygr.cache.digests import DigestChain
from relaygr.cache.disk_entry import Place
from relaygr.cache.interface import PageSum
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref
from relaygr.memory.disk import RecordReader, RecordWriter, SegmentFiles, scan
from relaygr.memory.disk_folder import DiskFolder
from relaygr.memory.disk_forgotten import COPIES, ForgottenLog
from relaygr.memory.disk_record import (
    ALIGN,
    HEADER_BYTES,
    Header,
    Kind,
    Meta,
    decode,
    encode,
    record_bytes,
    unpack,
)
from relaygr.memory.formats import host_format
from relaygr.memory.host import HostPool, Piece
from relaygr.memory.layout import DTYPES, KvLayout
from relaygr.memory.pool import PagePool

FP = Fingerprint(bytes(range(16)))


def content(user: str = "ü/ser\n", tokens: int = 11, close: bool = True) -> Ref:
    chain = DigestChain(Tenant("ten ant"), FP, 3, UserId(user), -5, 4, 8)
    chain.extend(struct.pack("<3q", 7, 8, 9))
    if close:
        chain.close_segment()
    chain.extend(struct.pack(f"<{tokens - 3}q", *range(tokens - 3)))
    return chain.ref()


META = Meta(content(), "layout", (PageSum(0, 1), PageSum(2, 0xFFFFFFFF)))


def written(
    files: SegmentFiles, at: int, number: int, data: bytes, user: str = "u", commit: bool = True
) -> Place:
    meta = encode(META._replace(ref=content(user)))
    place = Place(1, at, record_bytes(len(meta), len(data)))
    writer = RecordWriter(files, place, number, meta, len(data))
    writer.begin()
    for start in range(0, len(data), 7):
        writer.add(data[start : start + 7])
    if commit:
        writer.commit()
    return place


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> SegmentFiles:
    return SegmentFiles(tmp_path)


def segment(tmp_path: Path) -> Path:
    return tmp_path / f"{1:012}.seg"


@pytest.mark.parametrize(
    "ref",
    [
        content(),
        content(tokens=4),
        content(close=False),
        DigestChain(Tenant("t"), FP, 1, UserId("u"), 0, 4, 8).ref(),
    ],
)
def test_what_a_record_says_of_itself_is_what_was_said(ref: Ref) -> None:
    meta = META._replace(ref=ref)
    found = decode(encode(meta))
    assert found is not None
    assert (found.layout_id, found.sums) == (meta.layout_id, meta.sums)
    for name in Ref._fields:
        assert getattr(found.ref, name) == getattr(ref, name)


def test_what_cannot_have_been_written_is_not_read() -> None:
    data = encode(META)
    for size in range(0, len(data), 5):
        assert decode(data[:size]) is None
    ref = META.ref
    for wrong in (
        ref._replace(tokens=ref.tokens + 1),
        ref._replace(page_ends=(3, 3, 11)),
        ref._replace(page_ends=ref.page_ends[:-1]),
        ref._replace(records=ref.records[:-1]),
        ref._replace(digests=ref.digests[:-1]),
    ):
        assert decode(encode(META._replace(ref=wrong))) is None
    with pytest.raises(ValueError, match="digests"):
        encode(META._replace(ref=ref._replace(digests=(b"short",))))


def test_a_header_is_whole_or_none() -> None:
    header = Header(Kind.ENTRY, 1 << 40, 300, 5, 1 << 35, 6)
    data = header.pack()
    assert len(data) == HEADER_BYTES <= ALIGN
    assert unpack(data + b"more") == header
    for place in range(len(data)):
        assert unpack(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]) is None
    assert unpack(data[:-1]) is None
    fields = struct.pack("<4sHHQIIQI", b"RGRD", 1, 9, 1, 0, 0, 0, 0)
    assert unpack(fields + struct.pack("<I", zlib.crc32(fields))) is None, "of no known kind"


def test_data_come_back_part_by_part(files: SegmentFiles) -> None:
    data = bytes(range(200))
    place = written(files, 128, 5, data)
    reader = RecordReader(files, place, 5, len(data))
    parts = [reader.read(size) for size in (1, 99, 100)]
    assert not RecordReader(files, place, 5, len(data)).whole
    assert b"".join(part or b"" for part in parts) == data
    assert reader.whole
    half = RecordReader(files, place, 5, len(data))
    half.read(100)
    assert not half.whole
    assert RecordReader(files, place, 6, len(data)).read(1) is None, "another record"
    assert RecordReader(files, place, 5, len(data) + 1).read(1) is None, "of another size"
    assert RecordReader(files, Place(2, 0, 64), 5, 1).read(1) is None, "there is no such file"


def test_too_few_or_too_many_bytes_are_no_record(files: SegmentFiles) -> None:
    writer = RecordWriter(files, Place(1, 0, 512), 1, encode(META), 10)
    writer.begin()
    writer.add(bytes(9))
    with pytest.raises(ValueError, match="9 bytes, 10 were announced"):
        writer.commit()
    with pytest.raises(ValueError, match="11 bytes, limit 10"):
        writer.add(bytes(2))
    assert RecordReader(files, Place(1, 0, 512), 1, 10).read(10) is None


def test_a_scan_finds_what_is_finished_and_steps_over_the_rest(files: SegmentFiles, tmp_path: Path) -> None:
    at, places = 0, []
    for number, (user, commit) in enumerate((("a", True), ("b", False), ("c", True)), start=1):
        places.append(written(files, at, number, bytes(300), user, commit))
        at += places[-1].nbytes
    found = scan(files, 1)
    assert [(one.ref.user, one.number, one.place) for one in found.segment.entries] == [
        ("a", 1, places[0]), ("c", 3, places[2]),
    ]  # fmt: skip
    assert [one.sums for one in found.segment.entries] == [META.sums] * 2
    assert (found.torn, found.damaged) == (1, 0)
    assert found.segment.nbytes >= segment(tmp_path).stat().st_size
    assert files.numbers() == [1]


@pytest.mark.parametrize("part", [3, 20, HEADER_BYTES + 30])
def test_a_scan_goes_on_behind_what_is_damaged(files: SegmentFiles, tmp_path: Path, part: int) -> None:
    places, at = [], 0
    for number in (1, 2, 3):
        places.append(written(files, at, number, b"RGRD" * 500, f"u{number}"))
        at += places[-1].nbytes
    raw = bytearray(segment(tmp_path).read_bytes())
    raw[places[1].offset + part] ^= 1
    segment(tmp_path).write_bytes(raw)
    found = scan(files, 1)
    assert [one.number for one in found.segment.entries] == [1, 3]
    assert (found.torn, found.damaged) == (0, 1)


def test_a_scan_of_a_file_that_ends_anywhere(files: SegmentFiles, tmp_path: Path) -> None:
    first = written(files, 0, 1, bytes(100), "a")
    written(files, first.nbytes, 2, bytes(100), "b")
    raw = segment(tmp_path).read_bytes()
    for size in range(0, len(raw), 9):
        segment(tmp_path).write_bytes(raw[:size])
        found = scan(files, 1)
        numbers = [one.number for one in found.segment.entries]
        assert numbers == ([1] if size >= first.nbytes - ALIGN and numbers else [])
        assert found.damaged == 0
    segment(tmp_path).write_bytes(raw)
    assert [one.number for one in scan(files, 1).segment.entries] == [1, 2]


def test_removed_files_are_gone_and_again_is_a_no_op(files: SegmentFiles, tmp_path: Path) -> None:
    written(files, 0, 1, b"x")
    files.remove(1)
    files.remove(1)
    files.sync_folder()
    assert list(tmp_path.iterdir()) == []
    files.close()


def test_who_was_forgotten_is_there_in_the_next_process(tmp_path: Path) -> None:
    log, one, other = ForgottenLog(tmp_path), (Tenant("t"), UserId("u\n1")), (Tenant("tu"), UserId("\n1"))
    assert (log.of(one), log.latest) == (0, 0)
    log.add(one, 7)
    log.add(one, 5)
    again = ForgottenLog(tmp_path)
    assert (again.of(one), again.of(other), again.latest, again.lines) == (7, 0, 7, 4)
    again.rewrite({other: 9})
    last = ForgottenLog(tmp_path)
    assert (last.of(one), last.of(other)) == (0, 9)
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("name", COPIES)
def test_one_copy_of_who_was_forgotten_is_enough(name: str, tmp_path: Path) -> None:
    users = [(Tenant("t"), UserId(f"u{number}")) for number in range(3)]
    log = ForgottenLog(tmp_path)
    for number, user in enumerate(users, start=1):
        log.add(user, number)
    whole = (tmp_path / name).read_bytes()
    for place in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
        assert [ForgottenLog(tmp_path).of(user) for user in users] == [1, 2, 3]
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    other = next(one for one in COPIES if one != name)
    (tmp_path / other).unlink()
    (tmp_path / other).mkdir()  # it cannot be written
    (tmp_path / other).rmdir()
    log = ForgottenLog(tmp_path)
    log.add(users[2], 9)  # behind an unfinished line
    assert ForgottenLog(tmp_path).of(users[2]) == 9


def test_one_writable_copy_is_enough_and_none_is_an_error(tmp_path: Path) -> None:
    log, user = ForgottenLog(tmp_path), (Tenant("t"), UserId("u"))
    (tmp_path / COPIES[0]).mkdir()
    log.add(user, 3)
    assert (tmp_path / COPIES[1]).exists()
    (tmp_path / COPIES[1]).unlink()
    (tmp_path / COPIES[1]).mkdir()
    with pytest.raises(OSError, match="directory"):
        log.add(user, 4)


def test_a_folder_is_of_one_process_and_one_model(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "disk"
    folder = DiskFolder(root, FP, "layout")
    with pytest.raises(BlockingIOError):
        DiskFolder(root, FP, "layout")
    (folder.path / f"{1:012}.seg").write_bytes(b"x")
    (folder.path / "notes.txt").write_text("not ours")
    folder.close()
    other = DiskFolder(root, FP, "another layout")
    assert other.path != folder.path
    with pytest.raises(OSError, match="not empty"):  # what is not ours is never removed
        other.clear(keep_own=True)
    assert (folder.path / "notes.txt").exists()
    (folder.path / "notes.txt").unlink()
    other.clear(keep_own=True)
    assert not folder.path.exists()
    (other.path / f"{1:012}.seg").write_bytes(b"x")
    other.clear(keep_own=True)
    assert len(list(other.path.iterdir())) == 1
    other.clear(keep_own=False)
    assert list(other.path.iterdir()) == []
    other.close()
    DiskFolder(root, FP, "layout").close()


@pytest.mark.parametrize("name", ["int8", "bf16", "fp8"])
def test_m15_raw_rows_are_those_of_the_format(name: str) -> None:
    layout = KvLayout(2, 3, 5, 2, torch.float32, 4)
    form = host_format(name, torch.float32)
    pool = HostPool(layout, 24, form)
    pages = PagePool(layout, pages=6)
    torch.manual_seed(0)
    pages.keys.normal_()
    pages.values.normal_()
    pool.store(pages, Piece(0, 24, 0, 0))
    data, crc = pool.raw(4, 8), pool.crc(4, 8)
    assert len(data) == pool.raw_bytes(8) == 8 * form.token_bytes(layout) < 8 * layout.token_bytes
    assert pool.form == ("float32", name)
    pool.put_raw(16, 8, bytearray(data))
    assert (pool.raw(16, 8), pool.crc(16, 8)) == (data, crc)


@pytest.mark.parametrize("dtype", DTYPES)
def test_m15_raw_rows_are_good_for_other_rows(dtype: torch.dtype) -> None:
    layout = KvLayout(2, 3, 5, 2, dtype, 4)
    pool, generator = HostPool(layout, 24), torch.Generator().manual_seed(0)
    for tensor in (pool.keys, pool.values):
        size = (tensor.numel() * tensor.itemsize,)
        bits = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        tensor.copy_(bits.view(dtype).view(tensor.shape))
    before = pool.raw(0, 24)
    for rows in (1, 3, 4):
        data = pool.raw(5, rows)
        assert len(data) == pool.raw_bytes(rows) == rows * layout.token_bytes
        crc = pool.crc(5, rows)
        pool.put_raw(17, rows, bytearray(data))
        assert (pool.raw(17, rows), pool.crc(17, rows)) == (data, crc)
        assert pool.raw(5, rows) == data
    assert pool.raw(0, 17) == HostPool.raw(pool, 0, 17)
    assert pool.raw(21, 3) == _rows_of(before, layout, 24, 21, 3), "the rows beside are what they were"
    with pytest.raises(ValueError, match="rows have"):
        pool.put_raw(0, 2, bytearray(3))


def _rows_of(data: bytes, layout: KvLayout, total: int, first: int, rows: int) -> bytes:
    """The same rows, cut out of the bytes of all of them."""
    found, at = b"", 0
    for dim in (layout.qk_dim, layout.v_dim):
        row = dim * layout.dtype.itemsize
        for plane in range(layout.layers * layout.heads):
            start = at + (plane * total + first) * row
            found += data[start : start + rows * row]
        at += layout.layers * layout.heads * total * row
    return found
