"""In-place moves equal a gather: every monotone map of small widths, many random ones of a large width."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from relaygr.generation.compaction import compact, storage_order


class Rows:
    """Just enough of a tensor of rows for a million tiny cases: a list whose rows can be copied into."""

    shape: tuple[int, ...]

    def __init__(self, count: int) -> None:
        self.values = list(range(count))
        self.shape = (count,)

    def __getitem__(self, i: int) -> Row:
        return Row(self, i)


class Row:
    nbytes = 1

    def __init__(self, rows: Rows, i: int) -> None:
        self.rows, self.i = rows, i

    def copy_(self, other: Row) -> None:
        self.rows.values[self.i] = self.rows.values[other.i]


def test_every_monotone_map_up_to_seven_rows() -> None:
    cases = 0
    for old in range(1, 8):
        for new in range(8):
            for parents in combinations_with_replacement(range(old), new):
                rows = Rows(max(old, new))
                moved = compact(rows, parents)  # type: ignore[arg-type]
                assert rows.values[:new] == list(parents)
                assert moved == sum(p != i for i, p in enumerate(parents))
                cases += 1
    assert cases == 6434  # the sum of C(old + 7, 7)


def test_a_thousand_random_maps_of_512_rows() -> None:
    draw = np.random.default_rng(3)
    source = torch.arange(512 * 2, dtype=torch.float32).view(512, 2)
    for case in range(1000):
        new = 512 if case % 2 else int(draw.integers(1, 513))
        high = int(draw.integers(1, 513))
        parents = np.sort(draw.integers(0, high, new))
        rows = Rows(512)
        compact(rows, parents.tolist())  # type: ignore[arg-type]
        assert rows.values[:new] == parents.tolist()
        if case % 50 == 0:  # the same on real rows
            tensor = source.clone()
            moved = compact(tensor, parents.tolist())
            assert torch.equal(tensor[:new], source[torch.from_numpy(parents)])
            assert moved == 8 * int((parents != np.arange(new)).sum())


def test_sorted_survivors_keep_their_ranks() -> None:
    """Survivors come in score order from any parents; stored by parent, they still know their rank."""
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(64, 3, generator=g)
    parents = torch.randint(0, 64, (50,), generator=g)
    order = storage_order(parents)
    moved = rows.clone()
    compact(moved, order.parents.tolist())
    by_rank = torch.empty(50, 3)
    by_rank[order.ranks] = moved[:50]
    assert torch.equal(by_rank, rows[parents])
    ties = order.parents[1:] == order.parents[:-1]
    assert (order.ranks[1:] > order.ranks[:-1])[ties].all()  # one parent's children stay in score order


@pytest.mark.parametrize("parents", [[1, 0], [0, 2, 1], [3, 3, 2]])
def test_a_map_that_is_not_monotone_raises_and_moves_nothing(parents: list[int]) -> None:
    rows = torch.arange(4.0)[:, None].clone()
    with pytest.raises(ValueError, match="the one before"):
        compact(rows, parents)
    assert rows.flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("parents", [[-1, 0], [0, 4], [0] * 5])
def test_rows_that_are_not_there_are_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents"):
        compact(torch.zeros(4, 1), parents)


def test_nothing_survives() -> None:
    assert compact(torch.zeros(3, 2), []) == 0
