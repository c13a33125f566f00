"""Settings of the event stream."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relaygr.config.load import load_config
from relaygr.config.stream import MAX_STREAMS, StreamConfig
from relaygr.core.errors import ConfigError


def test_none_is_read_by_default() -> None:
    assert load_config().stream == StreamConfig()
    assert StreamConfig().url == ""


def test_streams_are_names_with_commas_between_them() -> None:
    config = load_config(environ={"RELAYGR_STREAM__STREAMS": "a, b"}, overrides=["stream.group=g"])
    assert (config.stream.streams, config.stream.group) == (("a", "b"), "g")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stream.streams=", r"stream\.streams: names 0 streams, limit 64"),
        ("stream.streams=" + ",".join(map(str, range(MAX_STREAMS + 1))), r"names 65 streams, limit 64"),
        ("stream.streams=a,b,a", r"stream\.streams\[2\]: 'a' is there twice"),
        ("stream.streams=" + "x" * 257, r"stream\.streams\[0\]: .* has 257 bytes, limit 256"),
        ("stream.group=", r"stream\.group: must not be empty"),
        ("stream.dead_letter=relaygr:events", r"stream\.dead_letter: .* is one of stream\.streams"),
        ("stream.retry_max_ms=50", r"stream\.retry_max_ms: 50 must be at least stream\.retry_ms = 100"),
        ("stream.batch=0", r"stream\.batch: 0 must be in \[1, 16384\]"),
        ("stream.first=middle", r"stream\.first: 'middle' must be one of 'oldest', 'newest'"),
    ],
)
def test_what_is_wrong_is_named(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(overrides=[override])


def test_the_manual_describes_every_setting() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "streams.md").read_text()
    names = set(StreamConfig.__struct_fields__)
    table = text[text.index("## Settings") : text.index("Metrics are in")]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    described = set(re.findall(r"`(\w+)`", " ".join(cells)))
    assert described - {"stream"} == names
    assert set(re.findall(r"`stream\.(\w+)`", text)) <= names
