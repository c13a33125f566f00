"""Ranges of `serving`."""

from __future__ import annotations

import msgspec
import pytest

from relaygr.config.load import load_config
from relaygr.config.settings import ServingConfig
from relaygr.core.errors import ConfigError


def test_every_number_has_a_range_and_its_default_is_inside() -> None:
    numeric = {field.name for field in msgspec.structs.fields(ServingConfig) if field.type in (int, float)}
    assert set(ServingConfig.LIMITS) == numeric
    for name, limit in ServingConfig.LIMITS.items():
        ServingConfig(**{name: limit.high})
        for outside in (limit.low - 1, limit.high + 1):
            with pytest.raises(ConfigError, match=rf"serving\.{name}: "):
                ServingConfig(**{name: outside})


def test_texts_and_sizes() -> None:
    config = load_config(
        overrides=["serving.body_limit_bytes=1MiB", "serving.model=some/folder", "serving.log_personal=true"]
    )
    assert config.serving.body_limit_bytes == 1 << 20
    assert (config.serving.model, config.serving.log_personal) == ("some/folder", True)
    with pytest.raises(ConfigError, match="must be one of 'debug', 'info', 'warning', 'error'"):
        load_config(overrides=["serving.log_level=loud"])
