"""The ancestor index against explicit copies of every path, on random trees of forks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.generation.ancestors import Ancestors
from relaygr.kernels.cpu import CpuBeams
from relaygr.memory.beams import BeamPool

HEADS, DIM, PROMPT = 2, 8, 12


@st.composite
def forks(draw: st.DrawFn) -> list[list[int]]:
    """Parents of each round; widths differ from round to round, parents come in any order."""
    before, rounds = 1, []
    for _ in range(draw(st.integers(1, 4))):
        parents = draw(st.lists(st.integers(0, before - 1), min_size=1, max_size=9))
        rounds.append(parents)
        before = len(parents)
    return rounds


@settings(max_examples=60, deadline=None)
@given(rounds=forks())
def test_index_equals_copied_paths(rounds: list[list[int]]) -> None:
    """Attention through the index equals attention over a private copy of each beam's own K/V."""
    widths = [len(parents) + spare for spare, parents in enumerate(rounds)]
    pool = BeamPool(1, HEADS, DIM, torch.float32, 1 << 16)
    kv = pool.reserve(widths)
    assert kv is not None
    kv.keys(0).fill_(float("nan"))  # a slot that nobody wrote must never be read
    kv.values(0).fill_(float("nan"))
    index, kernel = Ancestors(widths), CpuBeams()
    g = torch.Generator().manual_seed(len(rounds))
    shared = torch.randn(HEADS, PROMPT, DIM, generator=g), torch.randn(HEADS, PROMPT, DIM, generator=g)
    paths: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[]]
    for depth, parents in enumerate(rounds, start=1):
        k, v, q = (torch.randn(len(parents), HEADS, DIM, generator=g) for _ in range(3))
        before = kv.keys(0).clone(), kv.values(0).clone()
        anc = index.fork(torch.tensor(parents))
        assert all(
            torch.equal(a.nan_to_num(7), b.nan_to_num(7))
            for a, b in zip(before, (kv.keys(0), kv.values(0)), strict=True)
        )
        kv.write(0, depth, k, v)
        paths = [[*paths[p], (k[b], v[b])] for b, p in enumerate(parents)]
        got = kernel.beams(q, shared, PROMPT, kv.keys(0), kv.values(0), kv.rows(anc))
        for b, path in enumerate(paths):
            own = tuple(map(torch.stack, zip(*path, strict=True)))
            alone = torch.arange(depth, dtype=torch.int32)[None]
            want = kernel.beams(q[b : b + 1], shared, PROMPT, *own, alone)
            torch.testing.assert_close(got[b : b + 1], want, rtol=0, atol=2e-6)
    assert kv.moved_bytes == 0
    assert kv.written_bytes == sum(map(len, rounds)) * pool.slot_bytes


@settings(max_examples=60, deadline=None)
@given(rounds=forks())
def test_columns_are_the_slots_of_the_path(rounds: list[list[int]]) -> None:
    widths = [len(parents) + 2 for parents in rounds]
    index = Ancestors(widths)
    paths: list[list[int]] = [[]]
    for depth, parents in enumerate(rounds, start=1):
        got = index.fork(torch.tensor(parents))
        paths = [[*paths[p], b] for b, p in enumerate(parents)]
        assert got.tolist() == paths
        assert got.dtype == torch.int32
        assert (index.depth, index.beams) == (depth, len(parents))
        assert torch.equal(got, index.index)


def test_a_wrong_entry_is_another_answer() -> None:
    kernel, index = CpuBeams(), Ancestors([6, 6])
    g = torch.Generator().manual_seed(0)
    q, shared, own = (torch.randn(n, HEADS, DIM, generator=g) for n in (6, HEADS, 12))
    pair = (shared[:, :1], shared[:, 1:])
    index.fork(torch.zeros(6, dtype=torch.int64))
    anc = index.fork(torch.tensor([5, 0, 0, 3, 2, 2])) + torch.tensor([0, 6], dtype=torch.int32)
    right = kernel.beams(q, pair, 1, own, own, anc)
    for b in range(6):
        wrong = anc.clone()
        wrong[b, 0] = (wrong[b, 0] + 1) % 6
        changed = (kernel.beams(q, pair, 1, own, own, wrong) != right).flatten(1).any(1)
        assert changed.tolist() == [row == b for row in range(6)]


def test_an_index_is_four_bytes_a_beam_and_round() -> None:
    index = Ancestors([256] * 3)
    assert index.nbytes == 4 * 256 * 3
    assert index.index.shape == (0, 0)


def test_no_round_is_left_out_and_buffers_take_turns() -> None:
    index = Ancestors([4, 2, 3])
    first = index.fork(torch.zeros(4, dtype=torch.int64))
    index.fork(torch.tensor([3, 1]))
    third = index.fork(torch.tensor([1, 0, 1]))
    assert third.tolist() == [[1, 1, 0], [3, 0, 1], [1, 1, 2]]
    assert first.untyped_storage().data_ptr() == third.untyped_storage().data_ptr()


def test_a_round_may_end_without_beams() -> None:
    index = Ancestors([4, 4])
    index.fork(torch.zeros(4, dtype=torch.int64))
    assert index.fork(torch.empty(0, dtype=torch.int64)).shape == (0, 2)


@pytest.mark.parametrize("parents", [[0, 1], [-1], [0] * 5])
def test_wrong_parents_are_refused(parents: list[int]) -> None:
    index = Ancestors([4])
    with pytest.raises(ValueError, match="parents"):
        index.fork(torch.tensor(parents))
    assert index.depth == 0
    index.fork(torch.tensor([0]))
    with pytest.raises(ValueError, match="rounds"):
        index.fork(torch.tensor([0]))
    for widths in ([], [4, 0]):
        with pytest.raises(ValueError, match="widths"):
            Ancestors(widths)


def test_each_depth_has_a_width_of_its_own() -> None:
    index = Ancestors([2, 3])
    with pytest.raises(ValueError, match="at most 2"):
        index.fork(torch.zeros(3, dtype=torch.int64))
    index.fork(torch.zeros(2, dtype=torch.int64))
    assert index.fork(torch.tensor([1, 0, 1])).tolist() == [[1, 0], [0, 1], [1, 2]]
