"""What training runs of the gated delta rule: the serving kernel's numbers, and gradients that are right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relaygr.kernels.convolution import convolve_prompt, empty_rows
from relaygr.kernels.cpu import CpuRecurrent
from relaygr.kernels.recurrent import RecurrentKernel, RecurrentSpec
from relaygr.kernels.reference import ReferenceRecurrent
from relaygr.models.decoder import delta_rows as rows_module
from relaygr.models.decoder.delta_rows import CHUNK, convolved_rows, delta_rows

KERNELS: dict[str, RecurrentKernel] = {"reference": ReferenceRecurrent(), "cpu": CpuRecurrent()}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def drawn(
    spec: RecurrentSpec, batch: int, tokens: int, dtype: torch.dtype, decay: float = 0.0
) -> tuple[Tensor, ...]:
    """q, k, v, log_decay, beta of rows; `decay` is the weakest ln a, negated."""
    g = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, tokens, *shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(spec.key_heads, spec.key_dim), dim=-1) for _ in range(2))
    log_decay = -decay - normal(spec.value_heads).abs() / 4
    beta = torch.sigmoid(normal(spec.value_heads))
    return tuple(x.to(dtype) for x in (q, k, normal(spec.value_heads, spec.value_dim), log_decay, beta))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("decay", [0.0, 40.0])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_rows_are_what_serving_computes(
    key_heads: int, decay: float, dtype: torch.dtype, kernel: str
) -> None:
    spec = RecurrentSpec("delta", key_heads, 4, 12, 8)
    for tokens in (1, CHUNK, 3 * CHUNK + 5):
        parts = drawn(spec, 2, tokens, dtype, decay)
        got = delta_rows(*parts)
        for b in range(2):
            wanted, _ = KERNELS[kernel].prefill(spec, *(part[b] for part in parts), spec.empty_state(dtype))
            # All of a token's values may cancel; they are N(0, 1).
            assert float((got[b] - wanted).abs().max()) <= TOLERANCE[dtype] * max(
                float(wanted.abs().max()), 0.1
            )


def test_rows_of_a_convolution_are_what_serving_computes() -> None:
    g = torch.Generator().manual_seed(0)
    for tokens in (1, 2, 3, 20):
        x, weight = (torch.randn(*shape, generator=g) for shape in ((2, tokens, 6), (6, 4)))
        got = convolved_rows(x, weight)
        for b in range(2):
            wanted, _ = convolve_prompt(x[b], weight, None, empty_rows(4, 6, torch.float32))
            torch.testing.assert_close(got[b], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_gradients_are_those_of_differences(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over whole and broken chunks, and a key head of two value heads."""
    monkeypatch.setattr(rows_module, "CHUNK", 3)
    spec = RecurrentSpec("delta", 1, 2, 3, 2)
    parts = [part.requires_grad_() for part in drawn(spec, 2, 7, torch.float64, decay)]
    assert torch.autograd.gradcheck(delta_rows, parts, fast_mode=False)


def test_gradients_of_the_convolution_are_those_of_differences() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 3, generator=g, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, generator=g, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(convolved_rows, (x, weight))


def test_gradients_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, found = RecurrentSpec("delta", 2, 4, 6, 5), []
    for chunk in (1, 8, CHUNK, 200):
        monkeypatch.setattr(rows_module, "CHUNK", chunk)
        parts = [part.requires_grad_() for part in drawn(spec, 2, 70, torch.float64)]
        delta_rows(*parts).square().sum().backward()
        found.append([part.grad for part in parts])
    for other in found[1:]:
        for got, wanted in zip(other, found[0], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_strong_decays_leave_finite_gradients() -> None:
    """ln a = -40 a token, over more than a chunk: its exponential is zero, and never 0 times infinity."""
    spec = RecurrentSpec("delta", 2, 2, 6, 5)
    parts = [part.requires_grad_() for part in drawn(spec, 1, 3 * CHUNK, torch.float32, 40.0)]
    out = delta_rows(*parts)
    out.square().sum().backward()
    for part in parts:
        assert part.grad is not None
        assert bool(torch.isfinite(part.grad).all())
    assert bool(parts[2].grad.any())


def test_no_token_sees_a_later_one() -> None:
    spec = RecurrentSpec("delta", 2, 2, 6, 5)
    parts = drawn(spec, 1, 2 * CHUNK, torch.float64)
    before = delta_rows(*parts)
    for part in parts[:3]:
        part[:, 40:] = 7.0
    after = delta_rows(*parts)
    assert torch.equal(before[:, :32], after[:, :32])
    torch.testing.assert_close(before[:, :40], after[:, :40], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before[:, 40:], after[:, 40:])
