"""A fresh generator expects what followed the last time; shapes that cannot hold the heads are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaygr.models.decoder.config import DecoderConfig, RopeConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.linear_config import LinearConfig
from relaygr.training.sid_initial import start_from_repeating


def fresh(**changes: object) -> Decoder:
    shape: dict[str, object] = {
        "family": "qwen3", "vocab_size": 200, "hidden_size": 64, "mlp_size": 64, "num_layers": 3,
        "num_heads": 2,
        "num_kv_heads": 2, "head_dim": 64, "rope": RopeConfig(theta=1e6), "tie_embeddings": True,
        "max_positions": 150,
    }  # fmt: skip
    return Decoder(DecoderConfig(**{**shape, **changes})).init_weights(0, 0.125)  # type: ignore[arg-type]


def guessed(model: Decoder) -> float:
    """How often the code that followed the last time has its level's best score: 20 pairs of codes, twice."""
    rng = np.random.default_rng(1)
    once = (np.arange(2) * 100 + np.stack([rng.integers(100, size=(20, 2)) for _ in range(8)])).reshape(8, -1)
    tokens = torch.from_numpy(np.concatenate([once, once], axis=1))
    with torch.no_grad():
        scores = model.train_logits(tokens)
    right = 0
    for place in range(41, 80):
        level = place % 2
        best = scores[:, place - 1, 100 * level : 100 * level + 100].argmax(-1) + 100 * level
        right += int((best == tokens[:, place]).sum())
    return right / (8 * 39)


@pytest.mark.parametrize("heads", [2, 4])
def test_a_fresh_model_repeats(heads: int) -> None:
    model = fresh(num_heads=heads)
    assert guessed(model) < 0.1
    start_from_repeating(model, 0)
    assert guessed(model) > 0.7


@pytest.mark.parametrize(
    "changes", [{"num_layers": 1}, {"num_kv_heads": 1}, {"tie_embeddings": False}], ids=str
)
def test_other_shapes_start_from_nothing_added(changes: dict[str, object]) -> None:
    model = fresh(**changes)
    table = model.embed.weight.clone()
    start_from_repeating(model, 0)
    assert torch.equal(model.embed.weight, table)
    assert all(not layer.output.weight.any() and not layer.down.weight.any() for layer in model.layers)


def test_a_seed_gives_one_start() -> None:
    models = [fresh() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        start_from_repeating(model, seed)
    first, second, third = (model.layers[1].output.weight for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


LINEAR, FULL = "linear_attention", "full_attention"


def linear(*kinds: str, **shape: int) -> Decoder:
    layers = LinearConfig(
        layer_types=kinds,  # type: ignore[arg-type]
        **{"key_heads": 2, "value_heads": 2, "key_dim": 128, "value_dim": 64} | shape,
    )
    return fresh(family="qwen3_next", num_layers=len(kinds), linear=layers)


@pytest.mark.parametrize(
    ("kinds", "shape"),
    [
        ((LINEAR, FULL), {}),
        ((LINEAR, LINEAR, FULL, LINEAR), {"key_dim": 8, "value_heads": 4}),
        ((LINEAR,), {}),
        ((LINEAR, LINEAR), {"key_heads": 1, "value_heads": 2}),
        ((FULL, FULL, LINEAR), {}),
    ],
    ids=str,
)
def test_fresh_models_with_linear_layers_repeat(kinds: tuple[str, ...], shape: dict[str, int]) -> None:
    model = linear(*kinds, **shape)
    assert guessed(model) < 0.1
    start_from_repeating(model, 0)
    assert guessed(model) > 0.7


@pytest.mark.parametrize("shape", [{"taps": 2}, {"key_dim": 3}, {"value_dim": 4}], ids=str)
def test_linear_layers_of_other_shapes_start_too(shape: dict[str, int]) -> None:
    model = linear(LINEAR, LINEAR, **shape)
    start_from_repeating(model, 0)
    assert bool(torch.isfinite(model.train_logits(torch.arange(30)[None])).all())
    assert model.layers[0].output.weight.any()
    assert not model.layers[1].output.weight.any()


def test_a_layer_without_room_for_a_comparison_starts_from_nothing_added() -> None:
    model = linear(LINEAR, key_dim=1)
    start_from_repeating(model, 0)
    assert not model.layers[0].output.weight.any()
