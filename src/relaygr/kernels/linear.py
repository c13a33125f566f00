"""Dense products of a decoder: the quickest exact way of this machine, measured once a process and dtype.

A product of half-width matrices falls to a scalar loop on a CPU without instructions for them; widening both
sides first is then many times as fast and no less exact.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.kernels.cpu.routes import OneDnnRoute

log = logging.getLogger("relaygr.kernels")

# x [rows, in], weight [out, in], bias [out] or None -> [rows, out] in the dtype of x.
Linear: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_ROWS, _WIDTH, _OUTPUTS = 128, 256, 1024
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}  # of the result's scale
_TURNS = 12
# fp32 products of ATen changed up to 11 rows here, with one and two threads; of other routes up to 7.
_STEADY_ROWS, _STEADY_ROWS_A_THREAD = 32, 8
_FEW_ROWS = 8  # below this a product reads its weights once either way
# Routes differ in their last bits: noise must not decide which one a process takes.
_WORTH = 1.25


@dataclass(frozen=True, slots=True)
class LinearChoice:
    """The route that was taken, and the shortest milliseconds of every one that could be."""

    linear: Linear
    route: str
    measured_ms: Mapping[str, float]


def widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in fp32, rounded once at its end."""
    if x.shape[0] < _FEW_ROWS:
        return F.linear(x, weight, bias)
    out = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return out.to(x.dtype)


def steady(linear: Linear) -> Linear:
    """The same product for rows that come now in one pass, now in several: few rows get company of zeros.

    A library takes other loops for a few rows, or for the few that each thread gets, and with them other
    last bits; from some number on, a row's bits depend neither on the number nor on its place.
    """
    least = min(max(_STEADY_ROWS, _STEADY_ROWS_A_THREAD * torch.get_num_threads()), _ROWS)

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.shape[0]
        if rows >= least:
            return linear(x, weight, bias)
        return linear(F.pad(x, (0, 0, 0, least - rows)), weight, bias)[:rows]

    return product


@functools.cache
def choose_linear(dtype: torch.dtype, device: str = "cpu") -> LinearChoice:
    """The route for matrices of `dtype`: torch's own, unless another is right and 1.25 times as fast."""
    routes: dict[str, Linear] = {"aten": F.linear}
    if device == "cpu" and OneDnnRoute.available(dtype):
        routes["onednn"] = OneDnnRoute().linear
    if device == "cpu" and dtype in (torch.bfloat16, torch.float16):
        routes["widened"] = widened
    if len(routes) == 1:
        return LinearChoice(F.linear, "aten", MappingProxyType({}))
    measured = _time_ms({name: route for name, route in routes.items() if _right(route, dtype)}, dtype)
    best = min(measured, key=lambda name: measured[name])
    if measured["aten"] < _WORTH * measured[best]:
        best = "aten"
    told = ", ".join(f"{name} {ms:.2f} ms" for name, ms in measured.items())
    log.info("decoder products of %s by %s: %s", str(dtype).removeprefix("torch."), best, told)
    return LinearChoice(routes[best], best, MappingProxyType(measured))


def _inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((_ROWS, _WIDTH), generator=generator)
    return x.to(dtype), (torch.randn((_OUTPUTS, _WIDTH), generator=generator) / 8).to(dtype)


@torch.inference_mode()
def _right(route: Linear, dtype: torch.dtype) -> bool:
    x, weight = _inputs(dtype)
    if route is F.linear:
        return True
    try:
        got = route(x, weight, None).double()
    except RuntimeError as error:  # this build has the operator, this CPU has not its instructions
        log.info("no such product of %s here: %s", dtype, str(error).splitlines()[0])
        return False
    wanted = F.linear(x.double(), weight.double())
    return float((got - wanted).abs().max() / wanted.abs().max()) <= _TOLERANCE[dtype]


@torch.inference_mode()
def _time_ms(routes: Mapping[str, Linear], dtype: torch.dtype) -> dict[str, float]:
    """Shortest time of each route; they take turns, so that a busy moment meets all of them."""
    x, weight = _inputs(dtype)
    best = dict.fromkeys(routes, float("inf"))
    for _ in range(_TURNS):
        for name, route in routes.items():
            start = time.perf_counter()
            route(x, weight, None)
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best
