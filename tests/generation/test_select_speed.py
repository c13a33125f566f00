"""One round at W = 256 on 1.5 M semantic ids, its index work included, within 15 ms of one core."""

from __future__ import annotations

import pytest
import torch

from relaygr.bench.beam_selection import SelectionCase, measure_selection
from relaygr.generation.normalise import Normalization


@pytest.mark.slow
def test_a_round_of_256_beams_takes_at_most_15_ms() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cell = SelectionCase(1_500_000, 0).measure(256, 2, Normalization.LEVEL, 21)
        assert cell.candidates > 150_000
        assert cell.both_ms <= 15.0
    finally:
        torch.set_num_threads(threads)


def test_all_widths_levels_and_normalisations_are_measured() -> None:
    threads = torch.get_num_threads()
    cells = measure_selection(5000, (4, 16), 2, 0, lambda _: None)
    assert torch.get_num_threads() == threads
    assert [(cell.width, cell.level, cell.normalization) for cell in cells] == [
        (width, level, str(one)) for width in (4, 16) for level in (2, 3) for one in Normalization
    ]
    for cell in cells:
        assert cell.sids == 5000
        assert cell.candidates >= cell.width
        assert cell.columns == {"full": 64 + 3 * 8192, "level": 8192}.get(cell.normalization, cell.columns)
        assert 0 < cell.select_ms < cell.both_ms
        assert min(cell.denied_ms, cell.looped_ms, cell.sorted_ms) > 0
