"""Beam slots: exact bytes, no overlap, everything joins again after any order of releases."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from relaygr.memory.beams import BeamKv, BeamPool, slot_starts
from relaygr.memory.extents import Extents

LAYERS, HEADS, DIM = 2, 2, 3
KV_TOK = 2 * LAYERS * HEADS * DIM * 4  # bytes of a token in fp32


def pool(slots: int, dtype: torch.dtype = torch.float32) -> BeamPool:
    return BeamPool(LAYERS, HEADS, DIM, dtype, slots * KV_TOK * dtype.itemsize // 4)


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, HEADS, DIM, generator=g), torch.randn(count, HEADS, DIM, generator=g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("widths", [(1,), (64, 64, 64), (64, 256, 512), (50, 7, 128)], ids=str)
def test_bytes_are_a_token_for_each_beam_of_each_depth(dtype: torch.dtype, widths: tuple[int, ...]) -> None:
    whole, token = pool(1000, dtype), KV_TOK * dtype.itemsize // 4
    taken = whole.reserve(widths)
    assert taken is not None
    assert taken.nbytes == whole.bytes_for(widths) == whole.used_bytes == token * sum(widths)
    assert taken.keys(1).shape == (sum(widths), HEADS, DIM)
    assert taken.keys(1).nbytes * LAYERS * 2 == taken.nbytes
    for layer in range(LAYERS):
        for depth, width in enumerate(widths, start=1):
            k, v = (x.to(dtype) for x in rows(width, depth))
            taken.write(layer, depth, k, v)
    assert (taken.written_bytes, taken.moved_bytes) == (taken.nbytes, 0)
    for layer in range(LAYERS):
        k, v = (torch.cat(x).to(dtype) for x in zip(*map(rows, widths, range(1, 9)), strict=False))
        assert torch.equal(taken.keys(layer), k)
        assert torch.equal(taken.values(layer), v)
    assert taken.starts == slot_starts(widths)
    first = torch.zeros(1, len(widths), dtype=torch.int32)
    assert taken.rows(first).tolist() == [list(taken.starts[:-1])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_doubling_the_width_adds_a_token_for_each_new_beam_and_round(dtype: torch.dtype) -> None:
    whole = pool(1000, dtype)
    token = KV_TOK * dtype.itemsize // 4
    assert whole.slot_bytes == token
    used = []
    for width in (64, 128):
        taken = whole.reserve([width] * 3)
        assert taken is not None
        used.append(whole.used_bytes)
        taken.release()
    assert used[1] - used[0] == 64 * 3 * token


def test_slots_are_views_of_the_one_buffer() -> None:
    whole = pool(12)
    a, b = whole.reserve([3, 2]), whole.reserve([7])
    assert a is not None
    assert b is not None
    assert whole.reserve([1]) is None
    k, v = rows(3, 1)
    for layer in range(LAYERS):
        a.write(layer, 1, k + layer, v + layer)
        a.write(layer, 2, k[:2] - layer, v[:2] - layer)
        b.write(layer, 1, torch.full((7, HEADS, DIM), 9.0), torch.full((7, HEADS, DIM), 8.0))
    for layer in range(LAYERS):
        assert torch.equal(a.keys(layer), torch.cat([k + layer, k[:2] - layer]))
        assert torch.equal(a.values(layer), torch.cat([v + layer, v[:2] - layer]))
        assert (b.keys(layer) == 9).all()
        assert (b.values(layer) == 8).all()
    assert a.keys(0).untyped_storage().data_ptr() == b.values(1).untyped_storage().data_ptr()


def test_rewritten_slots_count_as_moved() -> None:
    taken = pool(8).reserve([4, 4])
    assert taken is not None
    row = KV_TOK // LAYERS
    taken.write(0, 1, *rows(3, 1))
    taken.write(0, 2, *rows(4, 2))
    taken.write(1, 1, *rows(4, 3))
    assert (taken.written_bytes, taken.moved_bytes) == (11 * row, 0)
    taken.write(0, 1, *rows(4, 4))
    assert (taken.written_bytes, taken.moved_bytes) == (15 * row, 3 * row)


def test_what_does_not_fit_is_refused() -> None:
    whole = pool(8)
    for make in (
        lambda: BeamPool(0, 1, 1, torch.float32, 1000),
        lambda: BeamPool(1, 1, 1, torch.int32, 1000),
        lambda: BeamPool(LAYERS, HEADS, DIM, torch.float32, KV_TOK - 1),
        lambda: whole.reserve([]),
        lambda: whole.reserve([1, 0]),
        lambda: whole.bytes_for([0]),
    ):
        with pytest.raises(ValueError):
            make()
    taken = whole.reserve([5, 3])
    assert taken is not None
    k, v = rows(3, 1)
    for depth, a, b in (
        *((0, k, v), (3, k, v), (1, *rows(6, 1)), (2, *rows(4, 1)), (1, k[:2], v)),
        (1, k.double(), v.double()),
    ):
        with pytest.raises(ValueError):
            taken.write(0, depth, a, b)
    assert whole.reserve([1]) is None
    taken.release()
    taken.release()
    assert taken.released
    assert whole.free_bytes == whole.nbytes
    for use in (lambda: taken.keys(0), lambda: taken.write(0, 1, k, v)):
        with pytest.raises(RuntimeError, match="after their release"):
            use()


def test_ten_thousand_requests_leave_the_pool_as_it_was() -> None:
    whole, draw = pool(2000), random.Random(7)
    storage, live, granted, refused = whole.nbytes, [], 0, 0
    for _ in range(10_000):
        if live and draw.random() < 0.5:
            live.pop(draw.randrange(len(live))).release()
            continue
        widths = draw.choices([1, 7, 50, 64, 128, 256], k=draw.choice([1, 2, 3]))
        taken = whole.reserve(widths)
        if taken is None:
            assert whole.largest_bytes < whole.bytes_for(widths)
            refused += 1
        else:
            live.append(taken)
            granted += 1
        assert whole.used_bytes == sum(x.nbytes for x in live)
    assert min(granted, refused) > 200
    for taken in live:
        taken.release()
    assert (whole.nbytes, whole.free_bytes, whole.largest_bytes) == (storage, storage, storage)


class PoolMachine(RuleBasedStateMachine):
    """The pool against a plain list of who owns which slot, told by what each owner wrote."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.live, self.stamp = pool(24), {}, 0

    @rule(target=taken, widths=st.lists(st.integers(1, 9), min_size=1, max_size=3))
    def reserve(self, widths: list[int]) -> BeamKv | None:
        kv = self.pool.reserve(widths)
        if kv is None:
            assert self.pool.largest_bytes < self.pool.bytes_for(widths)
            return None
        self.stamp += 1
        for layer in range(LAYERS):
            for depth, width in enumerate(widths, start=1):
                full = torch.full((width, HEADS, DIM), float(self.stamp))
                kv.write(layer, depth, full, -full)
        self.live[kv] = self.stamp
        return kv

    @rule(kv=consumes(taken))
    def release(self, kv: BeamKv | None) -> None:
        if kv is not None:
            kv.release()
            self.live.pop(kv)

    @invariant()
    def nobody_wrote_over_another(self) -> None:
        for kv, stamp in self.live.items():
            for layer in range(LAYERS):
                assert (kv.keys(layer) == stamp).all()
                assert (kv.values(layer) == -stamp).all()

    @invariant()
    def the_books_are_exact(self) -> None:
        assert self.pool.used_bytes == sum(kv.nbytes for kv in self.live)
        if not self.live:
            assert self.pool.largest_bytes == self.pool.nbytes


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_stretches_join_on_both_sides() -> None:
    free = Extents(10)
    starts = [free.take(n) for n in (2, 3, 4)]
    assert starts == [0, 2, 5]
    free.give(0, 2)
    free.give(5, 4)
    assert free.stretches == ((0, 2), (5, 5))
    assert free.take(2) == 0  # the shortest that is long enough
    free.give(0, 2)
    free.give(2, 3)
    assert free.stretches == ((0, 10),)
    for start, length in ((0, 1), (9, 2), (-1, 1), (3, 0)):
        with pytest.raises(ValueError, match="not a taken stretch"):
            free.give(start, length)
    with pytest.raises(ValueError, match="length"):
        free.take(0)
    with pytest.raises(ValueError, match="size"):
        Extents(0)
