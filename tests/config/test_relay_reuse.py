"""Serving without reuse between requests is for servers without the relay."""

import pytest

from relaygr.config.load import load_config
from relaygr.core.errors import ConfigError


def test_reuse_is_switched_off_with_the_relay_only() -> None:
    assert load_config().relay.reuse
    assert not load_config(overrides=["relay.enabled=false", "relay.reuse=false"]).relay.reuse
    with pytest.raises(ConfigError, match=r"relay\.reuse: must be true where relay\.enabled is"):
        load_config(overrides=["relay.reuse=false"])
