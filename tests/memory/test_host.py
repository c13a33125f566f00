"""Copies between pages and host memory: byte-exact, few, and only what was asked for."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relaygr.cache.interface import HostRun
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import BF16, FP8, INT8, INT8_PAGE
from relaygr.memory.host import HostPool, Piece, clear_tail, page_crc
from relaygr.memory.layout import DTYPES, KvLayout
from relaygr.memory.pool import PagePool, Placement

PAGE, PAGES, HOST = 4, 12, 64
ROUNDED = tuple(form for form in (BF16, INT8, FP8) if form is not None)


def layout(dtype: torch.dtype = torch.float32) -> KvLayout:
    return KvLayout(layers=2, heads=3, qk_dim=5, v_dim=2, dtype=dtype, page_tokens=PAGE)


def random_bytes(tensor: Tensor, seed: int) -> None:
    """Any bits at all, NaN included."""
    generator = torch.Generator().manual_seed(seed)
    flat = tensor.view(-1).view(torch.uint8)
    flat.copy_(torch.randint(0, 256, flat.shape, generator=generator, dtype=torch.uint8))


def pools(dtype: torch.dtype = torch.float32) -> tuple[PagePool, HostPool]:
    pool, host = PagePool(layout(dtype), pages=PAGES), HostPool(layout(dtype), HOST)
    for seed, tensor in enumerate((pool.keys, pool.values, host.keys, host.values)):
        random_bytes(tensor, seed)
    return pool, host


def rows_of(pool: PagePool, pages: tuple[int, ...], start: int, end: int) -> bytes:
    """Token by token, through the page table."""
    parts = []
    for token in range(start, end):
        page, slot = pages[token // PAGE], token % PAGE
        parts += [pool.keys[:, :, page, slot], pool.values[:, :, page, slot]]
    return b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts)


def move(pool: PagePool, host: HostPool, pieces: list[Piece], to_host: bool) -> None:
    for piece in pieces:
        (host.store if to_host else host.load)(pool, piece)


@st.composite
def placements(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[HostRun, ...], int]:
    tokens = draw(st.integers(1, 24))
    pages = tuple(draw(st.permutations(range(PAGES)))[: -(-tokens // PAGE)])
    cuts = sorted(
        {0, tokens, *(PAGE * cut for cut in draw(st.sets(st.integers(1, 5))) if PAGE * cut < tokens)}
    )
    slots = draw(st.permutations(range(len(cuts) - 1)))
    bounds = [(start, end) for start, end in pairwise(cuts)]
    offsets, at = {}, draw(st.integers(0, 8))
    for place in slots:
        offsets[place] = at
        at += bounds[place][1] - bounds[place][0] + draw(st.integers(0, 3))
    runs = tuple(HostRun(start, end - start, offsets[i]) for i, (start, end) in enumerate(bounds))
    return pages, runs, tokens


@settings(max_examples=150, deadline=None)
@given(placements(), placements(), st.sampled_from(DTYPES), st.data())
def test_m15_round_trip_is_byte_exact(
    first: tuple[tuple[int, ...], tuple[HostRun, ...], int],
    second: tuple[tuple[int, ...], tuple[HostRun, ...], int],
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    (pages, runs, tokens), other_pages = first, second[0]
    pool, host = pools(dtype)
    want, untouched = rows_of(pool, pages, 0, tokens), pool.keys.clone()
    split = data.draw(st.integers(0, tokens))
    for start, end in ((0, split), (split, tokens)):
        move(pool, host, list(host.pieces(Placement(pages), runs, start, end - start)), to_host=True)
    assert torch.equal(pool.keys.view(torch.uint8), untouched.view(torch.uint8))
    target = PagePool(layout(dtype), pages=PAGES)
    random_bytes(target.keys, 9)
    random_bytes(target.values, 10)
    before = target.keys.clone(), target.values.clone()
    load = min(tokens, len(other_pages) * PAGE)
    move(target, host, list(host.pieces(Placement(other_pages), runs, 0, load)), to_host=False)
    assert rows_of(target, other_pages, 0, load) == want[: load * layout(dtype).token_bytes]
    for tensor, old in ((target.keys, before[0]), (target.values, before[1])):
        for page in range(PAGES):
            place = other_pages.index(page) if page in other_pages else PAGES
            kept = min(PAGE, max(0, load - place * PAGE))
            same = tensor[:, :, page, kept:].contiguous().view(torch.uint8)
            assert torch.equal(same, old[:, :, page, kept:].contiguous().view(torch.uint8))


@pytest.mark.parametrize("form", ROUNDED, ids=lambda form: form.name)
@settings(max_examples=40, deadline=None)
@given(placements(), placements(), st.sampled_from([torch.float32, torch.float16]), st.data())
def test_m15_rows_of_a_format_go_where_exact_ones_would(
    form: HostFormat,
    first: tuple[tuple[int, ...], tuple[HostRun, ...], int],
    second: tuple[tuple[int, ...], tuple[HostRun, ...], int],
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    """What is loaded is each row through the format by itself, whatever was stored and loaded with it."""
    (pages, runs, tokens), other_pages = first, second[0]
    pool, target = PagePool(layout(dtype), pages=PAGES), PagePool(layout(dtype), pages=PAGES)
    host, generator = HostPool(layout(dtype), HOST, form), torch.Generator().manual_seed(0)
    alone = PagePool(layout(dtype), pages=PAGES)
    for tensor, rows in ((pool.keys, alone.keys), (pool.values, alone.values)):
        tensor.normal_(generator=generator)
        flat = tensor.flatten(2, 3)
        stored = form.empty(tuple(flat.shape[:3]), flat.shape[3], dtype)
        form.encode(flat, stored)
        form.decode(stored, rows.flatten(2, 3))
    split = data.draw(st.integers(0, tokens))
    for start, end in ((0, split), (split, tokens)):
        move(pool, host, list(host.pieces(Placement(pages), runs, start, end - start)), to_host=True)
    load = min(tokens, len(other_pages) * PAGE)
    split = data.draw(st.integers(0, load))
    for start, end in ((0, split), (split, load)):
        move(target, host, list(host.pieces(Placement(other_pages), runs, start, end - start)), to_host=False)
    assert rows_of(target, other_pages, 0, load) == rows_of(alone, pages, 0, load)
    untouched = [page for page in range(PAGES) if page not in other_pages]
    assert not target.keys[:, :, untouched].any()
    assert not target.values[:, :, untouched].any()


@settings(max_examples=100, deadline=None)
@given(placements(), st.data())
def test_m23_one_copy_per_stretch_adjacent_on_both_sides(
    placement: tuple[tuple[int, ...], tuple[HostRun, ...], int], data: st.DataObject
) -> None:
    pages, runs, tokens = placement
    start = data.draw(st.integers(0, tokens))
    host = HostPool(layout(), HOST)
    pieces = list(host.pieces(Placement(pages), runs, start, tokens - start))
    rows = [
        (piece.token + i, piece.device_row + i, piece.host_row + i)
        for piece in pieces
        for i in range(piece.rows)
    ]
    expected = []
    for token in range(start, tokens):
        run = next(run for run in runs if run.start <= token < run.start + run.tokens)
        expected.append((token, pages[token // PAGE] * PAGE + token % PAGE, run.offset + token - run.start))
    assert rows == expected
    inside = len({run.start for run in runs if start < run.start < tokens})
    assert len(pieces) <= len(Placement(pages).runs) + inside


def test_adjacent_pages_in_one_run_are_one_copy() -> None:
    host = HostPool(layout(), HOST)
    assert list(host.pieces(Placement((3, 4, 5)), (HostRun(0, 11, 20),), 0, 11)) == [Piece(0, 11, 12, 20)]
    assert list(host.pieces(Placement((3, 4, 5)), (HostRun(0, 11, 20),), 5, 0)) == []


def test_checksums_depend_on_every_byte_and_not_on_the_place() -> None:
    pool, host = pools()
    pages, runs = (7, 2, 9), (HostRun(0, 4, 40), HostRun(4, 6, 8))
    move(pool, host, list(host.pieces(Placement(pages), runs, 0, 10)), to_host=True)
    sums = [page_crc(pool, page, rows) for page, rows in zip(pages, (4, 4, 2), strict=True)]
    assert sums == [host.crc(40, 4), host.crc(8, 4), host.crc(12, 2)]
    assert len(set(sums)) == 3
    for tensor in (host.keys, host.values):
        for layer in range(2):
            for head in range(3):
                row = tensor[layer, head, 13].view(torch.uint8)
                row[-1] ^= 1
                assert host.crc(12, 2) != sums[2]
                row[-1] ^= 1
    assert host.crc(12, 2) == sums[2]


@pytest.mark.parametrize("form", ROUNDED, ids=lambda form: form.name)
def test_checksums_of_a_format_depend_on_every_byte(form: HostFormat) -> None:
    pool, host = PagePool(layout(), pages=PAGES), HostPool(layout(), HOST, form)
    for tensor in (pool.keys, pool.values):
        tensor.normal_(generator=torch.Generator().manual_seed(0))
    host.store(pool, Piece(0, 8, 12, 40))
    found = host.crc(40, 4), host.crc(44, 4)
    assert found[0] != found[1]
    for tensor in (host.keys, host.values):
        rows = tensor.view(torch.uint8)
        for byte in range(rows.shape[3]):
            rows[1, 2, 41, byte] ^= 1
            assert host.crc(40, 4) != found[0]
            rows[1, 2, 41, byte] ^= 1
    assert (host.crc(40, 4), host.crc(44, 4)) == found
    host.store(pool, Piece(0, 4, 16, 8))  # the second page, elsewhere
    assert host.crc(8, 4) == found[1]


@pytest.mark.parametrize("form", ROUNDED, ids=lambda form: form.name)
def test_m38_sizes_go_by_the_format(form: HostFormat) -> None:
    host = HostPool(layout(), HOST, form)
    assert host.token_bytes == form.token_bytes(layout()) < layout().token_bytes
    assert host.nbytes == HOST * host.token_bytes == host.keys.nbytes + host.values.nbytes


def test_rows_that_share_scales_are_refused() -> None:
    with pytest.raises(ValueError, match="int8_page"):
        HostPool(layout(), HOST, INT8_PAGE)


def test_clear_tail() -> None:
    pool, _ = pools()
    before = pool.keys.clone()
    clear_tail(pool, 5, 3)
    assert not pool.keys[:, :, 5, 3:].any()
    assert not pool.values[:, :, 5, 3:].any()
    assert torch.equal(pool.keys[:, :, 5, :3].view(torch.int32), before[:, :, 5, :3].view(torch.int32))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="tokens: 0"):
        HostPool(layout(), 0)
    host = HostPool(layout(), HOST)
    assert host.nbytes == HOST * layout().token_bytes == host.keys.nbytes + host.values.nbytes
    with pytest.raises(ValueError, match="pages hold 8"):
        host.pieces(Placement((1, 2)), (HostRun(0, 20, 0),), 4, 5)
    with pytest.raises(ValueError, match="runs hold 6"):
        host.pieces(Placement((1, 2)), (HostRun(0, 6, 0),), 4, 3)
