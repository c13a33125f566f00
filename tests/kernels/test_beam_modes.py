"""The measured choice: answers come from the nearest cell, and what was measured can be read afterwards."""

from __future__ import annotations

import pytest
import torch

from relaygr.core.errors import ConfigError
from relaygr.kernels.beam_modes import BeamShape, ModeCell, ModeTable
from relaygr.kernels.beam_select import choose_beams, measure_modes
from relaygr.kernels.cpu import CpuBeams
from relaygr.kernels.reference import ReferenceBeams

SHAPE = BeamShape(heads=4, kv_heads=2, dim=8, depth=2, dtype="float32", threads=1)
TABLE = ModeTable(
    SHAPE,
    (
        ModeCell(8, 1024, split_ms=1.0, joint_ms=3.0),
        ModeCell(8, 16, split_ms=2.0, joint_ms=1.0),
        ModeCell(8, 256, split_ms=1.0, joint_ms=2.0),
        ModeCell(64, 16, split_ms=1.0, joint_ms=0.97),
        ModeCell(64, 1024, split_ms=1.0, joint_ms=0.97),
        ModeCell(512, 16, split_ms=3.0, joint_ms=1.0),
        ModeCell(512, 64, split_ms=3.0, joint_ms=1.0),
        ModeCell(512, 256, split_ms=1.0, joint_ms=2.0),
        ModeCell(512, 1024, split_ms=3.0, joint_ms=1.0),
    ),
)


@pytest.mark.parametrize(
    ("width", "tokens", "mode"),
    [(1, 1, "joint"), (8, 60, "joint"), (8, 70, "split"), (20, 5000, "split"), (999, 5000, "joint")],
)
def test_the_nearest_cell_decides(width: int, tokens: int, mode: str) -> None:
    assert TABLE.decide(width, tokens) == mode


def test_split_is_taken_unless_joint_is_clearly_faster() -> None:
    """A noisy measurement must not change which bits a server answers with."""
    assert TABLE.decide(64, 16) == "split"
    assert TABLE.crossover(64) == 16


def test_the_crossover_is_where_the_cells_lose_least() -> None:
    assert TABLE.crossover(8) == 256
    assert TABLE.crossover(512) is None
    assert TABLE.decide(512, 256) == "joint"  # one cell against three
    assert TABLE.widths == (8, 64, 512)


def test_a_table_needs_a_cell() -> None:
    with pytest.raises(ValueError, match="cells"):
        ModeTable(SHAPE, ())


def test_auto_is_the_table_and_without_one_split() -> None:
    kernel, bare = CpuBeams(table=TABLE), CpuBeams()
    step = (torch.randn(8, 4, 8), (torch.randn(2, 300, 8), torch.randn(2, 300, 8)))
    own, anc = (torch.randn(16, 2, 8), torch.randn(16, 2, 8)), torch.zeros(8, 2, dtype=torch.int32)
    for tokens in (16, 300):
        auto = kernel.beams(*step, tokens, *own, anc, "auto")
        assert torch.equal(auto, kernel.beams(*step, tokens, *own, anc, TABLE.decide(8, tokens)))
        assert torch.equal(
            bare.beams(*step, tokens, *own, anc), kernel.beams(*step, tokens, *own, anc, "split")
        )


def test_what_was_measured_is_recorded() -> None:
    choice = choose_beams(4, 2, 16, torch.float32, widths=(2, 4), prompts=(4, 8))
    assert isinstance(choice.kernel, CpuBeams)
    assert choice.table is choice.kernel.table
    assert choice.table is not None
    assert {(c.width, c.prompt_tokens) for c in choice.table.cells} == {(2, 4), (2, 8), (4, 4), (4, 8)}
    assert all(min(c.split_ms, c.joint_ms) > 0 for c in choice.table.cells)
    assert choice.table.shape.threads == torch.get_num_threads()
    assert {p.route for p in choice.probes} == {"flash", "tiled"}
    assert "fastest of" in choice.reason
    assert "split from P on" in choice.reason


def test_measuring_ends_with_its_budget() -> None:
    table = measure_modes(CpuBeams(), SHAPE, torch.float32, (2, 4), (4, 8), budget_s=0.0)
    assert len(table.cells) == 1


def test_names() -> None:
    assert isinstance(choose_beams(2, 1, 8, torch.float64, kernel="reference").kernel, ReferenceBeams)
    with pytest.raises(ConfigError, match=r"engine\.kernel"):
        choose_beams(2, 1, 8, torch.float32, kernel="fast")
