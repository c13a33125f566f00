"""Settings of the relay that are refused before anything is served, by the path of the key that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from relay_apps import relay_settings
from serving_apps import ENGINE, running, settings

from relaygr.config.load import load_config
from relaygr.config.settings import BudgetConfig
from relaygr.core.errors import ConfigError
from relaygr.engine import tiers
from relaygr.serving.service import Service

# Milliseconds that agree with one another, whatever the machine.
SOUND = BudgetConfig(
    b_pipe_ms=100_000.0,
    b_rank_ms=50_000.0,
    guard_ms=3.0,
    lead_default_ms=80.0,
    lead_p99_ms=150.0,
    chunk_ms=4_000.0,
    t_life_ms=50_150.0,
)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> str:
    """Measured once, read by every start after it."""
    file = str(tmp_path_factory.mktemp("speed") / "speed.json")
    config = settings(model_folder, calibrate_s=0.3, calibration=file)
    with running(replace(config, budgets=SOUND)):
        return file


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("relay.enabled", "maybe"),
        ("relay.fallback_mode", "none"),
        ("relay.reuse", "false"),  # where the relay is on
        ("relay.h_relay_share", "0"),
        ("relay.h_relay_share", "1.1"),
        ("relay.h_relay_bytes", "-1"),
        ("relay.suffix_min_tokens", "-1"),
        ("relay.len_bucket_tokens", "0"),
        ("relay.epsilon_limit", "0"),
        ("relay.shadow_rate", "1.5"),
        ("trigger.hysteresis", "0.95"),
        ("trigger.seq_at_risk_min_tokens", "-1"),
        ("trigger.metadata_max_age_s", "0"),
        ("trigger.lead_quantile", "1.1"),
        ("trigger.u_max", "1"),
        ("trigger.u_max", "0"),
        ("trigger.model_slots", "-1"),
        ("trigger.pre_rate_per_s", "-1"),
        ("trigger.pre_burst", "0"),
        ("trigger.key_inflight_max", "0"),
        ("trigger.candidates_default", "-1"),
        ("host.host_bytes", "-1"),
        ("host.run_chunk_tokens", "7"),
        ("host.clean_target", "1"),
        ("host.d_ttl_s", "-1"),
        ("host.reload_slots", "0"),
        ("host.reload_bytes_per_s", "-1"),
        ("host.spill_min_reuse", "1.1"),
        ("host.spill_queue_max", "0"),
        ("host.interference_max", "-0.1"),
        ("host.checksum_share", "1.1"),
        ("host.copy_threads", "-1"),
        ("host.staging_tokens", "7"),
        ("host.store_timeout_ms", "0"),
        ("host.fail_mode", "ajar"),
        ("router.special_share", "1.1"),
        ("router.load_factor", "0.5"),
        ("router.placement_ttl_s", "-1"),
        ("router.placement_max", "0"),
        ("router.ramp_s", "-1"),
        ("router.feedback_max_age_s", "0"),
        ("engine.page_tokens", "33"),
        ("engine.anchor_stride", "0"),
        ("engine.dtype", "fp8"),
        ("scheduler.rank_batch_max", "0"),
        ("scheduler.rank_batch_wait_ms", "-1"),
        ("budgets.b_rank_ms", "0"),
        ("budgets.chunk_ms", "0"),
        ("budgets.t_life_slack_ms", "-1"),
    ],
)
def test_r35_a_value_outside_its_range(path: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"{path}={value}"])
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("t_life_ms", 50_149.0, "0 or at least lead_p99_ms + b_rank_ms = 50150"),
        ("chunk_ms", 50_000.0, "less than b_rank_ms = 50000"),
        ("guard_ms", 50_000.0, "less than b_rank_ms = 50000"),
        ("b_pipe_ms", 49_999.0, "at most b_pipe_ms = 49999"),
        ("lead_default_ms", 151.0, "at most lead_p99_ms = 150"),
    ],
)
def test_r35_budgets_that_contradict_one_another(
    model_folder: Path, calibration: str, path: str, value: float, words: str
) -> None:
    config = settings(model_folder, calibrate_s=0.3, calibration=calibration)
    wrong = replace(config, budgets=replace(SOUND, **{path: value}))
    with pytest.raises(ConfigError, match=re.escape(words)) as caught, running(wrong):
        pass
    assert caught.value.path == f"budgets.{'b_rank_ms' if path == 'b_pipe_ms' else path}"


def test_r35_more_live_bytes_than_the_device_has(model_folder: Path) -> None:
    device = ENGINE.device_bytes
    Service(relay_settings(model_folder, relay={"h_relay_bytes": device}))
    with pytest.raises(ConfigError, match=f"{device + 1} is more than engine.device_bytes") as caught:
        Service(relay_settings(model_folder, relay={"h_relay_bytes": device + 1}))
    assert caught.value.path == "relay.h_relay_bytes"


def test_r35_more_device_memory_than_can_be_had(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory\nstack")

    monkeypatch.setattr(tiers, "PagePool", refuse)
    with (
        pytest.raises(ConfigError, match="cannot be had: not enough memory") as caught,
        running(relay_settings(model_folder)),
    ):
        pass
    assert caught.value.path == "engine.device_bytes"


def test_r35_chunks_of_the_host_that_are_no_pages(model_folder: Path) -> None:
    with (
        pytest.raises(ConfigError, match="a multiple of 32") as caught,
        running(relay_settings(model_folder, host={"run_chunk_tokens": 100})),
    ):
        pass
    assert caught.value.path == "host.run_chunk_tokens"


def test_r35_a_host_tier_smaller_than_a_chunk_is_off_and_says_so(
    model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"), running(relay_settings(model_folder, host={"host_bytes": 100})) as app:
        assert not app.service.engine._tiers.has_host
    assert "no host tier: host_bytes: 100 is less than one chunk" in caplog.text
