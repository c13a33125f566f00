"""What a host format does to scores: measured against slow passes, and refused above the limit."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import CONFIG, FAMILIES, KEPT, PAGE_TOKENS, _choose, random_model
from msgspec.structs import replace

from relaygr.config.host import HostConfig
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.engine.drift import Case, Drift, DriftMeter, check_drift, say_format, start_drift
from relaygr.engine.engine import Engine
from relaygr.memory.formats import BF16, FP8, INT8, INT8_PAGE, SAME, formats
from relaygr.models.presets import AnyConfig

CASE = Case(prefix=60, suffix=9, candidates=16, seed=3)


def meter(config: AnyConfig = CONFIG, dtype: str = "fp32") -> DriftMeter:
    choice = _choose("cpu", dtype, False)
    return DriftMeter(random_model(config).cast(choice.dtype), choice.kernel, PAGE_TOKENS)


def engine_of(host: HostConfig, config: AnyConfig = CONFIG) -> Engine:
    choice = _choose("cpu", "fp32", False)
    settings = EngineConfig(page_tokens=PAGE_TOKENS, device_bytes=1 << 20)
    model = random_model(config)
    return Engine(model, Fingerprint(bytes(16)), choice, settings, host=host)


@pytest.mark.parametrize("family", KEPT)
def test_exact_is_exact_and_fewer_bits_drift_more(family: str) -> None:
    same, half, eight = meter(KEPT[family]).drifts(CASE, [SAME, BF16, INT8])
    assert same.logit <= 1e-5
    assert 1e-7 < half.logit < eight.logit
    assert 0 < eight.probability <= eight.logit / 4 * 1.01  # the steepest sigmoid
    assert 0 < eight.mean_share < 0.1
    assert 0 <= eight.overlap <= 1


def test_all_formats_and_a_page_of_part_length() -> None:
    found = dict(
        zip(
            [one.name for one in formats(torch.float32)],
            meter().drifts(CASE, formats(torch.float32)),
            strict=True,
        )
    )
    assert list(found) == ["same", "bf16", "int8", "int8_page", "fp8", "fp8_page"]
    assert found["int8"].logit < found["fp8"].logit
    assert all(one.probability < 0.01 for one in found.values())


@pytest.mark.parametrize("form", [BF16, INT8, FP8], ids=lambda form: form.name)
def test_fifty_turns_drift_hardly_more_than_one(form: Any) -> None:
    found = meter()
    once = found.drifts(Case(100, 20, 16, 0), [form])[0]
    often = found.cycles(Case(20, 100, 16, 0), form, 50)
    assert 0 < often.logit <= 4 * once.logit


def test_turns_without_rounding_and_pages_that_round_anew() -> None:
    found, case = meter(), Case(20, 100, 16, 0)
    assert found.cycles(case, SAME, 50).logit <= 1e-5
    assert found.cycles(case, INT8_PAGE, 50).logit > 0


def test_the_worst_of_several() -> None:
    one, other = Drift(1.0, 0.2, 0.3, 0.9), Drift(0.5, 0.4, 0.1, 1.0)
    assert one.worst(other) == Drift(1.0, 0.4, 0.3, 0.9)


def test_what_is_compared() -> None:
    wanted = torch.tensor([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0]], dtype=torch.float64)
    found = wanted + torch.tensor([[0.1, 0.0], [0.0, 0.0], [0.0, -3.0]], dtype=torch.float64)
    plain = meter()._drift(found, wanted)
    assert plain.logit == pytest.approx(3.0)
    moved = np.abs(1 / (1 + np.exp(-found.numpy())) - 1 / (1 + np.exp(-wanted.numpy()))).max()
    assert plain.probability == pytest.approx(moved)
    assert plain.mean_share == pytest.approx(
        max(0.1 / 3 / wanted[:, 0].std(correction=0), 1 / np.std([10, 20, 30]))
    )
    assert plain.overlap == 1.0  # three candidates
    # The value of a regression has no probability: three of thirty are a tenth.
    assert meter(replace(CONFIG, regressions=("like",)))._drift(found, wanted).probability == pytest.approx(
        0.1
    )
    many = torch.arange(40.0, dtype=torch.float64).repeat(2, 1).T.contiguous()
    turned = many.clone()
    turned[:5, 0] = 100  # five others among the best ten of one task
    assert meter()._drift(turned, many).overlap == pytest.approx(0.75)


def test_nothing_finite_is_the_largest_drift() -> None:
    fine = torch.zeros(3, 2, dtype=torch.float64)
    broken = fine + torch.nan
    assert meter()._drift(broken, fine) == Drift(torch.inf, torch.inf, torch.inf, 0.0)
    with pytest.raises(BackendError, match="not finite"):
        meter()._drift(fine, broken)


@pytest.mark.parametrize("family", [name for name, one in FAMILIES.items() if one.cacheable != "append"])
def test_models_that_keep_nothing_between_requests(family: str) -> None:
    config = FAMILIES[family]
    with pytest.raises(ConfigError, match="no prefix of it is kept"):
        meter(config)
    host = HostConfig(host_bytes=1 << 20, host_dtype="int8", drift_limit=1e-9)
    assert check_drift(engine_of(host, config), host) is None


@pytest.mark.parametrize("name", ["bf16", "int8", "fp8"])
def test_a_format_above_the_limit_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    host = HostConfig(host_bytes=1 << 20, host_dtype=name)  # type: ignore[arg-type]
    engine = engine_of(host)
    with caplog.at_level(logging.INFO, "relaygr.engine"):
        drift = check_drift(engine, host)
    assert drift == start_drift(engine, engine.host_format)  # seeded
    assert drift is not None
    assert (
        f"host tier in {name}: moves a probability by up to {drift.probability:.2g} (limit 0.01)"
        in caplog.text
    )
    assert check_drift(engine, replace(host, drift_limit=drift.probability)) == drift
    with pytest.raises(
        ConfigError, match=rf"host\.host_dtype: '{name}' .* {drift.probability:.3g}, .* 1e-06"
    ):
        check_drift(engine, replace(host, drift_limit=1e-6))


@pytest.mark.parametrize(
    "host", [HostConfig(host_bytes=1 << 20), HostConfig(host_bytes=0, host_dtype="int8")]
)
def test_nothing_is_measured_where_nothing_is_rounded(
    host: HostConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drifts(*_: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(DriftMeter, "drifts", drifts)
    assert check_drift(engine_of(host), replace(host, drift_limit=1e-9)) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, True), ({"host_dtype": "int8"}, False), ({"host_bytes": 0}, False)],
)
def test_the_hint_is_for_exact_states_in_host_memory(
    settings: dict[str, Any], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    host = HostConfig(**{"host_bytes": 1 << 20} | settings)
    engine = engine_of(host, replace(CONFIG, qk_dim=64, v_dim=64))
    with caplog.at_level(logging.INFO, "relaygr.engine"):
        say_format(engine, host)
    assert ("host.host_dtype=int8 holds 3.9x more users" in caplog.text) is said
