"""The golden files are what their script writes, and the models compute them."""

from __future__ import annotations

from pathlib import Path

import make_golden
import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open

import relaygr
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker, RowInput

FOLDER = Path(relaygr.__file__).parent / "models" / "imports" / "golden"


def contents(path: Path) -> tuple[dict[str, np.ndarray], HstuConfig]:
    with safe_open(path, "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, msgspec.json.decode(file.metadata()["config"], type=HstuConfig)


@pytest.mark.parametrize("name", make_golden.CONFIGS)
def test_the_files_are_what_the_script_writes(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.safetensors"
    assert path.stat().st_size < 200_000
    make_golden.write(tmp_path, name, 100 * list(make_golden.CONFIGS).index(name))
    kept, config = contents(path)
    fresh, _ = contents(tmp_path / path.name)
    assert config == make_golden.CONFIGS[name]
    assert kept.keys() == fresh.keys()
    for key, tensor in kept.items():
        assert tensor.dtype == fresh[key].dtype
        assert tensor.shape == fresh[key].shape
        assert np.allclose(tensor, fresh[key], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", make_golden.CONFIGS)
def test_a_model_with_the_golden_weights_gives_the_golden_logits(name: str) -> None:
    tensors, config = contents(FOLDER / f"{name}.safetensors")
    model = Ranker(config)
    prefix = "weights."
    model.load_state_dict(
        {k.removeprefix(prefix): torch.from_numpy(v) for k, v in tensors.items() if k.startswith(prefix)}
    )
    model = model.eval().double()
    for i, (_, candidates) in enumerate(make_golden.SHAPES):
        columns = [
            torch.from_numpy(tensors[f"row.{i}.{column}"])
            for column in ("contextual", "items", "timestamps", "actions", "candidates")
        ]
        row = RowInput(*columns, query_time=int(tensors[f"row.{i}.query_time"]))
        with torch.inference_mode():
            got = model([row], ReferenceKernel())[0].numpy()
        assert got.shape == (candidates, len(config.tasks))
        assert np.abs(got - tensors[f"logits.{i}"]).max() <= 1e-10
