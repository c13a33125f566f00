"""A model of any variant is on disk what it was in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from variant_cases import CASES, random_model, random_row, row_input

from relaygr.core.errors import ConfigError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.presets import PRESETS
from relaygr.models.ranker import Ranker
from relaygr.models.weights import fingerprint, load_config, load_ranker, save_ranker

NAMES = (
    "relay-mixed-0",
    "meta-group-norm",
    "meta-no-actions",
    "meta-hash",
    "nvidia-mlps-relu-last",
    "nvidia-no-positions",
    "research",
    "research-position",
    "transformer-slots",
    "transformer-no-qk-norm",
)


def logits(model: Ranker, name: str) -> torch.Tensor:
    rows = [row_input(random_row(CASES[name], events, 4, events)) for events in (0, 3, 21)]
    with torch.inference_mode():
        return torch.cat(model(rows, ReferenceKernel()))


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_scores_the_same(name: str, tmp_path: Path) -> None:
    model = random_model(CASES[name])
    saved = save_ranker(model, tmp_path)
    loaded = load_ranker(tmp_path)
    assert loaded.config == CASES[name] == load_config(tmp_path)
    assert fingerprint(tmp_path) == saved
    assert torch.equal(logits(loaded, name), logits(model, name))


def test_weights_of_another_variant_are_named_and_refused(tmp_path: Path) -> None:
    save_ranker(random_model(CASES["nvidia"]), tmp_path / "nvidia")
    save_ranker(random_model(CASES["transformer"]), tmp_path / "transformer")
    (tmp_path / "nvidia" / "model.safetensors").replace(tmp_path / "transformer" / "model.safetensors")
    with pytest.raises(ConfigError, match="not the configuration"):
        load_ranker(tmp_path / "transformer")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_built_and_says_what_it_caches(name: str) -> None:
    config = PRESETS[name]
    with torch.device("meta"):
        model = Ranker(config)
    assert model.spec.heads == config.num_heads
    # Ages at query time bind the production variant's K/V to one request.
    assert config.cacheable == ("request" if name == "meta-dlrm-v3" else "append")
    assert config.tokens_per_event == (2 if name == "nvidia-kuairand" else 1)
    assert config.provisional == (1 if name == "meta-research-ml20m" else 0)
