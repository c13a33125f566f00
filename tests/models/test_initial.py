"""Initial values, and modules that go without."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from relaygr.models.initial import blank, normal
from relaygr.models.presets import preset
from relaygr.models.ranker import Ranker

_OPEN = """
import sys
from relaygr.models.initial import blank
from relaygr.models.presets import preset
from relaygr.models.ranker import Ranker
with blank():
    Ranker(preset("hstu-tiny"))
print("torch._dynamo" in sys.modules)
"""


def test_a_blank_module_has_the_shapes_and_draws_nothing() -> None:
    config = preset("hstu-tiny")
    wanted = {name: value.shape for name, value in Ranker(config).state_dict().items()}
    before = torch.get_rng_state()
    with blank():
        state = Ranker(config).state_dict()
    assert {name: value.shape for name, value in state.items()} == wanted
    assert all(value.is_meta for value in state.values())
    assert torch.equal(torch.get_rng_state(), before)
    assert not nn.Linear(2, 2).weight.is_meta


def test_a_blank_module_needs_no_compiler() -> None:
    answer = subprocess.run([sys.executable, "-c", _OPEN], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_normal_values() -> None:
    torch.manual_seed(0)
    drawn = normal(100, 100, std=0.1)
    assert isinstance(drawn, nn.Parameter)
    assert abs(drawn.std().item() - 0.1) < 0.005
