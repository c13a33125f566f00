"""Synthetic checkpoints: state dicts under published names, with random values that float32 holds exactly."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.imports.names import Source
from relaygr.models.imports.notes import ImportReport
from relaygr.models.imports.run import ImportJob, run_import
from relaygr.models.ranker import RowInput
from relaygr.models.weights import open_ranker

State = dict[str, Tensor]


class Random:
    """Tensors by shape, from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=self.generator) * scale

    def linear(self, name: str, inputs: int, outputs: int) -> State:
        return {f"{name}.weight": self(outputs, inputs) * inputs**-0.5, f"{name}.bias": self(outputs)}

    def norm(self, name: str, size: int) -> State:
        return {f"{name}.weight": 1 + 0.3 * self(size), f"{name}.bias": 0.3 * self(size)}

    def stack(self, name: str, inputs: int, middle: int, outputs: int, normed: bool = True) -> State:
        state = self.linear(f"{name}.0", inputs, middle) | self.norm(f"{name}.1", middle)
        state |= self.linear(f"{name}.2", middle, outputs)
        return state | self.norm(f"{name}.3", outputs) if normed else state


def user(
    slots: Iterable[int],
    items: Iterable[int],
    times: Iterable[int],
    actions: Iterable[int],
    candidates: Iterable[int],
    query_time: int,
) -> RowInput:
    return RowInput(
        contextual=torch.tensor(list(slots), dtype=torch.int64),
        items=torch.tensor(list(items), dtype=torch.int64),
        timestamps=torch.tensor(list(times), dtype=torch.int64),
        actions=torch.tensor(list(actions), dtype=torch.int64),
        candidates=torch.tensor(list(candidates), dtype=torch.int64),
        query_time=query_time,
    )


def save(state: State, path: Path, key: str | None = "model_state_dict") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({key: state, "epoch": 3} if key else state, path)
    return path


def imported(source: Source, path: Path, out: Path, *sets: str, **more: object) -> ImportReport:
    return run_import(ImportJob(source, path, out, overrides=sets, **more))  # type: ignore[arg-type]


def refusal(source: Source, path: Path, out: Path, *sets: str, **more: object) -> str:
    """The error's text; nothing may have been written."""
    try:
        imported(source, path, out, *sets, **more)
    except ConfigError as error:
        assert not out.exists()
        return str(error)
    raise AssertionError("imported")


def scores(folder: Path, rows: list[RowInput]) -> list[Tensor]:
    """Logits of a model folder in float64."""
    model = open_ranker(folder, torch.float64)[0]
    return model(rows, ReferenceKernel())


def doubled(state: State) -> State:
    return {name: value.double() if value.is_floating_point() else value for name, value in state.items()}


def difference(got: list[Tensor], want: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))
