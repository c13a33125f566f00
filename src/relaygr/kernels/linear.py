"""Dense products of a decoder: the quickest exact way of this machine, measured once a process and dtype.

A product of half-width matrices falls to a scalar loop on a CPU without instructions for them; widening both
sides first is then many times as fast and no less exact.
"""

from __future__ import annotations

import functools
import logging
import statistics
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
_FEW_ROWS = 8  # below this a product reads its weights once either way
# Routes differ in their last bits: noise must not decide which one a process takes.
_WORTH = 1.25


@dataclass(frozen=True, slots=True)
class LinearChoice:
    """The route that was taken, and the median milliseconds of every one that could be."""

    linear: Linear
    route: str
    measured_ms: Mapping[str, float]


def widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in fp32, rounded once at its end."""
    if x.shape[0] < _FEW_ROWS:
        return F.linear(x, weight, bias)
    out = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return out.to(x.dtype)


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
    measured = {name: _time_ms(route, dtype) for name, route in routes.items() if _right(route, dtype)}
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
def _time_ms(route: Linear, dtype: torch.dtype) -> float:
    x, weight = _inputs(dtype)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        route(x, weight, None)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])
