"""The measured choice of a route: once a process, dtype and number of threads; slow routes not for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from relaygr.core.errors import BackendError, ConfigError
from relaygr.kernels import select
from relaygr.kernels.cpu import BlockedKernel
from relaygr.kernels.select import choose


@pytest.fixture(autouse=True)
def _measured_anew() -> Iterator[None]:
    select._measured.cache_clear()
    yield
    select._measured.cache_clear()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The routes that are timed; ATen's is the slower one of each dtype, bf16 slower than fp32."""
    asked: list[str] = []

    def time_ms(route: select.MatrixRoute, dtype: torch.dtype) -> float:
        asked.append(f"{dtype}/{route.name}".removeprefix("torch."))
        return (2.0 if route.name == "aten" else 1.0) + (dtype == torch.bfloat16)

    monkeypatch.setattr(select, "_time_ms", time_ms)
    return asked


def test_what_was_measured_is_measured_no_more(timed: list[str]) -> None:
    first = choose("cpu", "fp32")
    assert timed == [f"float32/{probe.route}" for probe in first.probes]
    again = choose("auto", "fp32", bitwise=True)
    assert (again.probes, again.reason) == (first.probes, first.reason)
    assert len(timed) == len(first.probes)
    both = choose("auto", "auto")
    assert both.probes[: len(first.probes)] == first.probes
    names = {"fp32": "float32", "bf16": "bfloat16"}
    assert timed == [f"{names[probe.dtype]}/{probe.route}" for probe in both.probes]
    assert both.dtype_name == "fp32"


def test_kernels_are_of_their_own(timed: list[str]) -> None:
    plain, fixed = choose("cpu", "fp32").kernel, choose("cpu", "fp32", bitwise=True).kernel
    assert isinstance(plain, BlockedKernel)
    assert isinstance(fixed, BlockedKernel)
    assert (plain.bitwise, fixed.bitwise) == (False, True)
    assert plain.route is fixed.route


@pytest.mark.usefixtures("two_threads")
def test_other_threads_are_measured_for_themselves(timed: list[str]) -> None:
    choose("cpu", "fp32")
    torch.set_num_threads(1)
    choose("cpu", "fp32")
    assert len(timed) == 2 * len(set(timed))


@pytest.mark.parametrize(("call_ms", "calls"), [(10.0, 9), (90.0, 6), (400.0, 5)])
def test_a_slow_route_is_called_less_often(
    call_ms: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Route(select.AtenRoute):
        calls = 0

        def linear(self, *arguments: object) -> torch.Tensor:
            Route.calls += 1
            return super().linear(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(select.time, "perf_counter", lambda: Route.calls * call_ms / 1e3)
    assert select._time_ms(Route(), torch.float32) == pytest.approx(call_ms)
    assert Route.calls == calls


def test_no_route_is_an_error(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_error", lambda route, dtype: 1.0)
    with pytest.raises(BackendError, match="no matrix route computes bf16"):
        choose("cpu", "bf16")
    assert timed == []


@pytest.mark.parametrize(
    ("kernel", "dtype", "words"),
    [
        ("fast", "auto", "'fast' is not one of auto, cpu, reference"),
        ("cpu", "fp8", "'fp8' is not one of auto, fp32, bf16, fp64"),
        ("cpu", "fp64", "fp64 runs on the reference kernel only"),
    ],
)
def test_other_names_are_refused(kernel: str, dtype: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose(kernel, dtype)
