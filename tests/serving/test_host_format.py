"""A service whose host tier rounds: answers say so, and too large a drift is refused at start."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from serving_apps import App, error_of, events, offline, running, save_model, settings

from relaygr.client.answers import Ranking
from relaygr.config.host import HostConfig
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError
from relaygr.engine import RankRequest, UserHistory
from relaygr.serving.reload import load, relayed

CANDIDATES = [5, 9, 77, 1 << 40]
HISTORY = events(40)


def with_host(folder: Path | None, **host: Any) -> Config:
    return replace(settings(folder), host=HostConfig(host_bytes=1 << 20, load="always", **host))


def ranked(app: App) -> dict[str, Any]:
    body = {"user": "one", "history": HISTORY, "candidates": CANDIDATES, "output": "logits"}
    answer = app.call("POST", "/v1/rank", body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def spill(app: App) -> None:
    """Everybody's states go to host memory."""
    while app.service.engine.spill_step(1.0, 1 << 30, lambda _: True):
        pass


@pytest.mark.parametrize("name", ["same", "bf16", "int8", "fp8"])
def test_answers_say_what_was_rounded(model_folder: Path, name: str) -> None:
    wanted = offline(model_folder).rank(RankRequest(UserHistory("one", *HISTORY.values()), CANDIDATES)).logits
    with running(with_host(model_folder, host_dtype=name)) as app:
        before = ranked(app)
        assert "tokens_quantized" not in before
        np.testing.assert_allclose(before["scores"], wanted, atol=1e-5)
        spill(app)
        after = ranked(app)
        assert (after["path"], after["tokens_cached"]) == ("reloaded", 40)
        assert after.get("tokens_quantized", 0) == (0 if name == "same" else 40)
        typed = msgspec.convert(after, Ranking, strict=False)
        assert typed.tokens_quantized == after.get("tokens_quantized", 0)
        off = float(np.abs(np.array(after["scores"]) - wanted).max())
        assert (off > 1e-6) is (name != "same")
        assert off < 0.05


def test_a_format_above_the_limit_is_refused_at_start(model_folder: Path) -> None:
    config = with_host(model_folder, host_dtype="int8", drift_limit=1e-9)
    with pytest.raises(ConfigError, match=r"host\.host_dtype: 'int8' moves .* host\.drift_limit is 1e-09"):
        App(config)


def test_a_model_that_the_format_moves_too_far_does_not_replace_another(tmp_path: Path) -> None:
    first = save_model(tmp_path / "a")
    save_model(tmp_path / "b", 1)
    with running(with_host(tmp_path / "a", host_dtype="int8")) as app:
        strict = replace(app.service.config.host, drift_limit=1e-9)
        app.service.config = replace(app.service.config, host=strict)
        answer = app.call("POST", "/v1/models/reload", {"path": str(tmp_path / "b")})
        assert "host.host_dtype: 'int8'" in error_of(answer, 422, "model")["message"]
        assert app.service.served.model == first
        ranked(app)


def test_the_relay_is_told_what_a_reload_moves(model_folder: Path) -> None:
    served = load(str(model_folder), with_host(model_folder, host_dtype="int8"))
    told = relayed(served, settings(model_folder).relay)
    device, copy = told.stored(33), told.in_host(33)
    assert device is not None
    assert copy is not None
    assert (device.nbytes, copy.nbytes) == (64 * 2 * 2 * 16 * 4, 64 * 2 * 2 * 20)
    assert told.in_host(0) is None


def test_the_hint_is_said_once_at_start(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = with_host(model_folder)
    with caplog.at_level(logging.INFO, "relaygr.engine"):
        served = load(str(model_folder), config)
        assert caplog.text.count("host.host_dtype=int8 holds 3.2x more users") == 1
        load(str(model_folder), config, served)
        assert caplog.text.count("more users") == 1
