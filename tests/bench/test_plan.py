"""`plan model`: figures are those of `models.cost`, users fit whole pages, bad options are named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from relaygr.bench.plan import plan_model
from relaygr.cli.main import main
from relaygr.core.units import GIB, MIB
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import preset


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_shape_of_the_specification() -> None:
    """Few and many candidates: the cache saves about 30 % and about 90 %."""
    many = plan_model(preset("hstu-mlperf"), 1024, 2048, "bf16", 2 * GIB)
    few = plan_model(preset("hstu-mlperf"), 1024, 100, "bf16", 2 * GIB)
    assert many.flops_per_token_and_layer == pytest.approx(3.67e6, rel=2e-3)
    assert many.overtakes_token == 1792
    assert many.overtakes_prefill == 3584
    assert many.prefill_flops == pytest.approx(24e9, rel=0.01)
    assert many.hit_flops == pytest.approx(59e9, rel=0.01)
    assert few.hit_flops == pytest.approx(2.9e9, rel=0.01)
    assert many.saved_share == pytest.approx(0.3, abs=0.015)
    assert few.saved_share == pytest.approx(0.9, abs=0.015)
    assert many.full_flops == many.prefill_flops + many.hit_flops
    assert many.kv_bytes_per_token == 10 * 1024


def test_users_take_whole_pages() -> None:
    config = preset("hstu-kuairand")  # 6 KiB a token in bf16, 192 KiB a page of 32
    assert plan_model(config, 32, 1, "bf16", 6 * MIB).users == 32
    assert plan_model(config, 33, 1, "bf16", 6 * MIB).users == 16
    assert plan_model(config, 32, 1, "fp32", 6 * MIB).users == 16
    # 102,400 pages of 32 hold 400 full users of 8,192 tokens.
    assert plan_model(config, 8192, 1, "bf16", 102_400 * 32 * 6144).users == 400


def test_an_append_computes_its_own_tokens() -> None:
    config = preset("hstu-tiny")
    plan = plan_model(config, 1024, 8, "fp32", GIB)
    shorter = plan_model(config, 1008, 8, "fp32", GIB)
    assert plan.append_flops == plan.prefill_flops - shorter.prefill_flops
    assert plan_model(config, 3, 8, "fp32", GIB).appended == 3
    assert plan_model(config, 3, 0, "fp32", GIB).saved_share == 1


def test_it_prints_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "model", "--preset", "hstu-kuairand", "--history", 8192, "--device-bytes", "1GiB") == 0
    printed = capsys.readouterr().out
    for words in ("3.67 MFLOP", "1,792", "6 KiB", "48 MiB", "users in 1 GiB", "21"):
        assert words in printed


def test_it_prints_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config: HstuConfig = preset("hstu-tiny")
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    assert run("plan", "model", "--model", tmp_path, "--history", 64, "--dtype", "fp32") == 0
    assert "1 KiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--history", "0"], "--history: 0 is outside [1, 4096]"),
        (["--candidates", "20000"], "--candidates: 20000 is outside [0, 16384]"),
        (["--dtype", "fp64"], "--dtype: 'fp64' is not one of fp32, bf16"),
        (["--device-bytes", "2GB"], "--device-bytes: '2GB' must be a number of bytes"),
        (["--device-bytes", "99999999999999999999GiB"], "--device-bytes: 10737418239999999999"),
        (["--device-bytes", "1023KiB"], "--device-bytes: 1047552 must be in [1048576, 17592186044416]"),
        (["--device-bytes", "1KiB"], "--device-bytes: 1024 is less than one page, 131072"),
        (["--preset", "hstu"], "preset: 'hstu' is unknown"),
        (["--preset", "hstu-tiny", "--model", "x"], "--preset: 'hstu-tiny' and --model x exclude each other"),
        (["--model", "nowhere"], "nowhere/config.json: cannot be read"),
    ],
)
def test_bad_options(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "model", *options) == 2
    assert words in capsys.readouterr().err
