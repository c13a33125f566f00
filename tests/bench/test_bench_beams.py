"""`bench beams` on small steps: the report can be read back and adds up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from relaygr.bench.beams import BeamsCell, BeamsReport, BeamsSpec
from relaygr.cli.main import main
from relaygr.core.errors import ConfigError
from relaygr.kernels import beam_select


@pytest.fixture(autouse=True)
def _threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_report_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_select, "LARGEST_PAIRS", 8 * 128)
    file = tmp_path / "report.json"
    sizes = ["--widths", "3,8", "--prompts", "5,40", "--dim", "16", "--rounds", "2", "--threads", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "beams", "--dtype", "fp32", "--json", str(file), *sizes])
    assert not ended.value.code
    report = msgspec.json.decode(file.read_bytes(), type=BeamsReport)
    assert [(c.width, c.prompt_tokens) for c in report.cells] == [(3, 5), (3, 40), (8, 5), (8, 40)]
    assert report.shape.threads == 1
    assert report.measured
    for cell in report.cells:
        assert cell.auto in ("split", "joint")
        assert cell.auto_over_best >= 1
        assert cell.sharing_gain is not None
        assert cell.gflop == pytest.approx(4 * cell.width * 4 * 16 * (cell.prompt_tokens + 2) / 1e9)
    assert report.growth(8)[1] == pytest.approx(42 / 7)
    out = capsys.readouterr().out
    assert "auto over the better mode" in out
    assert "W 8, longest over shortest prompt" in out


def test_the_worst_choice_is_named() -> None:
    cell = BeamsCell(
        width=1, prompt_tokens=2, split_ms=3.0, joint_ms=2.0, replicate_ms=None, auto="split", gflop=1.0
    )
    assert (cell.auto_ms, cell.auto_over_best, cell.sharing_gain) == (3.0, 1.5, None)


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("--heads", {"heads": 3}),
        ("--kv-heads", {"kv_heads": 0}),
        ("--dtype", {"dtype": "int8"}),
        ("--widths", {"widths": ()}),
        ("--prompts", {"prompts": (0,)}),
    ],
)
def test_options_are_checked(option: str, fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=option):
        BeamsSpec(**fields)  # type: ignore[arg-type]
