"""Rotary tables equal the published ones, far out too; settings that cannot be are refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from decoder_cases import NAMES, ours, theirs

from relaygr.core.errors import ConfigError
from relaygr.models.decoder.config import DecoderConfig, RopeConfig
from relaygr.models.decoder.rope import RopeTable, frequencies

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", NAMES)
def test_tables_equal_the_published_ones(name: str) -> None:
    config = ours(name).config
    table = RopeTable(config.rope, config.head_dim, 40_000)
    cos, sin = theirs(name).model.rotary_emb(torch.zeros(1, dtype=torch.float32), torch.arange(40_000)[None])
    mine = table.run(0, 40_000, CPU)
    half = config.head_dim // 2
    assert float((mine.cos[:, 0] - cos[0]).abs().max()) <= 1e-5
    assert float((mine.sin[:, 0, half:] - sin[0, :, half:]).abs().max()) <= 1e-5
    assert torch.equal(mine.sin[..., :half], -mine.sin[..., half:])


def test_llama3_keeps_fast_pairs_and_divides_slow_ones() -> None:
    rope = RopeConfig(kind="llama3", factor=8.0, original_positions=64)
    scaled, plain = frequencies(rope, 64), frequencies(RopeConfig(), 64)
    turns = 64 * plain / (2 * torch.pi)
    assert torch.allclose(scaled[turns > 4], plain[turns > 4])
    assert torch.allclose(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert bool(between.any())
    assert bool((scaled[between] < plain[between]).all())
    assert bool((scaled[between] > plain[between] / 8).all())


def test_a_table_grows_and_ends() -> None:
    table = RopeTable(RopeConfig(), 8, 10_000)
    first = table.run(0, 5, CPU)
    far = table.run(9_990, 10, CPU)
    assert torch.equal(table.run(0, 5, CPU).cos, first.cos)
    assert len(far.cos) == 10
    with pytest.raises(ValueError, match="position: 10000 must be below max_positions, 10000"):
        table.run(9_991, 10, CPU)


def test_threads_may_let_a_table_grow() -> None:
    wanted = RopeTable(RopeConfig(), 8, 1 << 16).run(1 << 15, 64, CPU)
    table, wrong = RopeTable(RopeConfig(), 8, 1 << 16), []

    def look(start: int) -> None:
        for place in range(start, 1 << 15, 997):
            table.run(place, 1, CPU)
        got = table.run(1 << 15, 64, CPU)
        if not (torch.equal(got.cos, wanted.cos) and torch.equal(got.sin, wanted.sin)):
            wrong.append(start)

    threads = [threading.Thread(target=look, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_turning_back_gives_what_was() -> None:
    table, x = RopeTable(RopeConfig(), 16, 100), torch.randn(50, 3, 16)
    there = table.run(20, 50, CPU)
    turned = there.turn(x)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.allclose(type(there)(there.cos, -there.sin).turn(turned), x, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", 0.5),
        ("factor", float("inf")),
        ("high_freq_factor", 1.0),
        ("low_freq_factor", 0.0),
        ("original_positions", 0),
        ("theta", 0.0),
        ("theta", float("nan")),
    ],
)
def test_rope_settings_that_cannot_be(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=r"rope\."):
        RopeConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_dim", 7), ("max_positions", 0), ("norm_eps", 1.0), ("num_kv_heads", 3), ("vocab_size", 0)],
)
def test_shapes_that_cannot_be(field: str, value: float) -> None:
    fields: dict[str, Any] = {
        "family": "llama",
        "vocab_size": 8,
        "hidden_size": 8,
        "mlp_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 4,
    }
    with pytest.raises(ConfigError, match=field):
        DecoderConfig(**fields | {field: value})
    with pytest.raises(ConfigError, match="attention_bias"):
        DecoderConfig(**fields | {"family": "qwen2"})


def test_the_layout_of_keys_and_values() -> None:
    layout = ours("qwen3").config.kv_layout(torch.bfloat16, 16)
    assert layout.token_bytes == 2 * 3 * 2 * 32 * 2
