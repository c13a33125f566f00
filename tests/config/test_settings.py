"""Ranges hold however a section is built."""

from __future__ import annotations

import math

import msgspec
import pytest

from relaygr.config.limits import Range, Section
from relaygr.config.relay import Member, RouterConfig
from relaygr.config.settings import Config, EngineConfig, SchedulerConfig, StoreConfig, TrainConfig
from relaygr.config.sizes import parse_bytes
from relaygr.core.errors import ConfigError


def test_defaults() -> None:
    engine, train = Config().engine, Config().train
    assert (engine.page_tokens, engine.device_bytes, engine.microbatch) == (32, 2 << 30, 512)
    assert (engine.dtype, engine.kernel, engine.threads, engine.bitwise) == ("auto", "auto", 0, False)
    assert (engine.lease_ttl_ms, engine.max_candidates, engine.max_batch_requests) == (60_000, 16384, 64)
    assert engine.anchor_stride == 0.25
    assert (train.max_minutes, train.max_steps) == (3.0, 0)


def test_store_defaults() -> None:
    store = Config().store
    assert (store.url, store.synchronous) == ("sqlite:///relaygr-history.db", "normal")
    assert (store.keep_events, store.dedupe_events, store.keys_per_user) == (65_536, 64, 64)
    assert (store.timeout_ms, store.map_bytes) == (5000, 64 << 30)


@pytest.mark.parametrize("pages", [8, 16, 32, 64, 128, 256])
def test_page_tokens_accepts_powers_of_two(pages: int) -> None:
    assert EngineConfig(page_tokens=pages).page_tokens == pages


@pytest.mark.parametrize("pages", [-32, 0, 1, 4, 9, 33, 255, 512])
def test_page_tokens_refuses_the_rest(pages: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"engine.page_tokens: {pages} must be a power of two in \[8, 256\]"
    ):
        EngineConfig(page_tokens=pages)


@pytest.mark.parametrize("stride", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_anchor_stride_range(stride: float) -> None:
    with pytest.raises(ConfigError, match=r"engine\.anchor_stride: .* must be in \(0, 1\]"):
        EngineConfig(anchor_stride=stride)


@pytest.mark.parametrize("section", [EngineConfig, TrainConfig, StoreConfig])
def test_limits_name_real_fields_and_every_number_has_one(
    section: type[Section],
) -> None:
    numeric = {field.name for field in msgspec.structs.fields(section) if field.type in (int, float)}
    assert set(section.LIMITS) == numeric


@pytest.mark.parametrize("section", [EngineConfig, TrainConfig, StoreConfig])
def test_both_ends_of_every_range(section: type[Section]) -> None:
    for name, limit in section.LIMITS.items():
        section(**{name: limit.high})
        if not limit.open_low:
            section(**{name: limit.low})
        for outside in (limit.low - 1, limit.high + 1):
            with pytest.raises(ConfigError) as caught:
                section(**{name: outside})
            assert caught.value.path == f"{section.PATH}.{name}"


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().engine.threads = 3  # type: ignore[misc]


def test_range_says_its_bounds() -> None:
    assert str(Range(0, 0.5, open_low=True)) == "in (0, 0.5]"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("1gib", 1 << 30),
        (" 7 B ", 7),
        ("1TiB", 1 << 40),
    ],
)
def test_parse_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "1GB", "1e3", "-1MiB", "0.3B", "1 2", "١MiB", "9" * 40])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("name", ["rank_deadline_ms", "prefix_deadline_ms"])
def test_no_deadline_by_default_that_no_request_may_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"scheduler.{name}: 2000 must be at most scheduler.deadline_max"):
        SchedulerConfig(
            **{"rank_deadline_ms": 500.0, "prefix_deadline_ms": 500.0, name: 2000.0}, deadline_max_ms=1000
        )
    assert (
        SchedulerConfig(rank_deadline_ms=900, prefix_deadline_ms=1000, deadline_max_ms=1000).chunk_tokens == 0
    )


def test_two_members_are_two_instances() -> None:
    members = (Member(id="a", url="http://one:1/"), Member(id="b", url="http://one:1"))
    with pytest.raises(ConfigError, match=r"router.members\[1\].url: 'http://one:1' is there twice"):
        RouterConfig(members=members)
