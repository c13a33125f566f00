"""Bytes in, bytes out: round trips on scattered and adjacent pages, zero tails, copies."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool, Placement

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
PAGE = 4


def layout(dtype: torch.dtype = torch.float32) -> KvLayout:
    return KvLayout(layers=2, heads=3, qk_dim=5, v_dim=2, dtype=dtype, page_tokens=PAGE)


def rows(n: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, 3, 5, generator=generator, dtype=torch.float64).to(dtype),
        torch.randn(n, 3, 2, generator=generator, dtype=torch.float64).to(dtype),
    )


def same_bytes(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and bool(
        (left.contiguous().view(torch.uint8) == right.contiguous().view(torch.uint8)).all()
    )


def dirty_pool(dtype: torch.dtype = torch.float32, pages: int = 12) -> PagePool:
    pool = PagePool(layout(dtype), pages=pages)
    pool.keys.fill_(7.0)
    pool.values.fill_(7.0)
    return pool


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pages", [(2, 3, 4, 5), (9, 1, 4, 0), (3, 4, 8, 9), (5, 4, 3, 2)])
@pytest.mark.parametrize("tokens", [0, 1, 4, 7, 15, 16])
def test_round_trip_is_byte_exact(dtype: torch.dtype, pages: tuple[int, ...], tokens: int) -> None:
    pool = dirty_pool(dtype)
    pool.zero(pages)
    for layer in range(2):
        k, v = rows(tokens, layer, dtype)
        pool.write(layer, pages, 0, k, v)
    for layer in range(2):
        k, v = rows(tokens, layer, dtype)
        for clean_tail in (True, False):
            keys, values = pool.read(layer, pages, tokens, clean_tail)
            padded = -(-tokens // PAGE) * PAGE
            assert keys.shape == (3, padded, 5)
            assert values.shape == (3, padded, 2)
            assert same_bytes(keys[:, :tokens], k.transpose(0, 1))
            assert same_bytes(values[:, :tokens], v.transpose(0, 1))
            assert not keys[:, tokens:].any()
            assert not values[:, tokens:].any()
    others = [page for page in range(12) if page not in pages]
    assert bool((pool.keys[:, :, others] == 7.0).all())
    assert bool((pool.values[:, :, others] == 7.0).all())


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(0, 9), max_size=5), st.integers(0, 24))
def test_writes_in_pieces_equal_one_write(pages: list[int], pieces: list[int], tokens: int) -> None:
    bounds = sorted({0, 24, *(min(24, sum(pieces[: i + 1])) for i in range(len(pieces)))})
    k, v = rows(24, seed=3)
    scattered, adjacent = PagePool(layout(), pages=6), PagePool(layout(), pages=6)
    for start, end in pairwise(bounds):
        scattered.write(1, pages, start, k[start:end], v[start:end])
    adjacent.write(1, range(6), 0, k, v)
    left, right = scattered.read(1, pages, tokens, False), adjacent.read(1, range(6), tokens, False)
    assert same_bytes(left[0], right[0])
    assert same_bytes(left[1], right[1])


def test_read_is_a_view_exactly_when_it_can_be() -> None:
    pool = PagePool(layout(), pages=12)

    def is_view(pages: tuple[int, ...], tokens: int, clean_tail: bool) -> bool:
        keys, values = pool.read(1, pages, tokens, clean_tail)
        start, end = pool.keys.data_ptr(), pool.keys.data_ptr() + pool.keys.nbytes
        viewed = start <= keys.data_ptr() < end
        if viewed:
            assert keys[0].is_contiguous()
            assert values[0].is_contiguous()
        return viewed

    assert is_view((2, 3, 4), 10, True)
    assert is_view((2, 3, 4), 12, False)
    assert is_view((2, 3, 9), 8, False)
    assert not is_view((2, 3, 4), 10, False)
    assert not is_view((2, 3, 9), 9, True)


def test_unclean_tail_is_zeroed_in_the_answer_only() -> None:
    pool = dirty_pool()
    keys, values = pool.read(0, (2, 3), 5, clean_tail=False)
    assert bool((keys[:, :5] == 7).all())
    assert not keys[:, 5:].any()
    assert not values[:, 5:].any()
    assert bool((pool.keys == 7).all())


def test_copy_keeps_the_first_rows_and_zeroes_the_rest() -> None:
    pool = dirty_pool()
    k, v = rows(4, seed=1)
    pool.write(1, (2,), 0, k, v)
    pool.copy(2, 6, tokens=3)
    keys, values = pool.read(1, (6,), 4, clean_tail=True)
    assert same_bytes(keys[:, :3], k[:3].transpose(0, 1))
    assert same_bytes(values[:, :3], v[:3].transpose(0, 1))
    assert not keys[:, 3:].any()
    assert bool((pool.keys[0, :, 6, :3] == 7).all())
    assert not pool.values[0, :, 6, 3:].any()


def test_one_copy_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    plain = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda self, src: calls.append(tuple(src.shape)) or plain(self, src))
    pool = PagePool(layout(), pages=12)
    pool.write(0, (2, 3, 4, 5), 1, *rows(14, seed=1))
    assert calls == [(3, 14, 5), (3, 14, 2)]
    calls.clear()
    pool.write(0, (2, 3, 8, 9), 1, *rows(14, seed=1))
    assert calls == [(3, 7, 5), (3, 7, 2), (3, 7, 5), (3, 7, 2)]


def test_sizes() -> None:
    assert PagePool(layout(), pages=5).nbytes == 5 * layout().page_bytes
    pool = PagePool(layout(), "cpu", total_bytes=10 * layout().page_bytes + 1)
    assert pool.pages == 10
    assert pool.keys.nbytes + pool.values.nbytes == pool.nbytes
    assert not pool.keys.any()


def test_rows_that_need_gradients_leave_no_graph() -> None:
    pool = PagePool(layout(), pages=2)
    k, v = rows(4, seed=1)
    pool.write(0, (0,), 0, k.requires_grad_(), v.requires_grad_())
    assert not pool.keys.requires_grad


def test_placement_runs() -> None:
    assert Placement((3, 4, 5, 9, 8, 0)).runs == ((3, 3), (9, 1), (8, 1), (0, 1))
    assert Placement(()).runs == ()


def test_bad_arguments() -> None:
    for sizes in ({}, {"pages": 1, "total_bytes": 1}, {"pages": 0}, {"total_bytes": 10}):
        with pytest.raises(ValueError, match="pages"):
            PagePool(layout(), **sizes)
    pool, (k, v) = PagePool(layout(), pages=2), rows(4, seed=1)
    with pytest.raises(ValueError, match="need more"):
        pool.write(0, (0,), 1, k, v)
    with pytest.raises(ValueError, match="expected"):
        pool.write(0, (0,), 0, v, k)
    with pytest.raises(ValueError, match="expected"):
        pool.write(0, (0,), 0, k.double(), v.double())
    with pytest.raises(ValueError, match="tokens"):
        pool.read(0, (0,), 5, clean_tail=True)
    with pytest.raises(ValueError, match="pages"):
        pool.zero((1, 2))
    with pytest.raises(ValueError, match="rows"):
        pool.copy(0, 1, 5)
    with pytest.raises(ValueError, match="page"):
        pool.copy(1, 1, 2)
