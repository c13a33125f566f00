"""Settings of the disk tier and the snapshot: refused by the key, the value and what is wrong with it."""

from __future__ import annotations

import pytest

from relaygr.config.host import HostConfig
from relaygr.config.load import load_config
from relaygr.core.errors import ConfigError


def test_both_are_off_by_default() -> None:
    host = load_config().host
    assert (host.disk_bytes, host.disk_path, host.snapshot_path) == (0, "", "")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["host.disk_bytes=-1"], r"host\.disk_bytes: '-1' must be a number of bytes"),
        (["host.disk_index_bytes=100"], r"host\.disk_index_bytes: 100 must be in \[65536, "),
        (["host.disk_bytes=1000"], r"host\.disk_path: is empty; 1000 host\.disk_bytes need a folder"),
        (
            ["host.disk_bytes=1000", "host.disk_path=/tmp/x", "host.host_bytes=0"],
            r"host\.disk_bytes: 1000 needs a host tier: host\.host_bytes is 0",
        ),
        (
            ["host.snapshot_path=/tmp/x", "host.host_bytes=0"],
            r"host\.snapshot_path: '/tmp/x' needs a host tier: host\.host_bytes is 0",
        ),
    ],
)
def test_what_cannot_work_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(overrides=overrides)


def test_sizes_are_in_their_range() -> None:
    with pytest.raises(ConfigError, match=r"host\.disk_bytes: -1 must be in \[0, 1125899906842624\]"):
        HostConfig(disk_bytes=-1)
    assert load_config(overrides=["host.disk_bytes=2GiB", "host.disk_path=x"]).host.disk_bytes == 2 << 30


@pytest.mark.parametrize("key", ["disk_path", "snapshot_path"])
def test_no_file_is_called_so(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"host\.{key}: 'a\\x00b' contains NUL"):
        HostConfig(**{key: "a\0b"})  # type: ignore[arg-type]
