"""`bench linear` on small shapes: the report can be read back, adds up, and its three ways agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from no_machine import MACHINE, NoProbe

from relaygr.bench import linear
from relaygr.bench.linear import LinearReport, LinearSpec, quick_report
from relaygr.bench.linear_decode import SHAPE, DecodeBench, EndToEndCell
from relaygr.bench.linear_operator import OperatorCase, OperatorShape, Spread
from relaygr.bench.linear_prefill import only_linear
from relaygr.cli.main import main
from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels.recurrent import FAMILIES
from relaygr.kernels.recurrent_select import choose_recurrent
from relaygr.memory.recurrent import LinearBytes
from relaygr.models.decoder.linear_config import LinearConfig


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> object:
    """The machine itself is not measured here, and its threads stay as they were."""
    monkeypatch.setattr(linear, "MatrixProbe", NoProbe)
    monkeypatch.setattr(linear, "describe_machine", lambda _: MACHINE)
    monkeypatch.setattr(linear, "DecodeBench", small_bench)
    monkeypatch.setattr(linear, "only_linear", lambda: only_linear(SMALL))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


SIZES = (16, 16, 16)
SMALL = msgspec.structs.replace(
    SHAPE,
    vocab_size=50,
    hidden_size=32,
    mlp_size=32,
    head_dim=16,
    linear=LinearConfig(layer_types=SHAPE.layer_types, key_heads=1, value_heads=2, key_dim=16, value_dim=16),
)


def small_bench(seed: int, longest: int, widest: int) -> DecodeBench:
    return DecodeBench(seed, longest, widest, SMALL, SIZES, 600)


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "linear", *arguments])
    assert not ended.value.code


def test_the_report_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    sizes = ["--widths", "5,20", "--dims", "16", "--heads", "2", "--rounds", "2,3", "--runs", "5"]
    decode = ["--decode-widths", "4,9", "--prompts", "7,30", "--prefills", "9,1100"]
    run("--family", "kda", "--json", str(file), *sizes, *decode)
    report = msgspec.json.decode(file.read_bytes(), type=LinearReport)
    assert [(c.rounds, c.width) for c in report.operator] == [(2, 5), (2, 20), (3, 5), (3, 20)]
    for cell in report.operator:
        slots = cell.width * cell.rounds
        assert cell.record_bytes == 2 * 16 * 16 * 4 + slots * 3 * 2 * 16 * 4 + 4 * slots
        assert cell.materialised_bytes == cell.width * 2 * 16 * 16 * 4
        assert cell.max_difference <= 1e-5
        assert cell.records.runs == cell.materialised.runs == 5
        assert cell.records.min_ms <= cell.records.median_ms <= cell.records.max_ms
        assert cell.replay_ratio is not None
        assert cell.ratio == cell.materialised.median_ms / cell.records.median_ms
    assert report.operator_ratio == min(c.ratio for c in report.operator if c.width == 20)
    assert [(c.prompt, c.width) for c in report.end_to_end] == [(7, 4), (7, 9), (30, 4), (30, 9)]
    for cell in report.end_to_end:
        assert cell.same_sets
        assert cell.max_difference <= 1e-5
        one = 3 * 2 * 16 * 16 * 4  # the states of three linear layers
        slot = 3 * (16 + 32 + 2) * 4
        assert cell.record_bytes.state == one + 2 * cell.width * slot
        assert cell.materialised_bytes.state == cell.width * one
        assert cell.record_bytes.convolution == 3 * 64 * 4 * (3 + 2 * cell.width)
        assert cell.index_bytes == 4 * 2 * cell.width
        assert cell.kv_bytes == 2 * 16 * 4 * (cell.prompt + 2 * cell.width)
        assert cell.replay_ratio is not None
    cell = report.prefill
    assert cell is not None
    assert (cell.layers, cell.tokens, cell.short.runs, cell.long.runs) == (2, (9, 1100), 5, 5)
    assert cell.state_bytes == 2 * (2 * 16 * 16 + 3 * 64) * 4
    assert cell.per_token_ratio == (cell.long.median_ms / 1100) / (cell.short.median_ms / 9)
    shown = capsys.readouterr().out
    assert "Searches" in shown
    assert "1,100 tokens" in shown


def test_searches_may_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    sizes = ["--widths", "5", "--dims", "16", "--heads", "2", "--rounds", "2", "--runs", "1"]
    run("--json", str(file), "--decode-widths", "", "--prefills", "", *sizes)
    report = msgspec.json.decode(file.read_bytes(), type=LinearReport)
    assert (report.end_to_end, report.prefill) == ((), None)
    assert set(quick_report(report).values()) == {report.operator_ratio, None}


def test_a_quick_report_has_the_ratios_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "relaygr.cli.bench_linear.QUICK",
        replace(linear.QUICK, dims=(16,), heads=(2,), prompts=(20,), prefills=(5, 40)),
    )
    file = tmp_path / "report.json"
    run("--quick", "--json", str(file))
    found = msgspec.json.decode(file.read_bytes())
    assert set(found) == {
        *("operator_ratio", "end_to_end_ratio_min", "end_to_end_ratio_max", "prefill_per_token_ratio")
    }
    assert found["operator_ratio"] > 0
    assert found["prefill_per_token_ratio"] > 0
    assert found["end_to_end_ratio_min"] > 0
    assert found["end_to_end_ratio_max"] > 0


def test_ratios_end_to_end_are_of_the_decode_phase() -> None:
    def cell(states_ms: float, prefill_ms: float, width: int = 64) -> EndToEndCell:
        def spread(ms: float) -> Spread:
            return Spread(median_ms=ms, min_ms=ms, max_ms=ms, runs=5)

        return EndToEndCell(
            width=width,
            prompt=256,
            prefill=spread(prefill_ms),
            records=spread(10.0),
            materialised=spread(states_ms),
            record_bytes=LinearBytes(1, 2),
            materialised_bytes=LinearBytes(3, 4),
            index_bytes=6,
            kv_bytes=5,
            max_difference=0.0,
            same_sets=True,
        )

    report = LinearReport(machine=MACHINE, spec={}, operator=(), end_to_end=(cell(20, 10), cell(30, 0, 512)))
    assert report.end_to_end[0].total_ratio == 1.5
    assert quick_report(report) == {
        "operator_ratio": None,
        "end_to_end_ratio_min": 2.0,
        "end_to_end_ratio_max": 3.0,
        "prefill_per_token_ratio": None,
    }
    assert report.published_ratios == (1.54, 2.46)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_ways_read_the_same(family: str) -> None:
    case = OperatorCase(OperatorShape(family, 30, 2, 16, 3), 1)  # type: ignore[arg-type]
    for ours, states, replays in zip(case.records(), case.materialised(), case.replayed(), strict=True):
        torch.testing.assert_close(ours, states, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours, replays, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("--family", {"family": "lstm"}),
        ("--widths", {"widths": ()}),
        ("--dims", {"dims": (0,)}),
        ("--runs", {"runs": 0}),
        ("--prefills", {"prefills": (0, 5)}),
        ("--threads", {"threads": 0}),
    ],
)
def test_options_are_checked(option: str, fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=option):
        LinearSpec(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["5", "1,2,3", "a,b", "0,5"])
def test_prompts_come_in_pairs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "linear", "--prefills", text])
    assert ended.value.code == 2
    assert "--prefills" in capsys.readouterr().err


def test_the_kernel_is_chosen_by_device() -> None:
    choice = choose_recurrent()
    assert choice.kernel.name == "cpu"
    assert choice.reason.startswith("cpu")
    with pytest.raises(BackendError, match="'meta'"):
        choose_recurrent("meta")
