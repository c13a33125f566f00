"""The training kernel gives the values and gradients of the reference kernel."""

from __future__ import annotations

import msgspec
import pytest
import torch
from tiny_runs import TINY_MODEL, TINY_TRANSFORMER

from relaygr.kernels.interface import Kernel, Segment
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker, RowInput
from relaygr.training import attention
from relaygr.training.attention import TrainingKernel


def rows(cuts: bool) -> list[RowInput]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for history, candidates in ((30, 50), (1, 3), (12, 0), (0, 4)):
        high = query = None
        if cuts and history:
            high = torch.randint(1, history + 1, (candidates,), generator=generator).sort().values
            query = 100_000 + 1000 * high
        made.append(
            RowInput(
                torch.zeros(0, dtype=torch.int64),
                torch.randint(0, 99, (history,), generator=generator),
                torch.randint(0, 90_000, (history,), generator=generator).sort().values,
                torch.ones(history, dtype=torch.int64),
                torch.randint(0, 99, (candidates,), generator=generator),
                100_000 if query is None else query,
                candidate_high=high,
            )
        )
    return made


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("kind", ["hstu", "hstu-time-bias", "transformer"])
@pytest.mark.parametrize("tile", [8, 256])
def test_equals_the_reference(cuts: bool, kind: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROW_TILE", tile)
    base: AnyConfig = TINY_TRANSFORMER
    if kind != "transformer":
        base = msgspec.structs.replace(TINY_MODEL, score_time_bias=kind == "hstu-time-bias")
    config = msgspec.structs.replace(base, num_layers=2, window=0 if cuts else 9)
    found = []
    for kernel in (ReferenceKernel(), TrainingKernel()):
        torch.manual_seed(0)
        model = Ranker(config).double()
        logits = torch.cat(model(rows(cuts), kernel))
        logits.square().sum().backward()
        found.append((logits, {name: p.grad for name, p in model.named_parameters()}))
    (wanted, wanted_grads), (got, got_grads) = found
    assert torch.allclose(got, wanted, atol=1e-12)
    for name, grad in wanted_grads.items():
        assert (grad is None) == (got_grads[name] is None), name
        assert grad is None or torch.allclose(got_grads[name], grad, rtol=1e-9, atol=1e-11), name


def test_stores_are_refused() -> None:
    class Store:
        def write(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None: ...

        def read(self, layer: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
            raise NotImplementedError

    kernel: Kernel = TrainingKernel()
    with pytest.raises(ValueError, match="store"):
        kernel.plan(Ranker(TINY_MODEL).spec, [Segment(0, 1, 1, Store())], torch.float32)


@pytest.mark.parametrize("kernel", [ReferenceKernel(), TrainingKernel()])
def test_training_mode_computes_shared_items_once_with_equal_logits(kernel: Kernel) -> None:
    torch.manual_seed(0)
    model = Ranker(TINY_MODEL).double()
    inputs = rows(cuts=True)
    with torch.no_grad():
        training, serving = (torch.cat(model.train(mode)(inputs, kernel)) for mode in (True, False))
    assert torch.allclose(training, serving, atol=1e-12)
