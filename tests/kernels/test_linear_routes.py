"""Dense products: every route is right, the choice is steady, and few rows have the bits of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from relaygr.kernels import linear as routes
from relaygr.kernels.cpu.routes import OneDnnRoute
from relaygr.kernels.linear import choose_linear, steady, widened

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _fresh_choice() -> Iterator[None]:
    choose_linear.cache_clear()
    yield
    choose_linear.cache_clear()


def _problem(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(size, generator=g) for size in ((rows, 64), (96, 64), (96,)))
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 8, 130])
def test_the_chosen_and_the_widened_route_are_right(rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = _problem(rows, dtype)
    wanted = F.linear(x.double(), weight.double(), bias.double())
    for route in (choose_linear(dtype).linear, widened):
        got = route(x, weight, bias)
        assert got.dtype == dtype
        tolerance = 1e-6 if dtype == torch.float32 else 1e-2
        assert float((got.double() - wanted).abs().max() / wanted.abs().max()) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steady_rows_have_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    x, weight, bias = _problem(300, dtype)
    product = steady(choose_linear(dtype).linear)
    whole = product(x, weight, bias)
    for start, stop in ((0, 1), (5, 8), (299, 300), (100, 111), (3, 36), (0, 128), (64, 193), (1, 300)):
        assert torch.equal(product(x[start:stop], weight, bias), whole[start:stop]), (start, stop)


def test_noise_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_time_ms", lambda found, dtype: {"aten": 1.2, "widened": 1.0})
    assert choose_linear(torch.bfloat16).route == "aten"
    choose_linear.cache_clear()
    monkeypatch.setattr(routes, "_time_ms", lambda found, dtype: {"aten": 1.3, "widened": 1.0})
    choice = choose_linear(torch.bfloat16)
    assert (choice.route, choice.linear) == ("widened", widened)
    assert choice.measured_ms == {"aten": 1.3, "widened": 1.0}


def test_a_route_that_this_cpu_cannot_run_or_that_is_wrong_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: OneDnnRoute, *args: Any) -> torch.Tensor:
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(OneDnnRoute, "available", staticmethod(lambda dtype: True))
    monkeypatch.setattr(OneDnnRoute, "linear", refuse)
    assert "onednn" not in choose_linear(torch.float32).measured_ms
    choose_linear.cache_clear()
    monkeypatch.setattr(OneDnnRoute, "linear", lambda self, x, weight, bias: F.linear(x, weight) * 1.1)
    assert "onednn" not in choose_linear(torch.float32).measured_ms


def test_elsewhere_and_in_double_nothing_is_measured() -> None:
    assert choose_linear(torch.float64).linear is F.linear
    assert choose_linear(torch.bfloat16, "cuda").linear is F.linear
    assert not choose_linear(torch.bfloat16, "cuda").measured_ms
